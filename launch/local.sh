#!/usr/bin/env bash
# Runs t5x_like on this machine in a virtual environment, which it creates on first use. See launch/README.md.
#
#   launch/local.sh [--dry_run] COMMAND [ARGUMENT…]
#
#   train, eval, infer, inspect …   run `t5x_like COMMAND ARGUMENT…` in the working directory
#   test                            run the default tests; arguments are passed to pytest:
#                                     test -m smoke   a few tests of each part, in minutes
#                                     test -m full    the tests that the default leaves out; CI runs them
#
# Environment variables:
#   PYTHON   interpreter for the virtual environment (default: the first of python3, python3.13, python3.12,
#            python3.11 that works and is version 3.11 to 3.13)
#   VENV     directory of the virtual environment (default: .venv in the repository)
#   UV       uv executable to install with (default: the one on PATH; UV= installs with pip)
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${VENV:-$root/.venv}"
[[ $venv == /* ]] || venv="$PWD/$venv"
oldest=11 newest=13 # minor versions of Python 3; tensorflow-text has no wheels for others

log() { printf 'local.sh: %s\n' "$*" >&2; }
fail() {
  log "$@"
  exit 1
}
usage() { sed -n '2,/^set /{s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; }

# Runs a command. With --dry_run, prints it in a form that can be pasted into a shell.
run() {
  if [[ $dry_run ]]; then
    printf '%q ' "$@"
    printf '\n'
  else
    "$@"
  fi
}

# ---- Arguments -------------------------------------------------------------------------------------------------------
dry_run=
if [[ ${1:-} == --dry_run ]]; then
  dry_run=yes
  shift
fi
case "${1:-}" in
  -h | --help) usage && exit 0 ;;
  '') usage >&2 && exit 2 ;;
  -*)
    log "the first argument must be a command such as train or test, not the option $1"
    usage >&2
    exit 2
    ;;
esac
command="$1"
shift
# An unknown command is reported before the installation, which takes minutes.
commands="$(sed -n 's/^    "\([a-z_]*\)": Command($/\1/p' "$root"/t5x_like/cli/*commands.py)"
commands="test ${commands//$'\n'/ } recipes"
[[ " help $commands " == *" $command "* ]] || { log "unknown command $command. Commands: $commands" && exit 2; }
extras=''
[[ $command == test ]] && extras='[test]'

uv="${UV-$(command -v uv || true)}"
if [[ $uv ]] && ! "$uv" --version >/dev/null 2>&1; then
  [[ ${UV:-} ]] && fail "UV=$uv does not work. Install uv, or set UV= to use pip"
  uv=
fi

# ---- Python interpreter ----------------------------------------------------------------------------------------------
# Prints the version and whether `-m venv` works, as "3.MINOR yes|no". Runs on Python 2.7 and later, so that an old
# interpreter is reported instead of crashing.
probe='
import sys
try:
    import ensurepip, venv
    has_venv = "yes"
except ImportError:
    has_venv = "no"
print("%d.%d %s" % (sys.version_info[0], sys.version_info[1], has_venv))'

# Sets `problem` to the reason why an interpreter is unsuitable, or to an empty string.
examine() {
  local version has_venv
  problem=
  # The candidate may be a version manager's shim for an inactive version, which fails only when it runs.
  if ! read -r version has_venv < <("$1" -c "$probe" 2>/dev/null); then
    problem="does not work"
  elif [[ $version != 3.* ]] || ((${version#3.} < oldest)); then
    problem="is Python $version, too old"
  elif ((${version#3.} > newest)); then
    problem="is Python $version, too new: tensorflow-text does not support it"
  elif [[ $has_venv != yes && ! $uv ]]; then
    problem="is Python $version without its venv module (on Debian and Ubuntu: apt install python$version-venv)"
  fi
}

find_python() {
  local candidate found=()
  if [[ ${PYTHON:-} ]]; then
    examine "$PYTHON"
    [[ $problem ]] && fail "PYTHON=$PYTHON $problem. Give Python 3.$oldest to 3.$newest"
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
  log "no suitable Python found; t5x_like needs Python 3.$oldest to 3.$newest:"
  ((${#found[@]})) && printf '  %s\n' "${found[@]}" >&2
  fail "install one, or set PYTHON: PYTHON=/path/to/python3.12 $0 $command"
}

# ---- Virtual environment ---------------------------------------------------------------------------------------------
# A stamp file holds the checksum of the installed requirements, so that only a changed environment is updated.
wanted="$(cd "$root" && cat constraints.txt setup.py | cksum)"
stamped() { [[ -e $venv/installed$1 && $(<"$venv/installed$1") == "$wanted" ]]; }

if [[ -e $venv/bin/python && ${PYTHON:-} ]]; then
  requested="$("$PYTHON" -c "$probe" 2>/dev/null || true)"
  [[ $requested ]] || fail "PYTHON=$PYTHON does not work. Give Python 3.$oldest to 3.$newest"
  existing="$("$venv/bin/python" -c "$probe" 2>/dev/null || true)"
  [[ ${requested% *} == "${existing% *}" ]] ||
    fail "$venv is Python ${existing% *} and PYTHON=$PYTHON is ${requested% *}. Remove that directory, or set VENV"
fi
if [[ -e $venv/bin/python ]] && ! stamped "$extras"; then
  examine "$venv/bin/python"
  case "$problem" in
    *' too '*) fail "$venv $problem. Remove that directory and run this script again" ;;
    *'not work'*) log "$venv is broken and will be recreated" ;;
    *) problem= ;;
  esac
fi
if [[ ! -e $venv/bin/python || ${problem:-} ]]; then
  find_python
  log "creating $venv with $python"
  if [[ $uv ]]; then
    clear=()
    [[ -e $venv ]] && clear=(--clear) # available since uv 0.8; bash on macOS treats an empty array as unset
    run "$uv" venv --quiet ${clear[@]+"${clear[@]}"} --python "$python" "$venv"
  else
    run "$python" -m venv --clear "$venv"
  fi
fi
if ! stamped "$extras"; then
  log "installing t5x_like$extras at the versions of constraints.txt (once; about 1 GB, takes minutes)"
  if [[ $uv ]]; then
    run "$uv" pip install --quiet --python "$venv/bin/python" --editable "$root$extras" --constraint "$root/constraints.txt"
  else
    # --no-compile is uv's default too: Python compiles modules on import, and imports few of the installed ones.
    run "$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check \
      --editable "$root$extras" --constraint "$root/constraints.txt"
  fi
  if [[ ! $dry_run ]]; then
    printf '%s\n' "$wanted" >"$venv/installed"
    [[ $extras ]] && printf '%s\n' "$wanted" >"$venv/installed$extras"
  fi
fi

# ---- Command ---------------------------------------------------------------------------------------------------------
if [[ $command == test ]]; then
  cd "$root"
  (($#)) || log "running the default tests (up to 20 minutes on 2 cores); \`test -m smoke\` runs a few of each part"
  # One worker per core. The tests of a file run in one worker, so that they share fixtures. `-n 0` uses one process.
  set -- "$venv/bin/python" -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@"
else
  set -- "$venv/bin/t5x_like" "$command" "$@"
fi
[[ $dry_run ]] && run "$@" && exit 0
exec "$@"
