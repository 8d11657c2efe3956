#!/usr/bin/env bash
# Submits a training job to Slurm with one process per GPU. The job is requeued after a preemption or its time limit.
#
#   launch/slurm.sh [OPTION…] -- t5x_like train --gin.MODEL_DIR=…
#
#   --nodes=N               number of nodes (default: 1)
#   --gpus_per_node=N       number of GPUs, and of processes, per node (default: 8)
#   --time=TIME             time limit of one allocation in Slurm's format (default: 24:00:00); the requeued job resumes
#   --save_seconds=N        seconds before the time limit at which a checkpoint is requested (default: 180)
#   --max_restarts=N        maximum number of restarts after crashes (default: 3)
#   --name=NAME             name of the job (default: t5x_like)
#   --container=IMAGE       image to run in: FILE.sif with Apptainer; FILE.sqsh or a name in a registry with Pyxis
#   --mounts=PATH[,PATH…]   directories that the container sees under the same paths, besides the working directory
#   --dry_run               print the command and its cost instead of running it
#   --price=PRICE           price of a GPU per hour in USD, for the cost that --dry_run prints
#   --hours=HOURS           hours of the run, for the same
#   --ANYTHING[=VALUE]      any other option is passed to sbatch, such as --partition=NAME or --reservation=NAME, with
#                           hyphens for underscores in its name
#
# MODEL_DIR must be on a file system that all nodes share, or in a bucket. Without --container, t5x_like with the extra
# cuda is in the virtual environment $VENV (default: .venv of this checkout), which all nodes must see as well. With it,
# the nodes need Python 3.10 or later as python3. Variables of your shell, such as NCCL_DEBUG, are passed to the job.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
usage_error() {
  printf 'slurm.sh: %s\n' "$*" >&2
  exit 2
}
usage() { sed -n '2,/^set /{s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; }
check_number() { # check_number NAME VALUE
  [[ $2 =~ ^[1-9][0-9]{0,5}$ ]] || usage_error "$1=$2: not a positive integer. Give for example $1=1"
}
seconds() { # seconds TIME: converts Slurm's formats: minutes, M:SS, H:MM:SS, D-H, D-H:MM or D-H:MM:SS
  local days=0 rest="$1" first second third
  [[ $rest != *-* ]] || days="${rest%%-*}" rest="${rest#*-}"
  IFS=: read -r first second third <<<"$rest"
  if [[ $1 != *-* && ! $third ]]; then # the format has no hours
    third="${second:-0}" second="$first" first=0
  fi
  printf '%s\n' $((((10#$days * 24 + 10#$first) * 60 + 10#${second:-0}) * 60 + 10#${third:-0}))
}
pass_to_sbatch() { # pass_to_sbatch OPTION: the ones that the job needs cannot be replaced
  local name="${1%%=*}" value=''
  [[ $1 != *=* ]] || value="=${1#*=}"
  name="${name//_/-}"
  [[ $value != = ]] || usage_error "$1 is empty. Give a value, or remove it"
  case "$name" in
    --array | --export | --gpus | --gpus-per-task | --gres | --job-name | --no-requeue | --ntasks* | --open-mode | \
      --output | --signal | --tasks-per-node | --wrap)
      usage_error "$1: the script sets this option. Use those that --help lists"
      ;;
  esac
  sbatch_options+=("$name$value")
}

nodes=1 gpus=8 time=24:00:00 save_seconds=180 max_restarts=3 name=t5x_like container='' mounts='' price='' hours='' dry_run=
sbatch_options=()
while (($#)); do
  case "$1" in
    -h | --help) usage && exit 0 ;;
    --nodes=*) nodes="${1#*=}" ;;
    --gpus_per_node=*) gpus="${1#*=}" ;;
    --time=*) time="${1#*=}" ;;
    --save_seconds=*) save_seconds="${1#*=}" ;;
    --max_restarts=*) max_restarts="${1#*=}" ;;
    --name=*) name="${1#*=}" ;;
    --container=) usage_error "$1 is empty. Give a value, or remove it" ;;
    --container=*) container="${1#*=}" ;;
    --mounts=*) mounts="${1#*=}" ;;
    --price=*) price="${1#*=}" ;;
    --hours=*) hours="${1#*=}" ;;
    --dry_run) dry_run=yes ;;
    --) break ;;
    --nodes | --gpus_per_node | --time | --save_seconds | --max_restarts | --name | --container | --mounts | --price | --hours)
      usage_error "$1: value missing. Write $1=VALUE"
      ;;
    --*) pass_to_sbatch "$1" ;;
    *) usage_error "unknown argument $1. Write options as --NAME=VALUE; the command follows --" ;;
  esac
  shift
done
[[ ${1:-} == -- ]] && shift
(($#)) || usage_error "no command given. Add -- t5x_like train …"
[[ $1 == t5x_like ]] || usage_error "$1 after -- is not supported. Give a t5x_like command"
check_number --nodes "$nodes"
check_number --gpus_per_node "$gpus"
check_number --save_seconds "$save_seconds"
[[ $max_restarts =~ ^[0-9]{1,5}$ ]] || usage_error "--max_restarts=$max_restarts: not a number. Give 0 or more"
[[ $name =~ ^[A-Za-z0-9._-]+$ ]] || usage_error "--name=$name: invalid name. Use letters, digits, dots, hyphens and underscores"
[[ $time =~ ^([0-9]+-)?[0-9]+(:[0-9]{2}){0,2}$ ]] || usage_error "--time=$time: not a time. Write minutes, H:MM:SS or D-H:MM:SS"
[[ $container != *.sif && $container != *.sqsh || -f $container ]] ||
  usage_error "--container=$container: file not found. docs/slurm.md says how to write it"
[[ $container != *://* ]] ||
  usage_error "--container=$container: not a file or a name. Write a .sif file, or remove ${container%%://*}://"
[[ $container || ! $mounts ]] || usage_error "--mounts=$mounts without --container. Add --container=IMAGE, or remove it"
[[ ! $mounts || $mounts =~ ^/[^,:]*(,/[^,:]*)*$ ]] ||
  usage_error "--mounts=$mounts: not a list of directories. Give absolute paths, separated by commas"
for option in price hours; do
  [[ ! ${!option} || ${!option} =~ ^[0-9]+(\.[0-9]+)?$ ]] ||
    usage_error "--$option=${!option}: not a number. Write --$option=2.5"
done
limit="$(seconds "$time")"
# A time of 0 means that Slurm sets no limit, and then it does not send the signal either.
((limit == 0 || save_seconds < limit)) || usage_error \
  "--save_seconds=$save_seconds leaves no time to train before --time=$time ($limit s). Give a smaller value"
if [[ ${2:-} =~ ^(train|distill)$ && " $* " != *" --gin.MODEL_DIR"[=\ ]* ]]; then
  usage_error "t5x_like $2 without --gin.MODEL_DIR: the job cannot resume. Give a directory that all nodes share"
fi

venv="${VENV:-$root/.venv}" command=("$@")
variables=(T5X_LIKE_ROOT="$root" T5X_LIKE_MAX_RESTARTS="$max_restarts" T5X_LIKE_CONTAINER="$container")
if [[ $container ]]; then variables+=(T5X_LIKE_MOUNTS="$mounts"); else variables+=(T5X_LIKE_VENV="$venv"); fi
set -- env "${variables[@]}" \
  sbatch --export=ALL --job-name="$name" --nodes="$nodes" --ntasks-per-node="$gpus" --gpus-per-node="$gpus" --time="$time" \
  --signal="TERM@$save_seconds" --requeue --open-mode=append --output="$name-%j.log" ${sbatch_options[@]+"${sbatch_options[@]}"} \
  "$root/launch/slurm.sbatch" "$@"
if [[ $dry_run ]]; then
  awk -v devices=$((nodes * gpus)) -v price="$price" -v hours="$hours" 'BEGIN {
    if (price == "") { print "# cost per hour: unknown (add --price, of one of " devices " GPUs)"; hours = "" }
    else printf "# cost per hour: %.2f USD (%d GPUs at %.2f USD; --price)\n", devices * price, devices, price
    if (hours == "") print "# cost of the run: unknown" (price == "" ? "" : " (add --hours)")
    else printf "# cost of the run: %.2f USD (--hours=%s)\n", devices * price * hours, hours
  }'
  printf '%q ' "$@"
  printf '\n'
  exit 0
fi
command -v sbatch >/dev/null || usage_error "sbatch not found. Submit on a login node of the cluster"
python="$venv/bin/python"
if [[ $container ]]; then
  python=python3
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null ||
    usage_error "python3 is missing or older than 3.10. Load a module with Python: it supervises the container"
else
  [[ -x $venv/bin/t5x_like ]] ||
    usage_error "t5x_like not found in $venv. Run pip install -e '.[cuda]' -c constraints.txt, or set VENV"
fi
"$python" "$root/launch/check_command.py" --devices=$((nodes * gpus)) "${command[@]}" || exit
exec "$@"
