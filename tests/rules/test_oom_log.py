"""Logs of any size, cut anywhere, by many writers: each event once, at its line, in bounded memory."""

from __future__ import annotations

import io
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.rules.oom import OomLog, OomMessage, read, read_stream
from gpudiag.rules.oom_events import EVENTS_KEPT
from gpudiag.rules.oom_lines import LONGEST_LINE

MIB, GIB = 2**20, 2**30
WHOLE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU {} has a total capacity of 80.00 GiB of which 1.00 GiB "
    "is free. Including non-PyTorch memory, this process has 79.00 GiB memory in use. Of the allocated memory 77.00 GiB is allocated by "
    "PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
)
NCCL = "n1:10:20 [2] include/alloc.h:178 NCCL WARN"


def log_of(text: bytes) -> list[OomMessage]:
    return read_stream(io.BytesIO(text))


@pytest.mark.parametrize(
    "lines",
    [
        ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a", "total capacity of 80.00 GiB of which 1.00",
         "GiB is free. Including non-PyTorch memory, this process has 79.00 GiB memory in use.", ("Of the allocated memory 77.00 GiB is allocated by "
         "PyTorch, and 500.00 MiB is"), "reserved by PyTorch but unallocated."],
        ["│ torch.OutOfMemoryError: CUDA out of memory. Tried to     │", "│ allocate 2.00 GiB. GPU 5 has a total capacity of 80.00 GiB │",
         "│ of which 1.00 GiB is free. Including non-PyTorch memory,   │", "│ this process has 79.00 GiB memory in use. Of the allocated │",
         "│ memory 77.00 GiB is allocated by PyTorch, and 500.00 MiB is│", "│ reserved by PyTorch but unallocated.                       │"],
        ["CUDA out of memory. Tried to allocate 2.00 GiB.", "GPU 5 has a total capacity of 80.00 GiB of which 1.00 GiB is free.",
         "Including non-PyTorch memory, this process has 79.00 GiB memory in use.",
         "Of the allocated memory 77.00 GiB is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated."],
    ],
)  # fmt: skip
def test_a_message_wrapped_over_lines_is_one(lines: list[str]) -> None:
    (message,) = read(["step 1", *lines, "memory: 3.00 GiB free", "step 2"])
    assert (message.kind, message.text_line, message.device) == ("context_overhead", 2, 5)
    assert (message.requested_bytes, message.capacity_bytes, message.free_bytes) == (2 * GIB, 80 * GIB, GIB)
    assert (message.process_bytes, message.reserved_bytes) == (79 * GIB, 77 * GIB + 500 * MIB)


def test_wrapped_messages_of_ranks_that_write_into_each_other_are_told_apart() -> None:
    lines = [
        "[rank1]: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of",
        "[rank2]: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 2 has a total capacity of",
        "[rank1]: 80.00 GiB of which 1.00 GiB is free.",
        "[rank2]: 40.00 GiB of which 2.00 GiB is free.",
    ]
    # the last rank to begin is the open one; the first keeps what its own line said
    first, second = read(lines)
    assert (first.device, first.requested_bytes, first.capacity_bytes) == (1, 2 * GIB, None)
    assert (second.device, second.requested_bytes, second.capacity_bytes) == (2, 3 * GIB, 40 * GIB)


def test_a_message_without_numbers_takes_none_from_lines_that_are_not_its_own() -> None:
    (message,) = read(["RuntimeError: CUDA out of memory.", "gpu memory: 40.00 GiB free, 12.00 GiB reserved"])
    assert (message.kind, message.free_bytes, message.reserved_bytes) == ("unknown", None, None)


def test_the_allocator_of_the_driver_tells_its_numbers_below() -> None:
    (message,) = read([
        "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
        "Currently allocated     : 9.25 GiB", "Requested               : 4.00 GiB", "Device limit            : 16.00 GiB",
        "Free (according to CUDA): 0 bytes", "PyTorch limit (set by user-supplied memory fraction)", "                        : 17179869184.00 GiB",
    ])  # fmt: skip
    assert (message.kind, message.device, message.requested_bytes) == ("unknown", 0, 4 * GIB)
    assert (message.allocated_bytes, message.capacity_bytes, message.free_bytes) == (
        round(9.25 * GIB),
        16 * GIB,
        0,
    )
    assert message.limit_bytes is None


def test_what_a_builder_can_do_without_is_no_event() -> None:
    failing = [
        "[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory (no further information)",
        "[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory (no further information)",
        "[TRT] [W] Requested amount of GPU memory (8589934592 bytes) could not be allocated. There may not be enough free memory.",
    ]
    skipping = "[TRT] [W] Skipping tactic 3 due to insufficient memory on requested size of 8589934592 detected for tactic 0x4."
    assert list(read([*failing, skipping])) == []
    (message,) = read([*failing, "[TRT] [E] 10: Could not find any implementation for node"])
    assert (message.kind, message.requested_bytes) == ("outside_allocator", 8 * GIB)


def test_an_event_told_by_traceback_launcher_and_error_file_is_one() -> None:
    text = WHOLE.format("2.00", 1)
    (message,) = read([f"[rank1]: {text}", "step", text, "E1201 failed (exitcode: 1)", f"  error: {text}"])
    assert (message.text_line, message.told) == (1, 3)


def test_ranks_that_ran_out_on_their_own_gpus_are_events_of_their_own() -> None:
    messages = list(read([f"[rank{rank}]: {WHOLE.format('2.00', rank)}" for rank in range(4)] * 2))
    assert [(message.device, message.text_line, message.told) for message in messages] == [
        (rank, rank + 1, 2) for rank in range(4)
    ]


def test_the_layers_above_a_refused_allocation_add_no_event_but_their_numbers() -> None:
    (message,) = read([
        f"{NCCL} Cuda failure 2 'out of memory'",
        f"{NCCL} Failed to CUDA calloc async 6291456 bytes",
        "[rank2]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:10, unhandled cuda error, NCCL version 2.26.2",
        "[rank2]: ncclUnhandledCudaError: Call to CUDA function failed.",
        "[rank2]: Last error:",
        "[rank2]: Cuda failure 2 'out of memory'",
    ])  # fmt: skip
    assert (message.kind, message.text_line, message.requested_bytes) == ("library_memory", 1, 6 * MIB)
    assert (message.device, message.told) == (2, 3)


def test_a_later_bare_error_is_the_same_event_and_one_far_away_is_not() -> None:
    (message,) = read([WHOLE.format("2.00", 0), "RuntimeError: CUDA error: out of memory"])
    assert (message.kind, message.told) == ("context_overhead", 2)
    assert (
        len(list(read([WHOLE.format("2.00", 0), *["step"] * 300, "RuntimeError: CUDA error: out of memory"])))
        == 2
    )


def test_an_allocator_that_asks_for_less_and_less_runs_out_once() -> None:
    lines = [
        f"E failed to allocate {12 * 0.9**i:.2f}G from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory"
        for i in range(8)
    ]
    lines.insert(1, "Reported by CUDA: Free memory/Total memory: 1000/17179869184")
    (message,) = read(lines)
    assert (message.requested_bytes, message.told) == (12 * GIB, 8)
    assert (message.free_bytes, message.capacity_bytes) == (1000, 16 * GIB)


def test_a_kill_is_one_event_however_many_layers_tell_it() -> None:
    (message,) = read([
        "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
        "srun: error: n1: task 0: Out Of Memory",
        "kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/job_7,task_memcg=/job_7,task=python3,pid=4711,uid=0",
        "kernel: Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:4kB, file-rss:2kB, shmem-rss:0kB",
    ])  # fmt: skip
    assert (message.kind, message.text_line, message.told) == ("cgroup_oom", 1, 5)
    assert message.victim == "python3"


def test_a_full_shared_memory_is_told_twice_by_pytorch() -> None:
    (message,) = read([
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
    ])  # fmt: skip
    assert (message.kind, message.victim_pid, message.told) == ("shared_memory_full", 9, 2)


def test_kills_of_several_processes_are_several_events() -> None:
    lines = [f"Out of memory: Killed process {pid} (a) total-vm:1kB, anon-rss:1kB" for pid in (5, 6)]
    assert [message.victim_pid for message in read(lines)] == [5, 6]


def test_two_messages_in_one_line_of_an_escaped_log() -> None:
    line = '{"log":"' + WHOLE.format("2.00", 0) + "\\n" + WHOLE.format("3.00", 1) + '"}'
    assert [(message.device, message.text_line) for message in read([line])] == [(0, 1), (1, 1)]


def test_what_was_found_so_far_can_be_asked_while_the_log_goes_on() -> None:
    log = OomLog()
    log.feed(b"x\nCUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert [message.requested_bytes for message in log.messages()] == [2 * GIB]
    log.feed(b"GPU 3 has a total capacity of 80.00 GiB of which 1.00 GiB is free.\n")
    (message,) = log.messages()
    assert (message.device, message.told) == (3, 1)


CRLF = b"\r\n"
LOG = CRLF.join([
    b"start", b"\x1b[1mstep\x1b[0m 1\r 10%\r 20%", WHOLE.format("2.00", 1).encode(), b"\xff\xfe", b"", WHOLE.format("3.00", 2).encode(), b"end",
])  # fmt: skip


@given(st.lists(st.integers(0, len(LOG)), max_size=12))
def test_where_the_pieces_of_a_log_are_cut_changes_nothing(cuts: list[int]) -> None:
    log = OomLog()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(LOG)], strict=True):
        log.feed(LOG[start:end])
    log.close()
    assert [(message.device, message.text_line) for message in log.messages()] == [(1, 3), (2, 6)]


@given(st.binary(max_size=2000), st.binary(max_size=2000))
def test_any_bytes_around_a_message_raise_nothing_and_hide_nothing(before: bytes, after: bytes) -> None:
    found = log_of(before + b"\n\n\n" + WHOLE.format("2.00", 1).encode() + b"\n" + after)
    assert (before.count(b"\n") + 4, 1) in [(message.text_line, message.device) for message in found]


WORDS = st.sampled_from([
    "CUDA out of memory", ". Tried to allocate ", "2.00 GiB", " total capacity", "GPU 0", "; ", " free", "(", ")", "RuntimeError: ", "CUDA error: ",
    "out of memory", "MemoryError", "std::bad_alloc", "oom-kill:constraint=", "Killed process 5 (a)", "\n", "\r", "[rank0]: ", "9" * 40, "1,2,3 bytes",
    "shape[1,2", "]", "exceeded memory limit (", "5 > 4", "StepId=1 ", "DataLoader worker (pid ", "Failed to CUDA calloc ", "\x1b[", '"', "\\n",
    "failed to alloc ", "CUDA_ERROR_OUT_OF_MEMORY", "1e400", "\x00", "总显存", "Free memory on device (", "0/0 GiB", "out of resource: shared memory, Required: ",
])  # fmt: skip


@given(st.lists(WORDS, max_size=30))
def test_words_of_messages_in_any_order_never_raise(words: list[str]) -> None:
    for message in log_of("".join(words).encode()):
        assert message.text_line >= 1
        assert all(value is None or value >= 0 for value in vars(message).values() if isinstance(value, int))


SIZES = st.integers(0, 10**7).map(lambda hundredths: hundredths / 100)
UNITS = st.sampled_from([("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40)])


def formatted(size: tuple[float, tuple[str, int]]) -> str:
    return f"{size[0]:.2f} {size[1][0]}"


def in_bytes(size: tuple[float, tuple[str, int]]) -> int:
    return round(float(f"{size[0]:.2f}") * size[1][1])


SIZE = st.tuples(SIZES, UNITS)


@given(st.integers(0, 255), SIZE, SIZE, SIZE, SIZE, SIZE, st.booleans())
def test_the_numbers_of_a_generated_message_come_back(device: int, requested, capacity, free, allocated, reserved, modern: bool) -> None:  # type: ignore[no-untyped-def]  # fmt: skip
    if modern:
        text = (
            f"CUDA out of memory. Tried to allocate {formatted(requested)}. GPU {device} has a total capacity of {formatted(capacity)} of which "
            f"{formatted(free)} is free. Of the allocated memory {formatted(allocated)} is allocated by PyTorch, and {formatted(reserved)} is "
            "reserved by PyTorch but unallocated."
        )
    else:
        text = (
            f"CUDA out of memory. Tried to allocate {formatted(requested)} (GPU {device}; {formatted(capacity)} total capacity; "
            f"{formatted(allocated)} already allocated; {formatted(free)} free; {formatted(reserved)} reserved in total by PyTorch)"
        )
    (message,) = read([text])
    assert message.device == device
    assert message.requested_bytes == in_bytes(requested)
    assert message.capacity_bytes == in_bytes(capacity)
    assert message.free_bytes == in_bytes(free)
    assert message.allocated_bytes == in_bytes(allocated)
    assert message.reserved_bytes == in_bytes(reserved) + (in_bytes(allocated) if modern else 0)


@given(st.integers(0, 2**63), st.sampled_from([
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate {} bytes.", ("DefaultCPUAllocator: can't allocate memory: you tried "
    "to allocate {} bytes. Error code 12"), "NCCL WARN Failed to CUDA calloc {} bytes", "Failed to allocate memory for requested buffer of size {}",
    "unable to mmap {} bytes from file </torch_1>: Cannot allocate memory (12)", ("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating {:,} bytes "
    "(allocated so far: 5 bytes)."),
]))  # fmt: skip
def test_plain_bytes_come_back_exactly(requested: int, template: str) -> None:
    (message,) = read([template.format(requested)])
    assert message.requested_bytes == requested


HOSTILE = [
    "9" * 60_000, "CUDA out of memory. Tried to allocate " * 1500, "a " * 30_000, "(" * 60_000, "Tried to allocate " + "1," * 29_000, "\x1b[" * 30_000,
    "2024-01-02 03:04:05 " * 3000, "CUDA " * 12_000 + "out of memory", "File \"" * 10_000, "[1] " * 15_000 + "NCCL WARN Cuda failure 2 'out of memory'",
    "raise " * 10_000 + "CUDA error: out of memory", "shape[" + "1," * 29_000, ".service: " * 6000, "out of memory" * 4600, "oom-kill:constraint=" * 3000,
    "Killed process 5 (" + "(" * 59_000, "Memory cgroup out of memory" * 2000, "\r" * 60_000, "numpy." * 10_000 + "MemoryError", "a@" * 30_000 + ".scope: ",
    "Out of memory" + "x: Kill" * 8000, "oom-kill:constraint=A," + ",task=" * 9000, "failed to allocate 1G " * 2700,
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(HOSTILE)))
def test_no_line_makes_a_pattern_try_for_ever(index: int) -> None:
    found = log_of(f"oom {HOSTILE[index]}\n{WHOLE.format('2.00', 1)}\n".encode() * 3)
    assert (found[-1].device, found[-1].requested_bytes) == (1, 2 * GIB)


def test_a_line_without_end_is_read_in_bounded_memory_and_its_message_is_found_across_parts() -> None:
    log = OomLog()
    message = b" " + WHOLE.format("2.00", 1).encode() + b" "
    tracemalloc.start()
    for index in range(64):
        log.feed(b"loss " * (LONGEST_LINE // 40) + (message if index == 33 else b""))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    log.close()
    assert [(found.device, found.text_line) for found in log.messages()] == [(1, 1)]
    assert peak < 20 * LONGEST_LINE


@given(st.integers(0, 3 * LONGEST_LINE))
def test_a_message_is_found_wherever_it_stands_in_a_long_line(place: int) -> None:
    text = bytearray(b"x" * (4 * LONGEST_LINE))
    text[place:place] = b" " + WHOLE.format("2.00", 1).encode() + b" "
    log = OomLog()
    for start in range(0, len(text), 10_000):
        log.feed(bytes(text[start : start + 10_000]))
    log.close()
    (message,) = log.messages()
    assert (message.device, message.capacity_bytes, message.process_bytes) == (1, 80 * GIB, 79 * GIB)


def test_a_log_of_endless_different_events_keeps_a_bounded_number() -> None:
    lines = "".join(
        f"Out of memory: Killed process {pid} (a) total-vm:1kB\n" for pid in range(EVENTS_KEPT + 500)
    )
    assert len(log_of(lines.encode())) == EVENTS_KEPT
