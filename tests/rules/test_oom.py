"""Each wording of an out-of-memory message gives its numbers and the right kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import missing

from gpudiag.rules.oom import EXPLANATIONS, LADDERS, OomMessage, fitting_share, notes, read

MIB, GIB = 2**20, 2**30
VARIANTS = Path(__file__).parents[3] / "shared/data/oom-messages/pytorch_oom_variants.tsv"
HOST_LINES = VARIANTS.parents[1] / "kernel-log/host_oom_lines.txt"


def only(text: str) -> OomMessage:
    (message,) = read([text])
    return message


def modern(requested: str, free: str, process: str, allocated: str, cached: str, extra: str = "") -> str:
    return (
        f"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested}. GPU 2 has a total "
        f"capacity of 79.10 GiB of which {free} is free. {extra}Including non-PyTorch memory, this process has "
        f"{process} memory in use. Of the allocated memory {allocated} is allocated by PyTorch, and {cached} is "
        "reserved by PyTorch but unallocated."
    )


def test_the_numbers_of_a_modern_message() -> None:
    message = only(modern("2.00 GiB", "1.10 GiB", "78.00 GiB", "70.00 GiB", "512.00 MiB"))
    assert (message.device, message.text_line) == (2, 1)
    assert message.requested_bytes == 2 * GIB
    assert message.capacity_bytes == round(79.10 * GIB)
    assert message.free_bytes == round(1.10 * GIB)
    assert message.allocated_bytes == 70 * GIB
    assert message.reserved_bytes == 70 * GIB + 512 * MIB
    assert message.process_bytes == 78 * GIB
    assert message.cached_bytes == 512 * MIB


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("shortage", modern("9.00 GiB", "0.50 GiB", "78.50 GiB", "77.50 GiB", "300.00 MiB")),
        ("fragmentation", modern("4.00 GiB", "0.50 GiB", "78.50 GiB", "60.00 GiB", "17.50 GiB")),
        ("another_process", modern("4.00 GiB", "0.50 GiB", "20.00 GiB", "19.00 GiB", "300.00 MiB")),
        ("absurd_request", modern("130206.04 GiB", "0.50 GiB", "20.00 GiB", "19.00 GiB", "300.00 MiB")),
        ("shortage", modern("90.00 GiB", "60.00 GiB", "19.00 GiB", "18.00 GiB", "300.00 MiB")),
        ("context_overhead", modern("1.00 GiB", "0.10 GiB", "78.90 GiB", "76.00 GiB", "100.00 MiB")),
        ("outside_allocator", "RuntimeError: CUDA error: out of memory"),
        ("unknown", "XPU out of memory. Tried to allocate <size>. GPU <n> has a total capacity of <size>"),
        ("host_oom", "Out of memory: Killed process 15784 (python3) total-vm:9kB, anon-rss:4096kB, file-rss:1024kB"),
        ("cgroup_oom", "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup."),
        ("cgroup_oom", "slurmstepd: error: Detected 3 oom_kill events in StepId=11300781.0."),
    ],
)  # fmt: skip
def test_the_kind_of_each_shortage(kind: str, text: str) -> None:
    assert only(text).kind == kind


def test_private_pools_that_could_have_served_the_request() -> None:
    text = modern("2.00 GiB", "0.10 GiB", "78.90 GiB", "77.00 GiB", "100.00 MiB").replace(
        "allocated by PyTorch, and", "allocated by PyTorch, with 30.00 GiB allocated in private pools, and"
    )
    message = only(text)
    assert message.kind == "private_pools"
    assert message.private_pool_bytes == 30 * GIB


def test_the_first_wording_counts_cached_memory_apart_from_allocated() -> None:
    message = only(
        "RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 1; 12.00 GiB total capacity; "
        "8.00 GiB already allocated; 10.00 MiB free; 3.00 GiB cached)"
    )
    assert message.reserved_bytes == 11 * GIB
    assert message.kind == "fragmentation"
    assert message.process_bytes is None


def test_in_a_container_the_listed_process_is_our_own() -> None:
    message = only(
        "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacty of 14.75 GiB of which 235.06 MiB "
        "is free. Process 20398 has 14.52 GiB memory in use. Of the allocated memory 14.06 GiB is allocated by "
        "PyTorch, and 330.42 MiB is reserved by PyTorch but unallocated."
    )
    assert message.kind == "shortage"
    assert message.process_bytes == round(14.52 * GIB)


def test_the_victim_of_the_kernel_is_named() -> None:
    message = only(
        "Memory cgroup out of memory: Killed process 63214 (uwsgi) total-vm:31kB, anon-rss:100kB, file-rss:20kB"
    )
    assert (message.victim, message.victim_pid, message.victim_resident_bytes) == ("uwsgi", 63214, 120 * 1024)


def test_colour_codes_and_line_numbers() -> None:
    lines = [
        "step 1",
        "\x1b[31mCUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 1.96 GiB total capacity)\x1b[0m",
    ]
    (message,) = read(lines)
    assert (message.text_line, message.requested_bytes) == (2, 20 * MIB)


def test_a_healthy_log_has_no_message() -> None:
    assert list(read(["loss 0.1", "memory: 40.00 GiB allocated", "out of patience, early stopping"])) == []


def test_every_kind_is_explained_and_has_a_ladder() -> None:
    assert set(EXPLANATIONS) == set(LADDERS)
    assert all(LADDERS.values())


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    list(read(["CUDA out of memory. Tried to allocate " + text]))


def test_every_recorded_wording_is_found() -> None:
    if not VARIANTS.exists():
        missing("the recorded messages are not beside this checkout")
    kinds = {}
    for row in VARIANTS.read_text().splitlines()[1:]:
        number, *_, text = row.split("\t")
        kinds[int(number)] = only(text).kind
    assert kinds == {
        1: "shortage", 3: "fragmentation", 4: "context_overhead", 5: "another_process", 7: "another_process",
        8: "fragmentation", 10: "fragmentation", 12: "shortage", 14: "another_process", 17: "absurd_request",
        18: "outside_allocator", 20: "unknown",
    }  # fmt: skip
    host_lines = HOST_LINES.read_text().splitlines()[1:]  # each is of another host
    assert [only(line).kind for line in host_lines] == [
        "cgroup_oom", "cgroup_oom", "host_oom", "cgroup_oom", "cgroup_oom", "cgroup_oom",
    ]  # fmt: skip


def test_the_share_of_the_batch_that_fits_follows_from_the_numbers() -> None:
    # 79.1 GiB card, the process holds 78 and wants 2 more; 0.75 of it is the context
    message = only(modern("2.00 GiB", "1.10 GiB", "78.00 GiB", "77.00 GiB", "512.00 MiB"))
    assert message.kind == "shortage"
    assert fitting_share(message) == pytest.approx((0.9 * 79.1 - 0.75) / (80 - 0.75), abs=1e-3)


def test_a_smaller_batch_is_not_advised_where_it_does_not_help() -> None:
    message = only(modern("2.00 GiB", "1.10 GiB", "78.00 GiB", "60.00 GiB", "17.00 GiB"))
    assert message.kind == "fragmentation"
    assert fitting_share(message) is None


def test_a_report_tells_each_kind_once_with_what_to_do_first() -> None:
    messages = [
        {"kind": "fragmentation", "text_line": 7},
        {"kind": "fragmentation", "text_line": 9},
        {"kind": "?"},
    ]
    told = [str(note) for note in notes(messages)]
    assert told[:2] == ["Out of memory in line 7 of the job's output.", str(EXPLANATIONS["fragmentation"])]
    assert "expandable_segments" in told[2]
    assert len(told) == 3


def test_the_report_of_a_recorded_job_does_not_ask_to_record_it() -> None:
    told = [str(note) for note in notes([{"kind": "unknown", "text_line": 13}])]
    assert told == [
        "Out of memory in line 13 of the job's output.",
        "The message has too few numbers to tell what was short.",
    ]
