"""The collectors of the host, on files written here and on this machine itself."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from fake_host import FakeHost
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.agent.clock import SystemClock
from gpudiag.agent.collectors import NothingToCollect, host_collectors
from gpudiag.agent.collectors.cpu import CpuCollector, parse_stat
from gpudiag.agent.collectors.disk import DiskCollector
from gpudiag.agent.collectors.infiniband import InfinibandCollector
from gpudiag.agent.collectors.memory import MemoryCollector
from gpudiag.agent.collectors.network import NetworkCollector, parse_net_dev
from gpudiag.agent.collectors.nfs import NfsCollector, parse_mountstats
from gpudiag.agent.collectors.pressure import PressureCollector
from gpudiag.agent.collectors.shm import ShmCollector
from gpudiag.storage.catalog import METRICS
from gpudiag.storage.sample import Frame

STAT = """cpu  {user} 0 100 {idle} {iowait} 0 0 50 0 0
cpu0 0 0 0 0 0 0 0 0 0 0
cpu1 0 0 0 0 0 0 0 0 0 0
intr 12345 0 0
ctxt 99
btime 1767000000
"""


def test_cpu_time_is_split_into_busy_and_waiting(host: FakeHost) -> None:
    collector = CpuCollector(host.root, "n1", host.clock)
    host.write("proc/stat", STAT.format(user=1000, idle=5000, iowait=200))
    assert host.values(collector) == {"cpus": 2}
    host.clock.sleep(1)
    host.write("proc/stat", STAT.format(user=1100, idle=5060, iowait=240))
    assert host.values(collector) == {"cpus": 2, "cpu_busy_ratio": 0.5, "cpu_iowait_ratio": 0.2}


def test_iowait_that_steps_back_counts_as_no_waiting(host: FakeHost) -> None:
    collector = CpuCollector(host.root, "n1", host.clock)
    host.write("proc/stat", STAT.format(user=1000, idle=5000, iowait=200))
    host.values(collector)
    host.clock.sleep(1)
    host.write("proc/stat", STAT.format(user=1050, idle=5050, iowait=190))
    values = host.values(collector)
    assert values["cpu_iowait_ratio"] == 0.0
    assert values["cpu_busy_ratio"] == 0.5


def test_time_taken_by_the_hypervisor_is_not_work(host: FakeHost) -> None:
    ticks, cpus = parse_stat("cpu 10 0 0 80 0 0 0 10 0 0\ncpu0 0\n")
    assert (ticks["steal"], cpus) == (10.0, 1)


def meminfo(available_kib: int) -> str:
    return f"MemTotal:       1000000 kB\nMemFree: 5 kB\nMemAvailable:   {available_kib} kB\nHugePages_Total:       0\n"


def test_memory_is_in_bytes_and_swap_traffic_in_bytes_per_second(host: FakeHost) -> None:
    collector = MemoryCollector(host.root, "n1", host.clock, page_bytes=4096)
    host.write("proc/meminfo", meminfo(600000))
    host.write("proc/vmstat", "pswpin 10\npswpout 0\npgmajfault 5\nworkingset_refault_file 100\n")
    assert host.values(collector) == {
        "memory_total_bytes": 1_024_000_000,
        "memory_available_bytes": 614_400_000,
    }
    host.clock.sleep(2)
    host.write("proc/vmstat", "pswpin 20\npswpout 4\npgmajfault 25\nworkingset_refault_file 100\n")
    values = host.values(collector)
    assert values["swap_in_bytes_per_second"] == 20480
    assert values["swap_out_bytes_per_second"] == 8192
    assert values["major_faults_per_second"] == 10
    assert values["refaults_per_second"] == 0


def test_old_kernels_name_refaults_without_their_kind(host: FakeHost) -> None:
    collector = MemoryCollector(host.root, "n1", host.clock)
    host.write("proc/meminfo", meminfo(1))
    host.write("proc/vmstat", "workingset_refault 100\n")
    host.values(collector)
    host.clock.sleep(1)
    host.write("proc/vmstat", "workingset_refault 107\n")
    values = host.values(collector)
    assert values["refaults_per_second"] == 7
    assert "swap_in_bytes_per_second" not in values


def test_available_memory_is_absent_where_the_kernel_does_not_tell(host: FakeHost) -> None:
    host.write("proc/meminfo", "MemTotal: 10 kB\n")
    assert host.values(MemoryCollector(host.root, "n1", host.clock)) == {"memory_total_bytes": 10240}


def pressure(some: int, full: int) -> str:
    return f"some avg10=0.00 avg60=0.00 avg300=0.00 total={some}\nfull avg10=0.0 avg60=0.0 avg300=0.0 total={full}\n"


def test_pressure_is_the_share_of_time_stalled(host: FakeHost) -> None:
    collector = PressureCollector(host.root, "n1", host.clock)
    host.write_all("proc/pressure", {"cpu": pressure(0, 0), "io": pressure(5, 5), "memory": pressure(0, 0)})
    assert host.values(collector) == {}
    host.clock.sleep(2)
    host.write("proc/pressure/io", pressure(1_000_005, 500_005))
    values = host.values(collector)
    assert values["pressure_io_some_ratio"] == 0.5
    assert values["pressure_io_full_ratio"] == 0.25
    assert values["pressure_memory_full_ratio"] == 0.0


def test_pressure_never_exceeds_one_when_the_counter_runs_ahead(host: FakeHost) -> None:
    collector = PressureCollector(host.root, "n1", host.clock)
    host.write("proc/pressure/cpu", pressure(0, 0))
    host.values(collector)
    host.clock.sleep(1)
    host.write("proc/pressure/cpu", pressure(1_000_400, 0))
    assert host.values(collector) == {"pressure_cpu_some_ratio": 1.0}


def diskstats(reads: int, sectors: int, milliseconds: int, busy: int, name: str = "nvme0n1") -> str:
    return f" 259 0 {name} {reads} 0 {sectors} {milliseconds} 0 0 0 0 0 {busy} 0 0 0 0 0\n"


def test_only_whole_physical_disks_are_counted(host: FakeHost) -> None:
    host.folder("sys/block/nvme0n1/device")
    host.folder("sys/block/dm-0")
    host.folder("sys/block/loop0")
    collector = DiskCollector(host.root, "n1", host.clock)
    names = ("nvme0n1", "nvme0n1p1", "dm-0", "loop0")
    host.write("proc/diskstats", "".join(diskstats(0, 0, 0, 0, name) for name in names))
    host.values(collector)
    host.clock.sleep(1)
    host.write("proc/diskstats", "".join(diskstats(10, 2000, 50, 250, name) for name in names))
    assert host.values(collector) == {
        "disk_read_bytes_per_second": 1_024_000,
        "disk_write_bytes_per_second": 0,
        "disk_read_await_seconds": 0.005,
        "disk_busy_ratio": 0.25,
    }


def test_read_latency_is_absent_when_nothing_was_read(host: FakeHost) -> None:
    collector = DiskCollector(host.root, "n1", host.clock)
    host.write("proc/diskstats", diskstats(5, 5, 5, 5, "sda"))
    host.values(collector)
    host.clock.sleep(1)
    assert "disk_read_await_seconds" not in host.values(collector)


def test_the_slowest_disk_gives_the_read_latency(host: FakeHost) -> None:
    collector = DiskCollector(host.root, "n1", host.clock)
    host.write("proc/diskstats", diskstats(0, 0, 0, 0, "sda") + diskstats(0, 0, 0, 0, "sdb"))
    host.values(collector)
    host.clock.sleep(1)
    host.write("proc/diskstats", diskstats(1000, 8, 100, 9, "sda") + diskstats(2, 8, 80, 90, "sdb"))
    assert host.values(collector)["disk_read_await_seconds"] == 0.04


def test_a_replaced_disk_costs_one_reading_and_no_negative_rate(host: FakeHost) -> None:
    collector = DiskCollector(host.root, "n1", host.clock)
    host.write("proc/diskstats", diskstats(100, 1000, 10, 10, "sda"))
    host.values(collector)
    host.clock.sleep(1)
    host.write("proc/diskstats", diskstats(1, 8, 1, 1, "sda"))
    assert "disk_read_bytes_per_second" not in host.values(collector)


def net_dev(eth0: int, lo: int = 0) -> str:
    counters = "{} 1 0 0 0 0 0 0 {} 1 0 0 0 0 0 0"
    return (
        "Inter-|   Receive |  Transmit\n face |bytes packets\n"
        f"    lo: {counters.format(lo, lo)}\n  eth0:{counters.format(eth0, 2 * eth0)}\n"
        f"docker0: {counters.format(eth0, eth0)}\n"
    )


def test_loopback_and_bridges_are_no_network_traffic(host: FakeHost) -> None:
    collector = NetworkCollector(host.root, "n1", host.clock)
    host.write("proc/net/dev", net_dev(1000))
    host.values(collector)
    host.clock.sleep(2)
    host.write("proc/net/dev", net_dev(3000, lo=10**9))
    assert host.values(collector) == {
        "network_rx_bytes_per_second": 1000,
        "network_tx_bytes_per_second": 2000,
    }


def test_process_one_shows_the_hosts_network(host: FakeHost) -> None:
    host.folder("sys/class/net/eth0/device")
    host.write("proc/net/dev", "h\nh\n eth9: 5 0 0 0 0 0 0 0 5 0 0 0 0 0 0 0\n")
    host.write("proc/1/net/dev", net_dev(0))
    collector = NetworkCollector(host.root, "n1", host.clock)
    host.values(collector)
    host.clock.sleep(1)
    host.write("proc/1/net/dev", net_dev(7))
    assert host.values(collector)["network_rx_bytes_per_second"] == 7


def test_infiniband_counts_words_of_four_bytes(host: FakeHost) -> None:
    counters = "sys/class/infiniband/mlx5_0/ports/1/counters"
    host.write_all(counters, {"port_rcv_data": "100\n", "port_xmit_data": "0\n"})
    collector = InfinibandCollector(host.root, "n1", host.clock)
    host.values(collector)
    host.clock.sleep(1)
    host.write_all(counters, {"port_rcv_data": "350\n", "port_xmit_data": "1\n"})
    assert host.values(collector) == {
        "infiniband_rx_bytes_per_second": 1000,
        "infiniband_tx_bytes_per_second": 4,
    }


def mountstats(ops: int, rtt: int, served: int) -> str:
    return f"""device proc mounted on /proc with fstype proc
device filer:/data mounted on /data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tbytes:\t1 2 3 4 {served} 6 7 8
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: {ops} {ops} 0 100 200 5 {rtt} 900 0
\t       WRITE: 9 9 0 100 200 5 99999 900 0
device /dev/sda1 mounted on / with fstype ext4
"""


def test_the_round_trip_of_nfs_reads_is_a_mean_over_the_interval(host: FakeHost) -> None:
    collector = NfsCollector(host.root, "n1", host.clock)
    host.write("proc/self/mountstats", mountstats(100, 5000, 0))
    host.values(collector)
    host.clock.sleep(2)
    host.write("proc/self/mountstats", mountstats(150, 7000, 1_000_000))
    assert host.values(collector) == {"nfs_read_bytes_per_second": 500_000, "nfs_read_rtt_seconds": 0.04}


def test_the_round_trip_is_absent_when_nothing_was_read(host: FakeHost) -> None:
    collector = NfsCollector(host.root, "n1", host.clock)
    host.write("proc/self/mountstats", mountstats(100, 5000, 7))
    host.values(collector)
    host.clock.sleep(1)
    assert host.values(collector) == {"nfs_read_bytes_per_second": 0}


def test_a_bind_mount_of_an_export_is_not_counted_twice() -> None:
    once = mountstats(3, 4, 5)
    assert parse_mountstats(once + once.replace("/data with", "/bind with")) == parse_mountstats(once)


def test_shared_memory_is_what_the_tmpfs_holds(host: FakeHost) -> None:
    space = os.statvfs_result((4096, 4096, 100, 60, 60, 10, 10, 10, 0, 255))
    collector = ShmCollector(host.root, "n1", statvfs=lambda path: space)
    assert host.values(collector) == {"shm_used_bytes": 40 * 4096}


@pytest.mark.parametrize(
    "kind",
    [CpuCollector, MemoryCollector, PressureCollector, DiskCollector, NetworkCollector, InfinibandCollector, NfsCollector],
)  # fmt: skip
def test_a_host_without_the_files_has_nothing_to_collect(host: FakeHost, kind: type[CpuCollector]) -> None:
    with pytest.raises(NothingToCollect):
        host.values(kind(host.root, "n1", host.clock))


def test_a_host_without_shared_memory_has_nothing_to_collect(host: FakeHost) -> None:
    with pytest.raises(NothingToCollect):
        host.values(ShmCollector(host.root, "n1"))


def test_rates_use_the_clock_that_never_steps(host: FakeHost) -> None:
    collector = NetworkCollector(host.root, "n1", host.clock)
    host.write("proc/net/dev", net_dev(0))
    host.values(collector)
    host.clock.sleep(1)
    host.clock.step(3600)
    host.write("proc/net/dev", net_dev(100))
    assert host.values(collector)["network_rx_bytes_per_second"] == 100


@given(st.text(max_size=300))
def test_garbled_tables_give_numbers_or_nothing(text: str) -> None:
    for parse in (parse_net_dev, parse_mountstats):
        try:
            found = parse(text)
        except ValueError:
            continue
        assert isinstance(found, dict)


def test_this_machine_is_sampled() -> None:
    frames = [frame for _ in range(2) for frame in sample_this_machine()]
    names = {name for frame in frames for name in frame.values}
    assert {"cpu_busy_ratio", "memory_available_bytes", "network_rx_bytes_per_second"} <= names
    for frame in frames:
        for name, value in frame.values.items():
            known = METRICS["node", name]
            assert math.isfinite(value)
            assert known.minimum <= value <= known.maximum, name


def sample_this_machine() -> list[Frame]:
    clock = SystemClock()
    collectors = host_collectors(Path("/"), "here", clock)
    frames: list[Frame] = []
    for _ in range(2):
        for collector in collectors:
            try:
                frames += [item for item in collector.collect(clock.now_ms()) if isinstance(item, Frame)]
            except NothingToCollect:
                continue
        clock.sleep(0.05)
    return frames
