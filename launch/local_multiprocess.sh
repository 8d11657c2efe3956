#!/usr/bin/env bash
# Runs one command as several processes of one job on this machine, as a slice or a cluster would over several machines.
#
#   launch/local_multiprocess.sh [OPTION…] -- t5x_like train …
#
#   -n, --num_processes=N   how many (default: 2)
#   --port=PORT             of the coordinator, process 0 (default: a free one)
#   --log_dir=FOLDER        where each process's output goes, as 0.log, 1.log, … (default: a new folder in /tmp)
#   --grace=SECONDS         from the request to leave until processes are killed (default: 20)
#   --dry_run               print what would be run
#
# Each process is told of the others by T5X_LIKE_COORDINATOR, T5X_LIKE_NUM_PROCESSES and T5X_LIKE_PROCESS_ID. Process 0's
# output is shown here too. When a process fails, the others are asked to leave, then killed; the exit code is that of the
# first one that failed, and 0 where none did. Ctrl-C and SIGTERM are passed on to all.
set -euo pipefail

preempted=75 # exit code, see launch/protocol.py

say() { printf 'local_multiprocess.sh: %s\n' "$*" >&2; }
mistake() {
  say "$@"
  exit 2
}
usage() { sed -n '2,/^set /{s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; }
check_number() { # check_number NAME VALUE LEAST MOST
  if ! [[ $2 =~ ^[0-9]{1,5}$ ]] || ((10#$2 < $3 || 10#$2 > $4)); then
    mistake "$1=$2: give a number from $3 to $4"
  fi
}

# ---- What was asked for ----------------------------------------------------------------------------------------------
count=2 port='' log_dir='' grace=20 dry_run=
while (($#)); do
  case "$1" in
    -h | --help) usage && exit 0 ;;
    --dry_run) dry_run=yes ;;
    --) break ;;
    -n | --num_processes | --port | --log_dir | --grace)
      (($# > 1)) || mistake "$1 needs a value"
      set -- "${1/#-n/--num_processes}=$2" "${@:3}"
      continue
      ;;
    --num_processes=*) count="${1#*=}" ;;
    --port=*) port="${1#*=}" ;;
    --log_dir=*) log_dir="${1#*=}" ;;
    --grace=*) grace="${1#*=}" ;;
    *) mistake "there is no option $1; the command is written after --" ;;
  esac
  shift
done
[[ ${1:-} == -- ]] && shift
(($#)) || mistake "say what to run: $0 -n 2 -- t5x_like train …"
check_number --num_processes "$count" 1 1024
check_number --grace "$grace" 0 99999
[[ -z $port ]] || check_number --port "$port" 1024 65535

free_port() {
  local candidate
  while :; do
    candidate=$((20000 + RANDOM % 20000))
    # Nobody answers there: free. (Opening the port for good is the coordinator's.)
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

# ---- The processes ---------------------------------------------------------------------------------------------------
log_dir="${log_dir:-$(mktemp -d "${TMPDIR:-/tmp}/t5x_like_processes.XXXXXX")}"
mkdir -p "$log_dir"
export T5X_LIKE_COORDINATOR="127.0.0.1:$port" T5X_LIKE_NUM_PROCESSES="$count"
say "$count processes; their output is in $log_dir"

set -m # each process is the leader of a group of its own, which can be signalled as a whole
pids=()
for ((id = 0; id < count; id++)); do
  T5X_LIKE_PROCESS_ID="$id" "$@" >"$log_dir/$id.log" 2>&1 </dev/null &
  pids+=($!)
done
tail -n +1 -F "$log_dir/0.log" 2>/dev/null &
shown=$!
set +m

# A process is asked alone, as it may need its own helpers to save; it is killed with all that it started.
ask_all() {
  local pid
  for pid in ${pids[@]+"${pids[@]}"}; do kill -TERM "$pid" 2>/dev/null || true; done
}
kill_all() {
  local pid
  for pid in ${pids[@]+"${pids[@]}"}; do kill -KILL -- "-$pid" 2>/dev/null || true; done
}
deadline=
leave() {
  [[ $deadline ]] || deadline=$((SECONDS + grace))
  ask_all
}
trap leave TERM INT

running=("${!pids[@]}") code=0 failed=0
while ((${#running[@]})); do
  left=()
  for id in "${running[@]}"; do
    if kill -0 "${pids[id]}" 2>/dev/null; then
      left+=("$id")
      continue
    fi
    status=0
    wait "${pids[id]}" || status=$?
    ((status)) || continue
    say "process $id ended with exit code $status; its output is in $log_dir/$id.log"
    if ((code == 0)); then
      code=$status failed=$id
      leave
    fi
  done
  running=(${left[@]+"${left[@]}"})
  if [[ $deadline ]] && ((SECONDS >= deadline)) && ((${#running[@]})); then
    say "killing what has not left after $grace s: process ${running[*]}"
    kill_all
  fi
  ((${#running[@]})) && sleep 0.2
done

sleep 0.3 # what process 0 wrote last is shown yet
kill -- "-$shown" 2>/dev/null || true
((failed)) && ((code != preempted)) && tail -n 20 "$log_dir/$failed.log" >&2
exit "$code"
