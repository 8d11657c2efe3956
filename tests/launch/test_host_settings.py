"""Tests for launch/host_settings.sh with fake file systems /sys and /proc."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).resolve().parents[2] / "launch/host_settings.sh"
GOOGLE, GVNIC, V4, V6E = "0x1ae0", "0x0042", "0x005e", "0x006f"


@pytest.fixture
def host(tmp_path):
    """Returns a function that runs the script on a host with two NUMA nodes and PCI devices (device id, node)."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sudo", '"$@"'), ("ip", f'echo "$*" >>{tmp_path}/ip; echo "default via 10.0.0.1 dev ens9"')):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)

    def write(path: str, text: str = "?") -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return file

    def run(slices: int, *devices: tuple[str, int]) -> str:
        for index, (device, node) in enumerate([(GVNIC, 0), *devices]):
            for name, text in (("vendor", GOOGLE), ("device", device), ("numa_node", str(node))):
                write(f"sys/bus/pci/devices/{index}/{name}", text)
        result = subprocess.run(
            ["bash", SCRIPT, str(slices)],
            env={"PATH": f"{programs}:/usr/bin:/bin", "SYS": f"{tmp_path}/sys", "PROC": f"{tmp_path}/proc"},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert result.returncode == 0
        run.log = result.stderr
        return result.stdout

    run.hugepages = write("sys/kernel/mm/transparent_hugepage/enabled")
    run.slow_start = write("proc/sys/net/ipv4/tcp_slow_start_after_idle")
    run.routes = tmp_path / "ip"
    for node, cpus in ((0, "0-3"), (1, "4-7")):
        write(f"sys/devices/system/node/node{node}/cpulist", cpus)
    return run


def test_hugepages_are_enabled_for_v5e_and_newer(host):
    assert host(1, (V4, 0)) == ""
    assert host.hugepages.read_text() == "?\n"
    assert host(1, (V6E, 0)) == ""
    assert host.hugepages.read_text() == "always\n"
    assert host.slow_start.read_text() == "?\n" and not host.routes.exists(), "one slice does not use the network"


def test_several_slices_set_tcp_and_bind_to_the_node_of_the_chips(host):
    assert host(2, (V6E, 1), (V6E, 1)) == "taskset --cpu-list 4-7\n"
    assert host.slow_start.read_text() == "0\n"
    assert "route change default via 10.0.0.1 dev ens9 rto_min 5ms" in host.routes.read_text()


def test_chips_on_several_nodes_are_not_bound(host):
    assert host(2, (V6E, 0), (V6E, 1)) == ""


def test_setting_that_cannot_be_changed_is_reported(host):
    host.hugepages.unlink()
    host.hugepages.mkdir()
    assert host(1, (V6E, 0)) == ""
    assert "transparent_hugepage/enabled cannot be set to always" in host.log
