#!/usr/bin/env bash
# Runs t5x_like on this machine in an environment of its own, which it makes on first use. See launch/README.md.
#
#   launch/local.sh [--dry_run] COMMAND [ARGUMENT…]
#
#   train, eval, infer, inspect …   `t5x_like COMMAND ARGUMENT…` in the folder you are in
#   test                            the tests; arguments go to pytest
#
# From the environment:
#   PYTHON   the interpreter to make the environment with (default: the first of python3, python3.13, python3.12,
#            python3.11 that runs and is 3.11 to 3.13)
#   VENV     the environment's folder (default: .venv in the repository)
#   UV       the uv to install with (default: the one on PATH; UV= installs with pip)
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${VENV:-$root/.venv}"
[[ $venv == /* ]] || venv="$PWD/$venv"
oldest=11 newest=13 # of Python 3: tensorflow-text has no wheels outside

say() { printf 'local.sh: %s\n' "$*" >&2; }
fail() {
  say "$@"
  exit 1
}
usage() { sed -n '2,/^set /{s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; }

# Runs a command, or under --dry_run prints it as one could type it.
act() {
  if [[ $dry_run ]]; then
    printf '%q ' "$@"
    printf '\n'
  else
    "$@"
  fi
}

# ---- What was asked for ----------------------------------------------------------------------------------------------
dry_run=
if [[ ${1:-} == --dry_run ]]; then
  dry_run=yes
  shift
fi
case "${1:-}" in
  -h | --help) usage && exit 0 ;;
  '') usage >&2 && exit 2 ;;
  -*)
    say "the first argument is a command such as train or test, not the option $1"
    usage >&2
    exit 2
    ;;
esac
command="$1"
shift
extras=''
[[ $command == test ]] && extras='[test]'

uv="${UV-$(command -v uv || true)}"
if [[ $uv ]] && ! "$uv" --version >/dev/null 2>&1; then
  [[ ${UV:-} ]] && fail "UV=$uv does not run"
  uv=
fi

# ---- A Python that can hold the environment --------------------------------------------------------------------------
# Prints "3.MINOR yes|no": the version, and whether it has what `-m venv` needs. Runs on any Python from 2.7 on, so that an
# old one is named rather than crashes.
probe='
import sys
try:
    import ensurepip, venv
    whole = "yes"
except ImportError:
    whole = "no"
print("%d.%d %s" % (sys.version_info[0], sys.version_info[1], whole))'

# Sets `problem` to what is wrong with an interpreter, or to nothing.
examine() {
  local version whole
  problem=
  # A version manager's shim may stand for a Python that is not switched on, so only running it tells.
  if ! read -r version whole < <("$1" -c "$probe" 2>/dev/null); then
    problem="does not run"
  elif [[ $version != 3.* ]] || ((${version#3.} < oldest)); then
    problem="is Python $version, too old"
  elif ((${version#3.} > newest)); then
    problem="is Python $version, too new: tensorflow-text has no build for it yet"
  elif [[ $whole != yes && ! $uv ]]; then
    problem="is Python $version without its venv module (on Debian and Ubuntu: apt install python$version-venv)"
  fi
}

find_python() {
  local candidate found=()
  if [[ ${PYTHON:-} ]]; then
    examine "$PYTHON"
    [[ $problem ]] && fail "PYTHON=$PYTHON $problem; t5x_like needs Python 3.$oldest to 3.$newest"
    python="$PYTHON"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11; do
    command -v "$candidate" >/dev/null || continue
    examine "$candidate"
    if [[ ! $problem ]]; then
      python="$candidate"
      return
    fi
    found+=("$candidate $problem")
  done
  say "t5x_like needs Python 3.$oldest to 3.$newest, and none was found:"
  ((${#found[@]})) && printf '  %s\n' "${found[@]}" >&2
  fail "install one, or name it: PYTHON=/path/to/python3.12 $0 $command"
}

# ---- The environment -------------------------------------------------------------------------------------------------
# A stamp holds the checksum of what was installed, so an unchanged environment costs nothing and a stale one is renewed.
wanted="$(cd "$root" && cat constraints.txt setup.py | cksum)"
stamped() { [[ -e $venv/installed$1 && $(<"$venv/installed$1") == "$wanted" ]]; }

if [[ -e $venv/bin/python && ${PYTHON:-} ]]; then
  wish="$("$PYTHON" -c "$probe" 2>/dev/null || true)"
  is="$("$venv/bin/python" -c "$probe" 2>/dev/null || true)"
  [[ ${wish% *} == "${is% *}" ]] ||
    fail "$venv is Python ${is% *} and PYTHON=$PYTHON is ${wish% *}; remove that folder to change over, or set VENV"
fi
if [[ -e $venv/bin/python ]] && ! stamped "$extras"; then
  examine "$venv/bin/python"
  case "$problem" in
    *' too '*) fail "$venv $problem; remove that folder, then run this again" ;;
    *'not run'*) say "$venv is broken, making it anew" ;;
    *) problem= ;;
  esac
fi
if [[ ! -e $venv/bin/python || ${problem:-} ]]; then
  find_python
  say "making $venv with $python"
  if [[ $uv ]]; then
    clear=()
    [[ -e $venv ]] && clear=(--clear) # an option that uv knows since 0.8; an empty array is unset to macOS's old bash
    act "$uv" venv --quiet ${clear[@]+"${clear[@]}"} --python "$python" "$venv"
  else
    act "$python" -m venv --clear "$venv"
  fi
fi
if ! stamped "$extras"; then
  say "installing t5x_like$extras at the versions of constraints.txt (once; about 1 GB, minutes)"
  if [[ $uv ]]; then
    act "$uv" pip install --quiet --python "$venv/bin/python" --editable "$root$extras" --constraint "$root/constraints.txt"
  else
    # --no-compile, as uv by default: Python compiles what it imports, a small part of what is installed.
    act "$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check \
      --editable "$root$extras" --constraint "$root/constraints.txt"
  fi
  if [[ ! $dry_run ]]; then
    printf '%s\n' "$wanted" >"$venv/installed"
    [[ $extras ]] && printf '%s\n' "$wanted" >"$venv/installed$extras"
  fi
fi

# ---- The command -----------------------------------------------------------------------------------------------------
if [[ $command == test ]]; then
  cd "$root"
  # One worker a core; a file stays with one worker, so that its tests share what they make. `-n 0` for one process.
  set -- "$venv/bin/python" -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@"
else
  set -- "$venv/bin/t5x_like" "$command" "$@"
fi
[[ $dry_run ]] && act "$@" && exit 0
exec "$@"
