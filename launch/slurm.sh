#!/usr/bin/env bash
# Submits a training job to Slurm: one process a GPU, started again when it is preempted or its time is over.
#
#   launch/slurm.sh [OPTION…] -- t5x_like train --gin.MODEL_DIR=…
#
#   --nodes=N               how many (default: 1)
#   --gpus_per_node=N       and so many processes on each (default: 8)
#   --time=TIME             limit of one leg, as Slurm writes it (default: 24:00:00); the job goes on in the next one
#   --save_seconds=N        how long before the limit it is asked to save (default: 180)
#   --max_restarts=N        after crashes (default: 3)
#   --name=NAME             of the job (default: t5x_like)
#   --partition=NAME --account=NAME --qos=NAME --constraint=NAME --cpus_per_task=N --mem=SIZE   as sbatch takes them
#   --dry_run               print what would be run
#
# MODEL_DIR is on a file system that all nodes share, or in a bucket. The environment is .venv of this checkout, with the
# extra cuda, or the one that VENV names; it too must be visible to all nodes.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
mistake() {
  printf 'slurm.sh: %s\n' "$*" >&2
  exit 2
}
usage() { sed -n '2,/^set /{s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; }
check_number() { # check_number NAME VALUE
  [[ $2 =~ ^[1-9][0-9]{0,5}$ ]] || mistake "$1=$2: give a number of at least 1"
}
seconds() { # seconds TIME: what Slurm reads as minutes, M:SS, H:MM:SS, D-H, D-H:MM or D-H:MM:SS
  local days=0 rest="$1" first second third
  [[ $rest != *-* ]] || days="${rest%%-*}" rest="${rest#*-}"
  IFS=: read -r first second third <<<"$rest"
  if [[ $1 != *-* && ! $third ]]; then # no hours
    third="${second:-0}" second="$first" first=0
  fi
  printf '%s\n' $((((10#$days * 24 + 10#$first) * 60 + 10#${second:-0}) * 60 + 10#${third:-0}))
}

nodes=1 gpus=8 time=24:00:00 save=180 max_restarts=3 name=t5x_like dry_run=
more=()
while (($#)); do
  case "$1" in
    -h | --help) usage && exit 0 ;;
    --nodes=*) nodes="${1#*=}" ;;
    --gpus_per_node=*) gpus="${1#*=}" ;;
    --time=*) time="${1#*=}" ;;
    --save_seconds=*) save="${1#*=}" ;;
    --max_restarts=*) max_restarts="${1#*=}" ;;
    --name=*) name="${1#*=}" ;;
    --partition=?* | --account=?* | --qos=?* | --constraint=?* | --mem=?*) more+=("$1") ;;
    --cpus_per_task=*)
      check_number --cpus_per_task "${1#*=}"
      more+=("--cpus-per-task=${1#*=}")
      ;;
    --dry_run) dry_run=yes ;;
    --) break ;;
    *) mistake "there is no option $1; the command is written after --" ;;
  esac
  shift
done
[[ ${1:-} == -- ]] && shift
(($#)) || mistake "say what to run: $0 -- t5x_like train …"
[[ $1 == t5x_like ]] || mistake "the command after -- begins with t5x_like, not $1"
check_number --nodes "$nodes"
check_number --gpus_per_node "$gpus"
check_number --save_seconds "$save"
[[ $max_restarts =~ ^[0-9]{1,5}$ ]] || mistake "--max_restarts=$max_restarts: give a number"
[[ $name =~ ^[A-Za-z0-9._-]+$ ]] || mistake "--name=$name: give letters, digits, dots, hyphens and underscores"
[[ $time =~ ^([0-9]+-)?[0-9]+(:[0-9]{2}){0,2}$ ]] || mistake "--time=$time: write minutes, H:MM:SS or D-H:MM:SS"
limit="$(seconds "$time")"
# Slurm sets no limit at 0, and then never asks.
((limit == 0 || save < limit)) || mistake \
  "--save_seconds=$save is all of --time=$time ($limit s): it would be asked to save from the first second on; give less"
if [[ ${2:-} == train && " $* " != *" --gin.MODEL_DIR"[=\ ]* ]]; then
  mistake "t5x_like train without --gin.MODEL_DIR=…: name a folder that all nodes share, so that the job can go on in it"
fi

venv="${VENV:-$root/.venv}" command=("$@")
set -- env T5X_LIKE_ROOT="$root" T5X_LIKE_VENV="$venv" T5X_LIKE_MAX_RESTARTS="$max_restarts" \
  sbatch --export=ALL --job-name="$name" --nodes="$nodes" --ntasks-per-node="$gpus" --gpus-per-node="$gpus" --time="$time" \
  --signal="TERM@$save" --requeue --open-mode=append --output="$name-%j.log" ${more[@]+"${more[@]}"} \
  "$root/launch/slurm.sbatch" "$@"
if [[ $dry_run ]]; then
  printf '%q ' "$@"
  printf '\n'
  exit 0
fi
[[ -x $venv/bin/t5x_like ]] || mistake "$venv holds no t5x_like: pip install -e '.[cuda]' -c constraints.txt there, or set VENV"
"$venv/bin/python" "$root/launch/check_command.py" "${command[@]}" || exit
exec "$@"
