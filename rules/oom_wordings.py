"""How programs, libraries, schedulers and kernels word that memory ran out: each wording, and the numbers in it.

Covers PyTorch since 0.4 on CUDA, HIP, XPU, NPU and Metal, CUDA and its libraries, JAX and XLA, TensorFlow, CuPy, RMM,
ONNX Runtime, Paddle, TensorRT, Triton, vLLM and its kin, llama.cpp, numpy, C++, data loaders, Slurm, Flux, LSF, PBS,
Kubernetes, Ray, systemd, earlyoom and the kernel.
"""

from __future__ import annotations

import re
from math import prod

from gpudiag.rules.kernel_kill import read_kill
from gpudiag.rules.oom_allocator import DONE, MORE, allocator_message
from gpudiag.rules.oom_message import SIZE, Kind, OomMessage, size_bytes
from gpudiag.rules.oom_wording import Wording

_SIZES = ("requested", "capacity", "free", "allocated", "reserved", "process", "limit", "victim_resident")


def _message(kind: Kind, *matches: re.Match[str] | None) -> OomMessage:
    """The message of what the named groups of the matches hold."""
    groups: dict[str, str] = {}
    for match in matches:
        groups |= {name: value for name, value in (match.groupdict() if match else {}).items() if value}
    sizes = {f"{name}_bytes": size_bytes(groups[name]) for name in _SIZES if name in groups}
    whole = {
        ours: int(groups[name])
        for name, ours in (("device", "device"), ("pid", "victim_pid"))
        if name in groups
    }
    return OomMessage(kind, 0, victim=groups.get("victim"), **whole, **sizes)


def _on(
    kind: Kind, words: str, head: str, *, also: str = "", more: str = "", stated: bool = False, flags: int = 0
) -> Wording:
    """A wording whose numbers are the named groups of `head` and of `also`, which stands behind it or in a line below."""
    behind = re.compile(also) if also else None

    def read(match: re.Match[str], text: str) -> OomMessage:
        return _message(kind, match, behind.search(text, match.end()) if behind else None)

    return Wording(words, re.compile(head, flags), read, stated, re.compile(more) if more else None, behind)


def _size(name: str) -> str:
    return rf"(?P<{name}>{SIZE})"


def _bytes(name: str) -> str:
    return rf"(?P<{name}>\d{{1,26}})"


# TensorFlow tells the tensor, not its bytes

_TYPE_BYTES = {
    "half": 2, "bfloat16": 2, "float": 4, "double": 8, "int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2,
    "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16,
    "float16": 2, "float32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


def _tensor_bytes(shape: str, type_name: str | None) -> int | None:
    lengths = [int(length) for length in re.findall(r"\d{1,15}", shape)][:16]
    size = _TYPE_BYTES.get(type_name or "")
    return prod(lengths) * size if size and lengths else None


def _tensor(match: re.Match[str], text: str) -> OomMessage:
    place = re.search(r"device:(CPU|GPU):(\d{1,4})", text)
    on_host = place is not None and place.group(1) == "CPU"
    return OomMessage(
        "host_allocation" if on_host else "pool_exhausted",
        0,
        device=int(place.group(2)) if place and not on_host else None,
        requested_bytes=_tensor_bytes(match["shape"], match["type"]),
    )


def _array(match: re.Match[str], text: str) -> OomMessage:
    """A `MemoryError` of Python or numpy, which tells a size, a shape or nothing."""
    size = re.search(f"Unable to allocate ({SIZE})", text[:300])
    shape = re.search(
        r"Unable to allocate array with shape \(([\d, ]{1,200})\) and data type (\w{1,20})", text[:500]
    )
    requested = size_bytes(size.group(1)) if size else _tensor_bytes(*shape.groups()) if shape else None
    return OomMessage("host_allocation", 0, requested_bytes=requested)


def _arena(match: re.Match[str], text: str) -> OomMessage | None:
    """TensorFlow's and JAX's allocator, which also mentions what it could do without."""
    return None if "not a failure" in text else _message("pool_exhausted", match)


def _limited(match: re.Match[str], text: str) -> OomMessage:
    """CuPy: its own limit was the cause only where it has one that was reached."""
    found = _message("pool_exhausted", match)
    if found.limit_bytes and (found.allocated_bytes or 0) + (found.requested_bytes or 0) > found.limit_bytes:
        return _message("process_limit", match)
    return found


def _tensorrt(match: re.Match[str], text: str) -> OomMessage | None:
    """A builder that merely leaves out a way of computing says so in the next lines."""
    if re.search(r"[Ss]kipping tactic", text):
        return None
    size = re.search(r"Requested amount of (?:GPU )?memory \((?P<requested>\d{1,20})", text)
    return _message("outside_allocator", match, size)


def _slurm_limit(match: re.Match[str], text: str) -> OomMessage:
    """Kilobytes until Slurm 17.11, bytes since; a limit below 256 MiB, read as bytes, is of the former."""
    used, limit = int(match["used"]), int(match["allowed"])
    scale = 1 if match["unit"].startswith(("StepId", "JobId")) or limit >= 2**28 else 1024
    return OomMessage("cgroup_oom", 0, process_bytes=used * scale, limit_bytes=limit * scale)


def _startup(match: re.Match[str], text: str) -> OomMessage:
    """vLLM before it loads anything: what is not free belongs to others."""
    unit = match["free_unit"]
    free, capacity = (size_bytes(f"{match[name]} {unit}") for name in ("free_number", "capacity_number"))
    return OomMessage(
        "another_process",
        0,
        device=_message("unknown", match).device,
        requested_bytes=size_bytes(match["requested"]),
        capacity_bytes=capacity,
        free_bytes=free,
        others_bytes=max(0, capacity - free),
    )


def _paddle(match: re.Match[str], text: str) -> OomMessage:
    found = _message("pool_exhausted", match)
    free = re.search(f"available memory is (?:only )?({SIZE})", text)
    allocated = re.search(f"({SIZE}) memory has been allocated", text)
    return OomMessage(
        "pool_exhausted",
        0,
        device=found.device,
        requested_bytes=found.requested_bytes,
        free_bytes=size_bytes(free.group(1)) if free else None,
        allocated_bytes=size_bytes(allocated.group(1)) if allocated else None,
    )


def _worker(match: re.Match[str], text: str) -> OomMessage | None:
    how = match["how"]
    if how.startswith("exited"):
        return None if text.startswith(" with exit code", match.end()) else _message("worker_died", match)
    kind: Kind = "shared_memory_full" if "Bus error" in how else "worker_died"
    return _message(kind, match)


def _kernel(match: re.Match[str], text: str) -> OomMessage | None:
    kill = read_kill(text)
    if kill is None:
        return None
    scope = kill.scope or ("host" if kill.phase == "why" else "")
    kinds: dict[str, Kind] = {"cgroup": "cgroup_oom", "host": "host_oom", "": "oom_killed"}
    return OomMessage(
        kinds[scope],
        0,
        victim_pid=kill.pid,
        victim=kill.process or None,
        victim_resident_bytes=kill.resident_bytes,
    )


_OUT = r"out of memory"
WORDINGS: tuple[Wording, ...] = (
    Wording("tried to allocate|backend out of memory|would exceed allowed memory", re.compile(
            r"out of memory\. Tried to allocate|backend out of memory \(|Allocation on device \d+ would exceed allowed memory|"
            r"Tried to allocate [^(]{0,30}\((?:GPU|NPU|XPU|MLU|GCU) \d+;"
        ),
        allocator_message, more=MORE, done=DONE,
    ),
    # Engines that serve language models
    _on("kv_cache", "kv cache is needed", rf"\(?{_size('requested')} KV cache is needed, which is larger than the available KV cache memory",
        also=rf"\({_size('free')}\)", more=r"^\(?\d|Based on"),
    _on("kv_cache", "cache blocks|stored in kv cache|not enough memory", r"No available memory for the cache blocks|max seq len \(\d+\) is larger than the maximum number of tokens "
        r"that can be stored in KV cache|Not enough memory\. Please try to increase --mem-fraction-static|"
        r"Not enough memory to handle \d+ prefill tokens", stated=False),
    Wording("on startup is less than", re.compile(r"Free memory on device (?:cuda:(?P<device>\d+) )?\((?P<free_number>[\d.]{1,20})/(?P<capacity_number>[\d.]{1,20}) "
                   rf"(?P<free_unit>[KMGT]iB)\) on startup is less than desired GPU memory utilization \([\d.]{{1,8}}, {_size('requested')}"),
        _startup,
    ),
    # On the chip, not in device memory
    _on("kernel_resources", "out of resource", rf"out of resource: (?:shared memory, Required: {_bytes('requested')}, Hardware limit\w*: {_bytes('limit')}|"
        r"[\w ]{3,20}, Required: \d)"),
    _on("kernel_resources", "memory space", r"Ran out of memory in memory space (?:vmem|smem|sflag)"),
    # JAX, XLA, TensorFlow and other frameworks' pools
    _on("shortage", "memory space", rf"Ran out of memory in memory space hbm\. Used {_size('requested')} of {_size('capacity')} hbm"),
    Wording("oom when allocating", re.compile(r"OOM when allocating tensor with shape ?\[(?P<shape>[\d, ]{0,200})\](?: and type (?P<type>\w{1,20}))?"), _tensor),
    Wording("out of memory trying to", re.compile(r"Allocator \((?:\w{0,20}?GPU_(?P<device>\d+)_bfc|[^)]{1,40})\) ran out of memory trying to allocate " + _size("requested")),
        _arena,
    ),
    _on("outside_allocator", "failed to alloc", rf"failed to alloc(?:ate)? (?:{SIZE} \()?{_size('requested')}\)?[^\n]{{0,80}}?(?:CUDA_ERROR_OUT_OF_MEMORY|{_OUT})",
        also=r"Free memory/Total memory: (?P<free>\d{1,20})/(?P<capacity>\d{1,20})", more=r"Free memory/Total memory"),
    _on("pool_exhausted", "out of memory while trying|out of memory allocating", rf"(?:Out of memory while trying to allocate|RESOURCE_EXHAUSTED: Out of memory allocating) {_size('requested')}"),
    _on("pool_exhausted", "failed to allocate request", rf"Failed to allocate request for {SIZE} \({_bytes('requested')}B\) on device ordinal (?P<device>\d+)"),
    Wording("out of memory allocating|out of memory to allocate", re.compile(rf"[Oo]ut of memory (?:allocating|to allocate) {_size('requested')} \((?:allocated so far: {_size('allocated')}|total {SIZE})"
                       rf"(?:, limit set to:? {_size('limit')})?"), _limited),
    _on("process_limit", "rmm failure", rf"RMM failure at[^\n]{{0,400}}?(?:Maximum pool size exceeded|Exceeded memory limit)(?: \(failed to allocate {_size('requested')}\))?"),
    _on("outside_allocator", "bad alloc", rf"std::bad_alloc: (?:out_of_memory: )?CUDA error(?: \(failed to allocate {_size('requested')}\))?"),
    _on("pool_exhausted", "requested buffer", rf"Failed to allocate memory for requested buffer of size {_bytes('requested')}"),
    Wording("out of memory error on", re.compile(rf"Out of memory error on GPU (?P<device>\d+)\. Cannot allocate {_size('requested')}"), _paddle),
    _on("outside_allocator", "cudamalloc failed", rf"allocating {_size('requested')} on device (?P<device>\d+): cudaMalloc failed: {_OUT}"),
    # CUDA's libraries
    _on("library_memory", "failed to cuda", rf"(?:\[(?P<device>\d+)\] [^\n]{{0,120}}?NCCL WARN )?Failed to CUDA (?:host )?(?:calloc|alloc|malloc)(?: async)? {_size('requested')}"),
    _on("library_memory", "cuda failure", rf"(?:\[(?P<device>\d+)\] [^\n]{{0,120}}?NCCL WARN )?Cuda failure (?:2 )?['\"]{_OUT}['\"]"),
    _on("library_memory", "alloc failed|status not initialized|cudnn handle|rocblas status memory", r"\b[A-Z]{3,12}(?:_STATUS)?_ALLOC_FAILED\b|\bC(?:UBLAS|UDNN)_STATUS_NOT_INITIALIZED\b|"
        r"[Cc]ould not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR|rocblas_status_memory_error", stated=True),
    Wording("cuda error in|outofmemory|requested amount of", re.compile(r"Cuda Error in [\w:<>]{1,120}: 2 \(out of memory\)|Error Code 2: OutOfMemory\b|\bOutOfMemory Error in \w|"
                   r"(?:\[E\]|ERROR)[^\n]{0,40}Requested amount of (?:GPU )?memory \(\d{1,20}(?: bytes)?\) could not be allocated"),
        _tensorrt, more=re.compile(r"Requested amount of|[Ss]kipping tactic|Error Code 2"), done=re.compile("[Ss]kipping tactic"),
        repeats=True,
    ),
    # The driver and the runtime
    _on("unknown", "thcudacheck|cuda runtime error", rf"THCudaCheck FAIL [^\n]{{0,300}}?error=2 : {_OUT}|cuda runtime error \(2\) : {_OUT}"),
    _on("outside_allocator", "out of memory|memoryallocation|outofmemory|out of device memory", rf"\b(?:CUDA|HIP|cudaMalloc\w{{0,10}}|hipMalloc)\b[\w \[\]().=]{{0,40}}(?:error|failure|failed)\b[^.\n]{{0,60}}?{_OUT}|"
        r"\bCUDA_ERROR_OUT_OF_MEMORY\b|\bcudaErrorMemoryAllocation\b|\bhipError(?:OutOfMemory|MemoryAllocation)\b|"
        r"\b(?:UR|ZE|PI)_(?:RESULT_)?ERROR_OUT_OF_DEVICE_MEMORY\b", stated=True, flags=re.IGNORECASE),
    _on("outside_allocator", "available free mem", r"HSA_STATUS_ERROR_OUT_OF_RESOURCES[^\n]{0,200}?Available Free mem : (?P<free>\d{1,9} MB)"),
    # Host memory
    _on("host_allocation", "you tried to allocate", rf"(?:not enough memory|can't allocate memory): you tried to allocate {_size('requested')}"),
    _on("shared_memory_full", "</torch|bus error|posix fallocate|/dev/shm", r"unable to (?:write to|resize|allocate shared memory ?\(shm\) for|open shared memory object) (?:file )?</?torch_[\w]{1,60}>"
        r"(?=[^\n]{0,60}(?:No space left|unavailable)|\s*$)|bus error encountered in worker|posix_fallocate failed ?: No space left|"
        r"/dev/shm/\S{1,200}[^\n]{0,60}No space left on device"),
    _on("host_allocation", "allocate memory|out of host memory", rf"unable to mmap {_size('requested')} from file[^\n]{{0,120}}Cannot allocate memory|"
        r"\[Errno 12\] Cannot allocate memory|fork: Cannot allocate memory|\bUR_RESULT_ERROR_OUT_OF_HOST_MEMORY\b"),
    Wording("memoryerror", re.compile(r"(?:^|[:(\]] ?|\bE +|numpy\.\S{1,40})_?(?:Array)?MemoryError(?:: |\(\)|$)"), _array, stated=False),
    _on("host_allocation", "bad alloc", r"(?:^|what\(\): +|Error: |instance of ')std::bad_alloc\b", stated=True),
    Wording("dataloader worker", re.compile(r"DataLoader worker \(pid(?:\(s\))? (?P<pid>\d{1,10})[\d, ]*\) (?P<how>is killed by signal: (?:Killed|Bus error)|"
                       r"exited unexpectedly)"), _worker),
    # Who kills for memory, and who reports it
    Wording("oom kill|kill process|killed process", re.compile(r"oom-kill:constraint=|(?:Memory cgroup out of memory|Out of memory)[^:]{0,60}: Kill(?:ed)? process \d|^Killed process \d"), _kernel),
    Wording("memory limit", re.compile(r"(?P<unit>(?:StepId=|JobId=|Step |Job )\S{1,40}) exceeded memory limit \((?P<used>\d{1,20}) > (?P<allowed>\d{1,20})\)"),
            _slurm_limit),
    _on("cgroup_oom", "oom kill|memory limit|out of memory|memlimit", r"Detected \d+ oom[-_]kill event|Exceeded (?:job|step) memory limit|\btasks? [\d,\-]{1,60}: Out Of Memory|State: OUT_OF_MEMORY|"
        r"Memory cgroup out of memory: killed \d+ task|TERM_MEMLIMIT: job killed"),
    _on("cgroup_oom", "pbs: job killed", r"PBS: job killed: \w{0,5}mem (?P<process>\d{1,18}kb) exceeded limit (?P<limit>\d{1,18}kb)"),
    _on("cgroup_oom", "oomkilled", r"\b[Rr]eason[\"']?\s{0,20}[:=]\s{0,20}[\"']?OOMKilled|\bOOMKilled[\"']?\s{0,5}[:=]\s{0,5}[Tt]rue|\d/\d{1,3}\s{1,20}OOMKilled\b"),
    _on("host_oom", "low on memory", r"Task was killed due to the node running low on memory",
        also=rf"was running was {_size('allocated')} / {_size('capacity')}", more=r"Memory on the node|was running was"),
    _on("host_oom", "due to memory", r"(?<!\d)[1-9]\d{0,6} Workers? \(tasks / actors\) killed due to memory pressure"),
    _on("host_oom", "oom encountered", r"System OOM encountered, victim process: (?P<victim>[^,]{1,64}), pid: (?P<pid>\d{1,10})"),
    _on("host_oom", "due to memory", r"(?:Killed|Marked) (?P<victim>\S{1,300}) (?:for killing )?due to memory used \((?P<allocated>\d{1,20})\) / total \((?P<capacity>\d{1,20})\)"),
    _on("host_oom", "badness", r"sending SIG(?:TERM|KILL) to process (?P<pid>\d{1,10}) (?:uid \d+ )?\"(?P<victim>[^\"]{1,64})\": badness \d+"
        r"(?:, VmRSS (?P<victim_resident>\d{1,12} MiB))?"),
    _on("host_oom", "kernel panic", r"Kernel panic - not syncing: (?:System is deadlocked on memory|Out of memory)"),
    _on("oom_killed", "due to memory", r"(?:Killed|Marked) (?P<victim>\S{1,300}) (?:for killing )?due to memory pressure for"),
    _on("oom_killed", "oom kill|oomd killed", r"(?P<victim>[\w@.\\:-]{1,200}\.(?:service|scope|slice)): (?:A process of this unit has been killed by the OOM killer|"
        r"Failed with result 'oom-kill'|systemd-oomd killed \d+ process)"),
    Wording("out of memory|outofmemoryerror", re.compile(r"\btorch\.(?:cuda\.)?OutOfMemoryError:|\b(?:CUDA|HIP|XPU|NPU|MLU|GCU|MPS) out of(?: memory\b|$)"),
        allocator_message, stated=True, more=MORE, done=DONE,
    ),
)  # fmt: skip

_WORDS = {word.encode() for wording in WORDINGS for word in wording.words.split("|")}
# What to look for in a log: a word that holds another is found with it.
TELLING_WORDS = tuple(
    sorted(word for word in _WORDS if not any(other != word and other in word for other in _WORDS))
)
_BY_WORD = tuple((wording, tuple(word.encode() for word in wording.words.split("|"))) for wording in WORDINGS)


def wordings_in(line: bytes) -> list[Wording]:
    """Those of which a folded line has a word."""
    return [wording for wording, words in _BY_WORD if any(word in line for word in words)]
