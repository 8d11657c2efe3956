#!/usr/bin/env bash
# Runs a command as several processes of one job on this machine, as a slice or a cluster does on several machines.
#
#   launch/local_multiprocess.sh [OPTION…] -- t5x_like train …
#
#   -n, --num_processes=N   number of processes (default: 2)
#   --port=PORT             port of the coordinator, process 0 (default: a free port)
#   --log_dir=DIRECTORY     directory for the output of the processes: 0.log, 1.log, … (default: a new one in /tmp)
#   --grace=SECONDS         seconds between SIGTERM and SIGKILL (default: 20)
#   --dry_run               print the commands instead of running them
#
# The processes find each other through T5X_LIKE_COORDINATOR, T5X_LIKE_NUM_PROCESSES and T5X_LIKE_PROCESS_ID. The output
# of process 0 is also shown here. If a process fails, the others get SIGTERM, then SIGKILL; the exit code comes from
# the first process that failed, not from one that has only lost another (69); otherwise it is 0, or 130 after Ctrl-C.
# Ctrl-C and SIGTERM are forwarded to all processes as SIGTERM.
set -euo pipefail

lost_peer=69 preempted=75 interrupted=130 # exit codes, see launch/protocol.py

log() { printf 'local_multiprocess.sh: %s\n' "$*" >&2; }
usage_error() {
  log "$@"
  exit 2
}
usage() { sed -n '2,/^set /{s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; }
check_number() { # check_number NAME VALUE MIN MAX
  if ! [[ $2 =~ ^[0-9]{1,5}$ ]] || ((10#$2 < $3 || 10#$2 > $4)); then
    usage_error "$1=$2: out of range. Give a number from $3 to $4"
  fi
}

# ---- Arguments -------------------------------------------------------------------------------------------------------
count=2 port='' log_dir='' grace=20 dry_run=
while (($#)); do
  case "$1" in
    -h | --help) usage && exit 0 ;;
    --dry_run) dry_run=yes ;;
    --) break ;;
    -n | --num_processes | --port | --log_dir | --grace)
      (($# > 1)) || usage_error "$1: value missing. Give $1=VALUE"
      set -- "${1/#-n/--num_processes}=$2" "${@:3}"
      continue
      ;;
    --num_processes=*) count="${1#*=}" ;;
    --port=*) port="${1#*=}" ;;
    --log_dir=*) log_dir="${1#*=}" ;;
    --grace=*) grace="${1#*=}" ;;
    *) usage_error "unknown option $1. See --help; the command follows --" ;;
  esac
  shift
done
[[ ${1:-} == -- ]] && shift
(($#)) || usage_error "no command given. Add -- t5x_like train …"
[[ $dry_run ]] || command -v -- "$1" >/dev/null || usage_error "command $1 not found. Give an installed command, such as t5x_like"
check_number --num_processes "$count" 1 1024
check_number --grace "$grace" 0 99999
[[ -z $port ]] || check_number --port "$port" 1024 65535

free_port() {
  local candidate
  while :; do
    candidate=$((20000 + RANDOM % 20000))
    # The port is free if nothing accepts a connection. The coordinator opens it.
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$candidate") 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}
port="${port:-$(free_port)}"

if [[ $dry_run ]]; then
  for ((id = 0; id < count; id++)); do
    printf 'T5X_LIKE_COORDINATOR=127.0.0.1:%s T5X_LIKE_NUM_PROCESSES=%s T5X_LIKE_PROCESS_ID=%s' "$port" "$count" "$id"
    printf ' %q' "$@"
    printf ' >%q 2>&1 &\n' "${log_dir:-LOG_DIR}/$id.log"
  done
  exit 0
fi

# ---- Processes -------------------------------------------------------------------------------------------------------
log_dir="${log_dir:-$(mktemp -d "${TMPDIR:-/tmp}/t5x_like_processes.XXXXXX")}"
mkdir -p "$log_dir"
export T5X_LIKE_COORDINATOR="127.0.0.1:$port" T5X_LIKE_NUM_PROCESSES="$count"
log "$count processes; their output is in $log_dir"

set -m # each process leads its own process group, which can be signaled as a whole
pids=()
for ((id = 0; id < count; id++)); do
  T5X_LIKE_PROCESS_ID="$id" "$@" >"$log_dir/$id.log" 2>&1 </dev/null &
  pids+=($!)
done
tail -n +1 -F "$log_dir/0.log" 2>/dev/null &
tail_pid=$!
set +m

# SIGTERM goes to the process only, because it may need its child processes to save. SIGKILL goes to the whole group.
terminate_all() {
  local pid
  for pid in ${pids[@]+"${pids[@]}"}; do kill -TERM "$pid" 2>/dev/null || true; done
}
kill_all() {
  local pid
  for pid in ${pids[@]+"${pids[@]}"}; do kill -KILL -- "-$pid" 2>/dev/null || true; done
}
deadline=
stop() {
  [[ $deadline ]] || deadline=$((SECONDS + grace))
  terminate_all
}
ctrl_c=
trap stop TERM
trap 'ctrl_c=1; stop' INT

running=("${!pids[@]}") code=0 failed=0 round=0 failed_in=0
while ((${#running[@]})); do
  round=$((round + 1))
  alive=()
  for id in "${running[@]}"; do
    if kill -0 "${pids[id]}" 2>/dev/null; then
      alive+=("$id")
      continue
    fi
    status=0
    wait "${pids[id]}" || status=$?
    ((status)) || continue
    log "process $id ended with exit code $status; its output is in $log_dir/$id.log"
    # Of processes that ended at almost the same time, one that has lost another is not the first.
    if ((code == 0 || (code == lost_peer && round == failed_in))); then
      code=$status failed=$id failed_in=$round
      stop
    fi
  done
  running=(${alive[@]+"${alive[@]}"})
  if [[ $deadline ]] && ((SECONDS >= deadline)) && ((${#running[@]})); then
    log "killing processes that have not exited after $grace s: ${running[*]}"
    kill_all
  fi
  ((${#running[@]})) && sleep 0.2
done

sleep 0.3 # let tail print the last output of process 0
kill -- "-$tail_pid" 2>/dev/null || true
[[ $ctrl_c ]] && ((code == 0)) && code=$interrupted
((failed)) && ((code != preempted)) && tail -n 20 "$log_dir/$failed.log" >&2
exit "$code"
