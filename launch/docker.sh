#!/usr/bin/env bash
# Builds, pushes and runs the image of t5x_like.
#
#   launch/docker.sh build --image=IMAGE [--extra=tpu|cuda|cpu]
#   launch/docker.sh push --image=IMAGE
#   launch/docker.sh run --image=IMAGE [--extra=tpu|cuda|cpu] -- t5x_like train …
#
#   --image=IMAGE   name in a registry with a tag, such as registry.example.com/images/t5x_like:first
#   --extra=EXTRA   hardware that the image supports: tpu, cuda or cpu (default: tpu)
#   --dry_run       print the command instead of running it
#
# `run` mounts ./runs of the working directory, where t5x_like writes its runs by default. With --extra=cuda, the machine
# needs NVIDIA's Container Toolkit, and driver 580 or later for CUDA 13.
set -euo pipefail

# The architecture of TPU and GPU machines. Without it, an Arm laptop would build an Arm image.
platform=linux/amd64
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
usage_error() {
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
    *) usage_error "unknown option $1 of $action. See --help" ;;
  esac
  shift
done
[[ ${1:-} == -- ]] && shift
[[ $image =~ ^[a-z0-9][a-z0-9./_:-]*:[A-Za-z0-9_][A-Za-z0-9._-]*$ ]] ||
  usage_error "--image=$image: not an image name. Give a lower-case name with a tag, such as registry.example.com/images/t5x_like:first"
case "$extra" in
  tpu | cuda) ;;
  cpu) extra='' ;;
  *) usage_error "--extra=$extra: unknown extra. Give tpu, cuda or cpu" ;;
esac
[[ $action == run ]] || (($# == 0)) || usage_error "$action does not run a command. Remove -- $1"

case "$action" in
  build)
    set -- env DOCKER_BUILDKIT=1 docker build --file "$root/launch/Dockerfile" --platform "$platform" \
      --build-arg "EXTRA=$extra" --tag "$image" "$root"
    ;;
  push) set -- docker push "$image" ;;
  run)
    (($#)) || usage_error "no command given. Add -- t5x_like train …"
    command=("$@")
    options=(--rm --init --platform "$platform" --volume "$PWD/runs:/work/runs" --workdir /work)
    # Otherwise JAX continues on the CPU if a TPU or GPU cannot be initialized.
    [[ $extra ]] && options+=(--env "JAX_PLATFORMS=$extra,cpu")
    [[ $extra == cuda ]] && options+=(--gpus all --shm-size 8g)
    [[ $extra == tpu ]] && options+=(--privileged --net host)
    set -- docker run "${options[@]}" "$image" "$@"
    ;;
esac
if [[ $dry_run ]]; then
  printf '%q ' "$@"
  printf '\n'
else
  command -v docker >/dev/null || usage_error "docker not found. Install it, or add it to PATH"
  if [[ $action == run && ${command[0]} == t5x_like && -x ${VENV:-$root/.venv}/bin/python ]]; then
    "${VENV:-$root/.venv}/bin/python" "$root/launch/check_command.py" "${command[@]}" || exit
  fi
  exec "$@"
fi
