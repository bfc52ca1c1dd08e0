"""What to say about messages that memory ran out: the kind in words, what to do first, what batch would fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpudiag.message import Message
from gpudiag.rules.estimate import batch_reduction
from gpudiag.rules.model import Advice
from gpudiag.rules.oom_log import OomLog, read, read_stream
from gpudiag.rules.oom_message import Kind, OomMessage

__all__ = [
    "EXPLANATIONS",
    "LADDERS",
    "Kind",
    "OomLog",
    "OomMessage",
    "fitting_share",
    "notes",
    "read",
    "read_stream",
]


def fitting_share(message: OomMessage) -> float | None:
    """The share (0..1) of the present batch that fits, by the message's numbers; None where they do not tell.

    `estimate.batch_reduction` over what other processes leave of the card: 0.9 of it must hold the context and the
    tensors, and only what depends on the batch shrinks. A smaller batch is no cure for the other kinds.
    """
    own = message.process_bytes or message.reserved_bytes
    if message.kind not in ("shortage", "context_overhead", "process_limit") or own is None:
        return None
    if message.capacity_bytes is None or message.requested_bytes is None:
        return None
    available = message.capacity_bytes - (message.others_bytes or 0)
    if message.limit_bytes is not None:
        available = min(available, message.limit_bytes)
    return batch_reduction(available, own + message.requested_bytes)


EXPLANATIONS: dict[Kind, Message] = {
    "shortage": Message("The tensors of this process really need more than the GPU has left."),
    "fragmentation": Message("Enough memory was free or cached, but not in one piece."),
    "another_process": Message("Another process holds the memory this one needed."),
    "context_overhead": Message(
        "CUDA contexts and libraries outside PyTorch's allocator took what was missing."
    ),
    "process_limit": Message("The device had room, but a limit set for this process did not allow more."),
    "pool_exhausted": Message("The framework's own pool of device memory had no block that large left."),
    "kv_cache": Message(
        "What the model leaves of the GPU's memory is too little for the cache of keys and values."
    ),
    "library_memory": Message(
        "A CUDA library (cuBLAS, cuDNN, NCCL) got no device memory of its own, or could not start, mostly for lack of it."
    ),
    "kernel_resources": Message(
        "A kernel needs more on-chip memory than one multiprocessor has: the GPU's memory is not short."
    ),
    "private_pools": Message(
        "Memory kept in private pools (CUDA graphs) could not be used for this request."
    ),
    "absurd_request": Message("The request is many times the whole GPU: a shape is wrong, not the memory."),
    "outside_allocator": Message("The driver refused memory outside the framework's own allocator."),
    "host_oom": Message("The host ran out of memory and the kernel killed a process."),
    "cgroup_oom": Message("The job exceeded its memory limit and the kernel killed a process of it."),
    "oom_killed": Message(
        "A process was killed for memory; the line does not say whether the host or a limit was full."
    ),
    "host_allocation": Message("The program asked for host memory, not the GPU's, and did not get it."),
    "shared_memory_full": Message(
        "/dev/shm, through which data-loading workers pass batches, is full: shared memory, not the GPU's."
    ),
    "worker_died": Message(
        "A data-loading worker died without a message: mostly it was killed because host memory was full."
    ),
    "unknown": Message("The message has too few numbers to tell what was short."),
}

_SMALLER = (
    Advice("quick", Message("Lower the micro-batch and accumulate gradients (divide the loss by the steps, no_sync between them).")),
    Advice("medium", Message("Use bf16 autocast, scaled-dot-product attention and activation checkpointing.")),
    Advice("deep", Message("Shard optimizer and gradients (ZeRO-2, FSDP SHARD_GRAD_OP), then parameters too.")),
)  # fmt: skip
_HOST_ADVICE = (
    Advice(
        "quick", Message("Lower num_workers and prefetch_factor: each worker holds batches in host memory.")
    ),
    Advice(
        "medium",
        Message("Keep data in numpy or Arrow arrays, not Python lists: reference counts copy shared pages."),
    ),
    Advice("deep", Message("Stream or memory-map the data set, or ask the scheduler for more memory.")),
)
_LIBRARY_ROOM = Advice(
    "quick",
    Message(
        "Leave libraries some memory: a smaller batch, or a smaller share of the GPU for the framework's own pool."
    ),
)
LADDERS: dict[Kind, tuple[Advice, ...]] = {
    "shortage": (
        Advice("quick", Message("Drop references to old results (loss.item(), detach what is logged), zero_grad(set_to_none=True).")),
        *_SMALLER,
    ),
    "fragmentation": (
        Advice("quick", Message("Set PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before PyTorch 2.9).")),
        Advice("medium", Message("Pad or bucket lengths, keep the evaluation batch fixed, try garbage_collection_threshold:0.8.")),
        Advice("deep", Message("Allocate long-lived buffers first and use static shapes; max_split_size_mb is the last resort.")),
    ),
    "another_process": (
        Advice("quick", Message("List what holds the GPU (nvidia-smi, gpudiag top) and end it, or choose another GPU.")),
        Advice("medium", Message("Check that each rank uses its own GPU: all ranks on cuda:0 look like this.")),
        Advice("deep", Message("Have the scheduler give GPUs exclusively.")),
    ),
    "context_overhead": (
        Advice("quick", Message("Count the processes on the GPU: each costs 0.3 to 2 GiB before the first tensor.")),
        Advice("medium", Message("Load kernels lazily (CUDA_MODULE_LOADING=LAZY), make NCCL buffers and channels fewer.")),
        *_SMALLER[:1],
    ),
    "private_pools": (
        Advice("quick", Message("Capture fewer CUDA graph shapes, or share one pool between the graphs.")),
        Advice("medium", Message("Release graphs that are no longer replayed; use a compile mode without CUDA graphs to compare.")),
        *_SMALLER[:1],
    ),
    "absurd_request": (
        Advice("quick", Message("Print the shapes just before the failing line: look for an overflow, a wrong index or a bad header.")),
        Advice("medium", Message("Run with CUDA_LAUNCH_BLOCKING=1 to be sure which line asks.")),
    ),
    "outside_allocator": (
        Advice("quick", Message("Look at the GPU's memory when it failed (gpudiag report): is it full, and by whom?")),
        Advice("medium", Message("Leave room for libraries: torch.cuda.set_per_process_memory_fraction(0.9).")),
    ),
    "process_limit": (
        Advice("quick", Message("Raise the limit (set_per_process_memory_fraction, PYTORCH_MPS_HIGH_WATERMARK_RATIO, the pool's maximum), or need less.")),
        *_SMALLER,
    ),
    "pool_exhausted": (
        Advice("quick", Message("See whether another process took part of the GPU before: pools are sized when the program starts.")),
        Advice("medium", Message("JAX: raise XLA_PYTHON_CLIENT_MEM_FRACTION, donate buffers that are used last; CuPy: free_all_blocks().")),
        *_SMALLER,
    ),
    "kv_cache": (
        Advice("quick", Message("Lower the longest sequence (max_model_len) or raise the share of the GPU the engine may use.")),
        Advice("medium", Message("Use a quantised model or an fp8 cache, and fewer sequences at once.")),
        Advice("deep", Message("Split the model over more GPUs (tensor parallel).")),
    ),
    "library_memory": (
        _LIBRARY_ROOM,
        Advice("medium", Message("Run with CUDA_LAUNCH_BLOCKING=1: an earlier kernel's error can look like this too.")),
        Advice("medium", Message("Make NCCL's buffers and channels fewer (NCCL_BUFFSIZE, NCCL_MAX_NCHANNELS).")),
    ),
    "kernel_resources": (
        Advice("quick", Message("Lower the kernel's block sizes or num_stages; a smaller batch does not help.")),
        Advice("medium", Message("Use a kernel made for this GPU: the limit on shared memory differs between architectures.")),
    ),
    "host_oom": _HOST_ADVICE,
    "cgroup_oom": _HOST_ADVICE,
    "oom_killed": _HOST_ADVICE,
    "worker_died": _HOST_ADVICE,
    "host_allocation": _HOST_ADVICE,
    "shared_memory_full": (
        Advice("quick", Message("Make /dev/shm larger (docker run --shm-size, an emptyDir of medium Memory in Kubernetes).")),
        Advice("medium", Message("Lower num_workers and prefetch_factor, or the size of a batch: all of them lie there.")),
        Advice("deep", Message("Set torch.multiprocessing.set_sharing_strategy('file_system') where many small tensors are passed.")),
    ),
    "unknown": (Advice("quick", Message("Run again with gpudiag run, so that memory is recorded beside the message.")),),
}  # fmt: skip


def notes(messages: Iterable[Mapping[str, Any]]) -> Iterator[Message]:
    """What a report says about the messages in a job's output (`OomMessage` as dictionaries): each kind once."""
    seen: set[str] = set()
    for message in messages:
        kind = message.get("kind")
        if kind not in EXPLANATIONS or kind in seen:
            continue
        seen.add(kind)
        yield Message(
            "Out of memory in line {line} of the job's output.", line=str(message.get("text_line", "?"))
        )
        yield EXPLANATIONS[kind]
        if kind != "unknown":  # it asks for a recording, and this is the report of one
            yield Message(LADDERS[kind][0].text)
