"""Lines of the kernel log in every shape that drivers and kernels give them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.agent.kernel_lines import KernelFact, KernelLines, normal_bdf

CAPTURES = Path(__file__).parents[2].parent / "shared" / "data" / "kernel-log"


def read(*lines: str, step_ms: int = 1) -> list[KernelFact]:
    parser = KernelLines()
    facts = [fact for number, line in enumerate(lines) for fact in parser.feed(line, 1000 + number * step_ms)]
    return facts + parser.settle(10**9)


def only(*lines: str) -> KernelFact:
    [fact] = read(*lines)
    return fact


def test_an_xid_with_its_process() -> None:
    fact = only("NVRM: Xid (PCI:0000:38:00): 43, pid=2924364, name=pt_main_thread, Ch 00000008")
    assert (fact.kind, fact.code, fact.bdf) == ("xid", 43, "0000:38:00")
    assert fact.detail == {"pid": 2924364, "process": "pt_main_thread", "text": "Ch 00000008"}


def test_an_xid_whose_process_is_unknown() -> None:
    fact = only(
        "NVRM: Xid (PCI:0000:38:00): 13, pid='<unknown>', name=<unknown>, "
        "Graphics SM Warp Exception on (GPC 9, TPC 5, SM 0): Out Of Range Address"
    )
    assert fact.detail["gpc"] == 9
    assert fact.detail["tpc"] == 5
    assert "pid" not in fact.detail
    assert "process" not in fact.detail


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (0000:05:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:05:00): 79, pid=1234, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:00000000:05:00.0): 79",
        "[ 1234.5] NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=a b, GPU has fallen off the bus.",
        "nvidia 0000:05:00.0: NVRM: Xid (PCI:0000:05:00): 79 GPU has fallen off the bus.",
    ],
)
def test_shapes_of_one_xid(line: str) -> None:
    fact = only(line)
    assert (fact.kind, fact.code, fact.bdf) == ("xid", 79, "0000:05:00")


def test_nvlink_five_names_unit_severity_and_link() -> None:
    fact = only(
        "NVRM: Xid (PCI:0018:01:00): 149, pid='<unknown>', name=<unknown>, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 "
        "(0x00104e0b 0x00000000 0x00000000)"
    )
    assert fact.bdf == "0018:01:00"
    assert (fact.detail["unit"], fact.detail["fatal"], fact.detail["link"]) == ("NETIR_LINK_EVT", True, 9)


def test_most_nvlink_five_reports_are_not_fatal() -> None:
    fact = only("NVRM: Xid (PCI:0000:df:00): 145, RLW_REMAP, Nonfatal, XC1, i4, Link 17 (0x004 0x0)")
    assert (fact.code, fact.detail["fatal"], fact.detail["link"]) == (145, False, 17)


def test_a_clean_up_names_the_xid_before() -> None:
    fact = only("NVRM: Xid (PCI:0000:38:00): 45, pid=7, name=python, Ch 0000000c, caused by previous Xid 31")
    assert fact.detail["caused_by"] == 31


def test_the_drivers_own_advice_is_read() -> None:
    fact = only(
        "NVRM: Xid (PCI:0000:38:00): 154, pid=7, name=a, GPU recovery action changed from 0x0 (None) to 0x2 "
        "(Node Reboot Required)"
    )
    assert fact.detail["recovery_action"] == "Node Reboot Required"


def test_a_switch_error_is_one_fact_whatever_lines_follow() -> None:
    fact = only(
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 28006, Data {0x00140004, 0x00100000}",
    )
    assert (fact.kind, fact.code, fact.bdf) == ("sxid", 28006, "0000:05:00")
    assert (fact.detail["switch"], fact.detail["fatal"], fact.detail["link"]) == (3, False, 46)


LOST = (
    "NVRM: The NVIDIA GPU 0000:9b:00.0",
    "NVRM: (PCI ID: 10de:20b0) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


@pytest.mark.parametrize(
    "lines",
    [
        LOST,
        ("\n".join(LOST),),
        ("NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.",),
        ("NVRM: GPU at PCI:0000:9b:00: GPU has fallen off the bus.",),
    ],
)
def test_a_gpu_can_fall_off_the_bus_without_an_xid(lines: tuple[str, ...]) -> None:
    fact = only(*lines)
    assert (fact.kind, fact.bdf) == ("fallen_off_bus", "0000:9b:00")


def test_a_loss_with_and_without_its_xid_is_one_loss() -> None:
    xid = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
    plain = "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."
    assert [fact.kind for fact in read(xid, plain, *LOST)] == ["xid"]
    assert [fact.kind for fact in read(plain, xid)] == ["fallen_off_bus"]
    assert [fact.kind for fact in read(plain, xid, step_ms=61_000)] == ["fallen_off_bus", "xid"]


def test_losses_of_two_gpus_are_two() -> None:
    first = "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."
    assert len(read(first, first.replace("9b", "9c"))) == 2


@pytest.mark.parametrize(
    ("line", "kind", "bdf"),
    [
        (
            (
                "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).  "
                "The GPU likely needs to be reset."
            ),
            "gsp_error",
            "0000:9b:00",
        ),
        ("NVRM: GPU0 GSP heartbeat timed out", "gsp_error", ""),
        ("NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x62:0x40:2393)", "gpu_init_failed", "0000:9b:00"),
        (
            "NVRM: API mismatch: the client has the version 550.54.15, but",
            "driver_mismatch",
            "",
        ),
    ],
)
def test_other_troubles_of_the_driver(line: str, kind: str, bdf: str) -> None:
    fact = only(line)
    assert (fact.kind, fact.bdf) == (kind, bdf)


MEMCG = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0-1,"
    "oom_memcg=/system.slice/slurmstepd.scope/job_42,task_memcg=/system.slice/slurmstepd.scope/job_42/step_0/task_0,"
    "task=pt_main_thread,pid=461754,uid=1000"
)
KILLED = (
    "Memory cgroup out of memory: Killed process 461754 (pt_main_thread) total-vm:3149468kB, anon-rss:164992kB, "
    "file-rss:52176kB, shmem-rss:92kB, UID:1000 pgtables:1372kB oom_score_adj:986"
)


def test_both_lines_of_a_kill_are_one_fact() -> None:
    fact = only(MEMCG, KILLED)
    assert fact.kind == "oom_kill"
    assert fact.detail["pid"] == 461754
    assert fact.detail["process"] == "pt_main_thread"
    assert fact.detail["cgroup"] == "/system.slice/slurmstepd.scope/job_42/step_0/task_0"
    assert fact.detail["anon_rss_bytes"] == 164992 * 1024
    assert fact.detail["shmem_rss_bytes"] == 92 * 1024


@pytest.mark.parametrize("lines", [(MEMCG,), (KILLED,)])
def test_one_line_of_a_kill_is_enough(lines: tuple[str, ...]) -> None:
    assert only(*lines).detail["pid"] == 461754


@pytest.mark.parametrize(
    ("line", "pid", "process"),
    [
        ("Out of memory: Killed process 15784 (python3) total-vm:11964kB, anon-rss:4288kB", 15784, "python3"),
        ("Out of memory: Killed process 123, UID 48, (httpd).", 123, "httpd"),
        ("Out of memory (oom_kill_allocating_task): Killed process 9 (a (b) c) total-vm:1kB", 9, "a (b"),
        ("Out of memory: Kill process 456 (python) score 50 or sacrifice child", 456, "python"),
        ("Killed process 77 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB", 77, "python"),
    ],
)
def test_kills_by_kernels_of_all_ages(line: str, pid: int, process: str) -> None:
    fact = only(line)
    assert fact.kind == "oom_kill"
    assert (fact.detail["pid"], fact.detail["process"]) == (pid, process)


def test_an_announced_kill_and_its_report_are_one() -> None:
    facts = read(
        "Out of memory: Kill process 456 (python) score 50 or sacrifice child",
        "Killed process 456 (python) total-vm:100kB, anon-rss:7kB, file-rss:0kB",
    )
    assert [fact.detail["anon_rss_bytes"] for fact in facts] == [7 * 1024]


def test_reaping_a_killed_process_is_not_another_kill() -> None:
    assert (
        read("oom_reaper: reaped process 345646 (vector), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB")
        == []
    )


def test_a_crash_inside_a_gpu_library() -> None:
    fact = only(
        "pt_main_thread[2536443]: segfault at 7f ip 00 sp 00 error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]"
    )
    assert (fact.kind, fact.detail["library"]) == ("gpu_library_crash", "libnccl.so.2")
    assert read("bash[1]: segfault at 7f ip 00 sp 00 error 4 in libc.so.6[7f7c7ac00000+d3d3000]") == []


def test_the_log_itself_tells_which_gpu_is_where() -> None:
    parser = KernelLines()
    assert parser.feed("NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d", 0) == []
    assert parser.learned == {"0000:9b:00": "GPU-509665ad-b600-ac93-3616-d754b23d636d"}


@pytest.mark.parametrize(
    "text", ["0000:9b:00", "0000:9B:00.0", "00000000:9B:00.0", "PCI:0000:9b:00", "00000000:9b:00"]
)
def test_pci_addresses_are_compared_in_one_form(text: str) -> None:
    assert normal_bdf(text) == "0000:9b:00"


@given(st.lists(st.text(max_size=200), max_size=20))
def test_any_text_is_read_without_an_error(lines: list[str]) -> None:
    read(*lines)


_PARTS = st.sampled_from(
    ["NVRM: Xid (PCI:0000:38:00): ", "79, ", "pid=", "'<unknown>'", "name=", "a", "(", ")", "Killed process ", "1",
     "oom-kill:constraint=", "SXid (PCI:", "Out of memory: ", "task=", ",pid=", "fallen off the bus", "GPU ", "\n"]
)  # fmt: skip


@given(st.lists(_PARTS, max_size=30).map("".join))
def test_torn_lines_are_read_without_an_error(line: str) -> None:
    read(line)


@given(
    st.integers(0, 0xFFFF),
    st.integers(0, 255),
    st.integers(0, 31),
    st.integers(1, 200),
    st.integers(1, 4_194_304),
    st.text("abcdefghijklmnopqrstuvwxyz_-.0123456789", min_size=1, max_size=15),
    st.booleans(),
)
def test_every_xid_line_is_read_back(
    domain: int, bus: int, slot: int, code: int, pid: int, name: str, prefixed: bool
) -> None:
    address = f"{domain:04x}:{bus:02x}:{slot:02x}"
    fact = only(f"NVRM: Xid ({'PCI:' * prefixed}{address}): {code}, pid={pid}, name={name}, some text")
    assert (fact.code, fact.bdf, fact.detail["pid"]) == (code, address, pid)
    assert (fact.detail["process"], fact.detail["text"]) == (name, "some text")


def captured(name: str) -> list[str]:
    path = CAPTURES / name
    if not path.exists():
        pytest.skip("captures of other people's machines are not part of the repository")
    return path.read_text().splitlines()


def test_a_captured_gsp_failure() -> None:
    parser = KernelLines()
    facts = [fact for line in captured("dmesg-with-xid-119.log") for fact in parser.feed(line, 0)]
    assert [fact.code for fact in facts if fact.kind == "xid"] == [119] * 5
    assert "gsp_error" in {fact.kind for fact in facts}
    assert parser.learned["0000:9b:00"].startswith("GPU-509665ad")


def test_captured_memory_faults_and_kills() -> None:
    lines = captured("memory-dmesg.decode.iso.log")
    facts = read(*lines, step_ms=60_000)
    assert [fact.code for fact in facts if fact.kind == "xid"] == [13] * 16 + [43]
    kills = [fact for fact in facts if fact.kind == "oom_kill"]
    assert len(kills) == sum(bool(re.search(r"oom-kill:|Kill(ed)? process", line)) for line in lines)


def test_captured_kernel_log_without_any_trouble() -> None:
    assert read(*captured("kmsg.1.log")) == []


def test_captured_out_of_memory_lines() -> None:
    kernel = [line.partition("] ")[2] for line in captured("host_oom_lines.txt") if "slurmstepd" not in line]
    facts = read(*kernel, step_ms=60_000)
    assert {fact.detail["pid"] for fact in facts if fact.kind == "oom_kill"} == {461754, 63214, 15784}
