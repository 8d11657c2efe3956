#!/usr/bin/env bash
# Runs a job on a TPU VM from each boot on. `launch/tpu.py` puts this script into the request as its startup-script, and
# the directory of the job (gs://…) as the metadata t5x-like-job.
#
# The job is the systemd unit t5x_like. systemd starts it again when it ends, and stops it with SIGTERM when the machine
# is shut down. Each start reads job.json, downloads the code that it names, and hands over to launch/worker.py of it.
set -uo pipefail
export HOME="${HOME:-/root}" PATH="$PATH:/snap/bin"
log() { printf 'startup.sh: %s\n' "$*" >&2; }

if [[ ${1:-} != run ]]; then
  install -m 755 "$0" "$HOME/t5x_like_startup.sh"
  exec systemd-run --unit=t5x_like --property=Restart=always --property=RestartSec=30 --property=KillMode=mixed \
    --property=TimeoutStopSec=300 --property=LimitNOFILE=1048576 --property=LimitMEMLOCK=infinity \
    --setenv=HOME="$HOME" "$HOME/t5x_like_startup.sh" run
fi

attribute() {
  curl --silent --fail --header Metadata-Flavor:Google \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}
variable() { # variable NAME DEFAULT: a line of tpu-env, such as WORKER_ID: '3'
  local value
  value="$(sed -n "s/^$1: *'\(.*\)'$/\1/p" <<<"$tpu_env")"
  printf '%s\n' "${value:-$2}"
}

cd "$HOME" || exit
if ! directory="$(attribute t5x-like-job)" || ! tpu_env="$(attribute tpu-env)"; then
  log 'the metadata server does not answer'
  exit 1
fi
if ! gcloud storage cp --quiet "$directory/job.json" t5x_like_job.json; then
  log "$directory/job.json cannot be read: the service account of this VM needs access to the bucket"
  exit 1
fi
code="$(grep -o 'code-[0-9a-f]\{64\}' t5x_like_job.json | head -n 1)"
if [[ ! -e $code.tar.gz ]]; then
  rm -f code-*.tar.gz
  gcloud storage cp --quiet "$directory/$code.tar.gz" t5x_like_code.part || exit 1
  if [[ $(sha256sum <t5x_like_code.part) != "${code#code-} "* ]]; then
    log "$directory/$code.tar.gz does not have its SHA-256"
    exit 1
  fi
  mv t5x_like_code.part "$code.tar.gz"
fi
rm -rf t5x_like && mkdir t5x_like && tar -xzf "$code.tar.gz" -C t5x_like || exit 1
exec python3 t5x_like/launch/worker.py --directory="$directory" --slice="$(variable MEGASCALE_SLICE_ID 0)" \
  --worker="$(variable WORKER_ID 0)" --project="$(variable CONSUMER_PROJECT_ID '')"
