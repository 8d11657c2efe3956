#!/usr/bin/env bash
# Solves constraints.txt (all extras together, Python 3.11 to 3.13) and constraints-notf.txt (the core without
# TensorFlow, at the same versions) anew from the lower bounds in setup.py. Needs uv; it is the only thing here that does.
#
#   .ci/solve_constraints.sh            take the newest versions that fit together
#   .ci/solve_constraints.sh --keep     change only what the bounds in setup.py force
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

upgrade=(--upgrade)
[[ ${1:-} == --keep ]] && upgrade=()
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# One universal solution: uv splits it with markers where a package's newest release needs a newer Python.
solve() { # solve OUTPUT SOURCE [OPTION…]
  local output="$1"
  shift
  [[ -e $output ]] && cp "$output" "$work/solved"
  uv pip compile "$@" "${upgrade[@]}" --quiet --universal --python-version 3.11 --no-header --no-annotate \
    --output-file "$work/solved" >/dev/null
  sed "s/python_full_version/python_version/g" "$work/solved" >"$work/body"
}

solve constraints.txt setup.py --all-extras
{
  echo "# One set of versions for Python 3.11 to 3.13 and for all extras together: pip install -e '.[test]' -c constraints.txt"
  echo "# Written by .ci/solve_constraints.sh from the lower bounds in setup.py; names and versions only."
  cat "$work/body"
} >constraints.txt

python3 - >"$work/core.in" <<'PYTHON'
import ast

for node in ast.parse(open("setup.py").read()).body:
    if isinstance(node, ast.Assign) and node.targets[0].id == "CORE":
        print(*ast.literal_eval(node.value), sep="\n")
PYTHON
solve constraints-notf.txt "$work/core.in" --constraint constraints.txt
{
  echo "# An environment without TensorFlow, TFDS and SeqIO: everything that does not read a SeqIO task live."
  echo "#   pip install -r constraints-notf.txt && pip install --no-deps -e ."
  echo "# Written by .ci/solve_constraints.sh from CORE in setup.py, at the versions of constraints.txt."
  cat "$work/body"
} >constraints-notf.txt
