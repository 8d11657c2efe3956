#!/usr/bin/env bash
# Sets what the kernel of a TPU VM needs for training. launch/worker.py runs it on each worker before each start,
# because a reboot resets the settings. A setting that cannot be changed is reported and does not stop the start.
#
#   launch/host_settings.sh NUM_SLICES
#
# v5e, v6e and tpu7x: transparent hugepages, without which the TPU runtime starts slowly (jax/_src/cloud_tpu_init.py).
# Several slices: settings of TCP for the data-center network, after MaxText's rto_setup.sh.
# Several slices, and a VM whose TPU chips belong to one of several NUMA nodes: prints a command that runs the job on the
# CPUs of this node. Memory is then allocated there, too, as long as there is any.
#
# Environment variables, for tests:
#   SYS, PROC   the file systems /sys and /proc
set -uo pipefail

slices="${1:-1}" sys="${SYS:-/sys}" proc="${PROC:-/proc}"
google=0x1ae0 v5e=0x0063 v6e=0x006f tpu7x=0x0076                  # PCI ids from jax/_src/hardware_utils.py
tpus=" 0x005e 0x0062 $v5e $v6e $tpu7x " with_hugepages=" $v5e $v6e $tpu7x " # the first two are v4 and v5p
log() { printf 'host_settings.sh: %s\n' "$*" >&2; }
sudo="$(command -v sudo || true)"

set_value() { # set_value PATH VALUE
  [[ -e $1 ]] || return 0
  printf '%s\n' "$2" | $sudo tee "$1" >/dev/null 2>&1 || log "$1 cannot be set to $2"
}

# ---- TPU chips of this VM --------------------------------------------------------------------------------------------
nodes='' hugepages=
for device in "$sys"/bus/pci/devices/*; do
  [[ -r $device/vendor && $(<"$device/vendor") == "$google" ]] || continue
  id="$(<"$device/device")"
  [[ $tpus == *" $id "* ]] || continue
  [[ $with_hugepages == *" $id "* ]] && hugepages=yes
  [[ -r $device/numa_node ]] && nodes+="$(<"$device/numa_node")"$'\n'
done
[[ $hugepages ]] && set_value "$sys/kernel/mm/transparent_hugepage/enabled" always
((slices > 1)) || exit 0

# ---- Network between the slices --------------------------------------------------------------------------------------
set_value "$proc/sys/net/ipv4/tcp_slow_start_after_idle" 0 # steps send in bursts
set_value "$proc/sys/net/ipv4/tcp_no_metrics_save" 1       # a congested step does not slow the next connection
set_value "$proc/sys/net/ipv4/tcp_mtu_probing" 0
set_value "$proc/sys/net/ipv4/tcp_max_syn_backlog" 4096 # all workers connect at the same time
set_value "$proc/sys/net/core/somaxconn" 4096
set_value "$proc/sys/net/core/optmem_max" 131072 # control memory of zero-copy sends
set_value "$sys/module/tcp_cubic/parameters/hystart_detect" 2
command -v ip >/dev/null || log "ip not found: rto_min of the default route is not set"
route="$(ip route show default 2>/dev/null | head -n 1)"
if [[ $route && $route != *rto_min* ]]; then
  # shellcheck disable=SC2086 # the route consists of several words
  $sudo ip route change $route rto_min 5ms >/dev/null 2>&1 || log "rto_min of the default route cannot be set"
fi

# ---- NUMA node -------------------------------------------------------------------------------------------------------
node="$(printf '%s' "$nodes" | sort -u)"
cpus="$sys/devices/system/node/node$node/cpulist"
if [[ $node =~ ^[0-9]+$ && -r $cpus && -e $sys/devices/system/node/node1 ]]; then
  printf 'taskset --cpu-list %s\n' "$(<"$cpus")"
fi
exit 0
