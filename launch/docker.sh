#!/usr/bin/env bash
# Builds, pushes and runs the image with t5x_like.
#
#   launch/docker.sh build --image=IMAGE [--extra=tpu|cuda|cpu]        (default: tpu)
#   launch/docker.sh push --image=IMAGE
#   launch/docker.sh run --image=IMAGE [--extra=…] -- t5x_like train …   with ./runs of this folder mounted
#
#   --dry_run   print what would be run
#
# IMAGE is a name in a registry with a tag, such as registry.example.com/images/t5x_like:first
set -euo pipefail

# TPU and GPU machines are x86-64; without this, an Arm laptop would build an image for itself.
platform=linux/amd64
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
mistake() {
  printf 'docker.sh: %s\n' "$*" >&2
  exit 2
}
usage() { sed -n '2,/^set /{s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; }

action="${1:-}" image='' extra=tpu dry_run=
case "$action" in
  -h | --help) usage && exit 0 ;;
  build | push | run) shift ;;
  *)
    usage >&2
    exit 2
    ;;
esac
while (($#)); do
  case "$1" in
    --image=*) image="${1#*=}" ;;
    --extra=*) extra="${1#*=}" ;;
    --dry_run) dry_run=yes ;;
    --) break ;;
    *) mistake "$action has no option $1" ;;
  esac
  shift
done
[[ ${1:-} == -- ]] && shift
[[ $image =~ ^[a-z0-9][a-z0-9./_:-]*:[A-Za-z0-9_][A-Za-z0-9._-]*$ ]] ||
  mistake "--image=$image: give a name in lower case and a tag, such as registry.example.com/images/t5x_like:first"
case "$extra" in
  tpu | cuda) ;;
  cpu) extra='' ;;
  *) mistake "--extra=$extra: give tpu, cuda or cpu" ;;
esac
[[ $action == run ]] || (($# == 0)) || mistake "$action runs no command, and $1 stands after --"

case "$action" in
  build)
    set -- env DOCKER_BUILDKIT=1 docker build --file "$root/launch/Dockerfile" --platform "$platform" \
      --build-arg "EXTRA=$extra" --tag "$image" "$root"
    ;;
  push) set -- docker push "$image" ;;
  run)
    (($#)) || mistake "say what to run: -- t5x_like train …"
    command=("$@")
    options=(--rm --init --platform "$platform" --volume "$PWD/runs:/work/runs" --workdir /work)
    [[ $extra == cuda ]] && options+=(--gpus all --shm-size 8g)
    [[ $extra == tpu ]] && options+=(--privileged --net host)
    set -- docker run "${options[@]}" "$image" "$@"
    ;;
esac
if [[ $dry_run ]]; then
  printf '%q ' "$@"
  printf '\n'
else
  if [[ $action == run && ${command[0]} == t5x_like && -x ${VENV:-$root/.venv}/bin/python ]]; then
    "${VENV:-$root/.venv}/bin/python" "$root/launch/check_command.py" "${command[@]}" || exit
  fi
  exec "$@"
fi
