#!/usr/bin/env bash
# Makes the environment of a TPU worker, or brings it up to date. Run on each worker by launch/tpu.py install.
#
#   launch/install_worker.sh
#
# From the environment:
#   VENV     the environment's folder (default: ~/t5x_like_venv)
#   EXTRA    the extra to install (default: tpu)
#   PYTHON   the interpreter, by path or version (default: 3.12). A TPU VM comes with Python 3.10, too old for t5x_like:
#            uv brings the one that is missing.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${VENV:-$HOME/t5x_like_venv}"
extra="${EXTRA:-tpu}"
python="${PYTHON:-3.12}"
say() { printf 'install_worker.sh: %s\n' "$*" >&2; }

wanted="$extra $python $(cd "$root" && cat constraints.txt setup.py | cksum)"
if [[ -e $venv/installed && $(<"$venv/installed") == "$wanted" ]]; then
  say "$venv is up to date"
  exit 0
fi

export PATH="$HOME/.local/bin:$PATH"
if ! command -v uv >/dev/null; then
  say 'installing uv'
  python3 -m pip install --quiet --user uv
fi
[[ -e $venv/bin/python ]] || uv venv --quiet --python "$python" "$venv"
rm -f "$venv/installed"
say "installing t5x_like[$extra] at the versions of constraints.txt"
# Other hosts of a slice ask the same index at the same moment: a refused request is tried again.
for attempt in 1 2 3; do
  if uv pip install --quiet --python "$venv/bin/python" --editable "${root}[$extra]" --constraint "$root/constraints.txt"
  then
    printf '%s\n' "$wanted" >"$venv/installed"
    exit 0
  fi
  say "attempt $attempt of 3 failed"
  sleep "${RETRY_SECONDS:-10}"
done
exit 1
