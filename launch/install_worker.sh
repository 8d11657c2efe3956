#!/usr/bin/env bash
# Creates or updates the virtual environment of a TPU worker. launch/worker.py runs it before each start.
#
#   launch/install_worker.sh
#
# Environment variables:
#   VENV     directory of the virtual environment (default: ~/t5x_like_venv)
#   EXTRA    extra to install (default: tpu)
#   PYTHON   interpreter, as a path or version (default: 3.12). A TPU VM with Ubuntu 22.04 has Python 3.10, which is too
#            old for t5x_like; uv downloads a missing version.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${VENV:-$HOME/t5x_like_venv}"
extra="${EXTRA:-tpu}"
python="${PYTHON:-3.12}"
log() { printf 'install_worker.sh: %s\n' "$*" >&2; }

wanted="$extra $python $(cd "$root" && cat constraints.txt setup.py | cksum)"
if [[ -e $venv/installed && $(<"$venv/installed") == "$wanted" ]]; then
  log "$venv is up to date"
  exit 0
fi

uv_venv="$HOME/t5x_like_uv"
export PATH="$uv_venv/bin:$HOME/.local/bin:$PATH"
if ! command -v uv >/dev/null; then
  log 'installing uv'
  stdlib="$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
  if [[ -e $stdlib/EXTERNALLY-MANAGED ]]; then # Ubuntu 24.04: pip installs into virtual environments only (PEP 668)
    if ! python3 -m venv --clear "$uv_venv"; then
      log 'installing python3-venv'
      sudo apt-get update -qq && sudo apt-get install -y -qq python3-venv
      python3 -m venv --clear "$uv_venv"
    fi
    "$uv_venv/bin/python" -m pip install --quiet uv
  else
    python3 -m pip install --quiet --user uv
  fi
fi
[[ -e $venv/bin/python ]] || uv venv --quiet --python "$python" "$venv"
rm -f "$venv/installed"
log "installing t5x_like[$extra] at the versions of constraints.txt"
# All hosts of a slice send requests to the package index at the same time, so a refused request is retried.
for attempt in 1 2 3; do
  if uv pip install --quiet --python "$venv/bin/python" --editable "${root}[$extra]" --constraint "$root/constraints.txt"
  then
    printf '%s\n' "$wanted" >"$venv/installed"
    exit 0
  fi
  log "attempt $attempt of 3 failed"
  sleep "${RETRY_SECONDS:-10}"
done
exit 1
