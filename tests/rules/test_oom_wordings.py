"""Every wording of every layer gives its kind and its numbers, and what only mentions memory gives nothing.

The texts are the messages' formats with numbers of our own.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from gpudiag.rules.oom import OomMessage, read

KIB, MIB, GIB = 2**10, 2**20, 2**30


def told(message: OomMessage) -> dict[str, Any]:
    """Kind and all that is not null, without where it stands."""
    names = [one.name for one in fields(message) if one.name not in ("text_line", "told")]
    return {name: getattr(message, name) for name in names if getattr(message, name) is not None}


def only(*lines: str) -> dict[str, Any]:
    (message,) = read(lines)
    return told(message)


def gib(number: float) -> int:
    return round(number * GIB)


MODERN = (
    "{} out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 16.00 GiB of which 1.50 GiB is free. {}"
    "Of the allocated memory 10.00 GiB is allocated by PyTorch, and 256.00 MiB is reserved by PyTorch but unallocated."
)
FRACTION = "Including non-PyTorch memory, this process has 11.00 GiB memory in use. {} allowed; "
ALLOCATORS = [
    (
        "torch.OutOfMemoryError: " + MODERN.format("HIP", ""),
        {"kind": "another_process", "device": 3, "requested_bytes": 2 * GIB, "capacity_bytes": 16 * GIB,
         "free_bytes": gib(1.5), "allocated_bytes": 10 * GIB, "reserved_bytes": gib(10.25), "others_bytes": gib(4.25)},
    ),
    (
        ("RuntimeError: XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB. Of the allocated memory "
        "10.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated. Please use `empty_cache`"),
        {"kind": "unknown", "device": 0, "requested_bytes": 2 * GIB, "capacity_bytes": 16 * GIB, "allocated_bytes": 10 * GIB,
         "reserved_bytes": 11 * GIB},
    ),
    (
        ("RuntimeError: NPU out of memory. Tried to allocate 512.00 MiB (NPU 5; 60.00 GiB total capacity; 58.00 GiB already allocated; "
        "58.00 GiB current active; 16.00 MiB free; 59.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated"),
        {"kind": "fragmentation", "device": 5, "requested_bytes": 512 * MIB, "capacity_bytes": 60 * GIB, "allocated_bytes": 58 * GIB,
         "free_bytes": 16 * MIB, "reserved_bytes": 59 * GIB, "others_bytes": GIB - 16 * MIB},
    ),
    (
        ("CUDA out of memory. Tried to allocate 5.00 GiB (GPU 0; 12.00 GiB total capacity; 0 bytes already allocated; 11.50 GiB free; "
        "4.00 GiB allowed; 0 bytes reserved in total by PyTorch)"),
        {"kind": "process_limit", "device": 0, "requested_bytes": 5 * GIB, "capacity_bytes": 12 * GIB, "allocated_bytes": 0,
         "free_bytes": gib(11.5), "limit_bytes": 4 * GIB, "reserved_bytes": 0, "others_bytes": gib(0.5)},
    ),
    (
        MODERN.format("CUDA", FRACTION.format("17179869184.00 GiB").replace("11.00 GiB", "17179869184.00 GiB")),
        {"kind": "another_process", "device": 3, "requested_bytes": 2 * GIB, "capacity_bytes": 16 * GIB, "free_bytes": gib(1.5),
         "allocated_bytes": 10 * GIB, "reserved_bytes": gib(10.25), "others_bytes": gib(4.25)},
    ),
    (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        {"kind": "absurd_request"},
    ),
    (
        ("RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 512.00 MB, max allowed: 9.00 GB). "
        "Tried to allocate 768.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit"),
        {"kind": "process_limit", "requested_bytes": 768 * MIB, "allocated_bytes": 8 * GIB, "limit_bytes": 9 * GIB, "others_bytes": 512 * MIB},
    ),
    (
        "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GiB, other allocations: 64.00 KiB). Tried to allocate 256 bytes on shared pool.",
        {"kind": "unknown", "requested_bytes": 256, "allocated_bytes": 8 * GIB, "others_bytes": 64 * KIB},
    ),
    ("RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCGeneral.cpp:50", {"kind": "unknown"}),
    ("THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=50 error=2 : out of memory", {"kind": "unknown"}),
    ("RuntimeError: CUDA out of memory.", {"kind": "unknown"}),
]  # fmt: skip

DEVICE = [
    ("RuntimeError: CUDA error: out of memory", {"kind": "outside_allocator"}),
    ("torch.AcceleratorError: CUDA error: out of memory", {"kind": "outside_allocator"}),
    ("RuntimeError: CUDA driver error: out of memory", {"kind": "outside_allocator"}),
    ("RuntimeError: HIP error: out of memory", {"kind": "outside_allocator"}),
    ("cuda failed with error 2 out of memory. use CUDA_LAUNCH_BLOCKING=1", {"kind": "outside_allocator"}),
    ("CUDA failure 2: out of memory ; GPU=0 ; hostname=node1 ; expr=cudaMalloc", {"kind": "outside_allocator"}),
    ("numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY", {"kind": "outside_allocator"}),
    ("cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory", {"kind": "outside_allocator"}),
    ("RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", {"kind": "outside_allocator"}),
    (
        ":0:rocdevice.cpp:100: Aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: no resources. Code: 0x1008 Available Free mem : 24 MB",
        {"kind": "outside_allocator", "free_bytes": 24 * MIB},
    ),
    (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1024.50 MiB on device 1: cudaMalloc failed: out of memory",
        {"kind": "outside_allocator", "requested_bytes": round(1024.5 * MIB), "device": 1},
    ),
    (
        "[TRT] [E] /rtSafe/safeRuntime.cpp (25) - Cuda Error in nvinfer1::internal::DefaultAllocator::allocate: 2 (out of memory)",
        {"kind": "outside_allocator"},
    ),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", {"kind": "library_memory"}),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", {"kind": "library_memory"}),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", {"kind": "library_memory"}),
    ("RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED", {"kind": "library_memory"}),
    (
        "2024-01-02 03:04:05.678901: E tensorflow/stream_executor/cuda/cuda_dnn.cc:329] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR",
        {"kind": "library_memory"},
    ),
    ("node1:100:200 [3] include/alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'", {"kind": "library_memory", "device": 3}),
    ("node1:100:200 [3] enqueue.cc:10 NCCL WARN Cuda failure 'out of memory'", {"kind": "library_memory", "device": 3}),
    (
        "node1:100:200 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc async 6291456 bytes",
        {"kind": "library_memory", "device": 3, "requested_bytes": 6 * MIB},
    ),
    (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3221225472 bytes.",
        {"kind": "pool_exhausted", "requested_bytes": 3 * GIB},
    ),
    (
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 16.00GiB.",
        {"kind": "pool_exhausted", "requested_bytes": 16 * GIB},
    ),
    ("RuntimeError: Resource exhausted: Out of memory while trying to allocate 1024 bytes.", {"kind": "pool_exhausted", "requested_bytes": 1024}),
    (
        "RESOURCE_EXHAUSTED: Failed to allocate request for 176.00MiB (184549376B) on device ordinal 2",
        {"kind": "pool_exhausted", "requested_bytes": 176 * MIB, "device": 2},
    ),
    (
        "W external/xla/bfc_allocator.cc:497] Allocator (GPU_1_bfc) ran out of memory trying to allocate 5.50GiB (rounded to 5905580032)requested by op",
        {"kind": "pool_exhausted", "requested_bytes": gib(5.5), "device": 1},
    ),
    (
        "E cuda_driver.cc:806] failed to allocate 11.50G (12348030976 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        {"kind": "outside_allocator", "requested_bytes": gib(11.5)},
    ),
    (
        "E cuda_driver.cc:764] failed to alloc 2147483648 bytes unified memory; result: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        {"kind": "outside_allocator", "requested_bytes": 2 * GIB},
    ),
    (
        ("ResourceExhaustedError: OOM when allocating tensor with shape[16,1024,512] and type half on "
        "/job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc [Op:Mul]"),
        {"kind": "pool_exhausted", "requested_bytes": 16 * MIB, "device": 1},
    ),
    ("OOM when allocating tensor with shape[4096]", {"kind": "pool_exhausted"}),
    (
        "OOM when allocating tensor with shape[1024,1024] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu",
        {"kind": "host_allocation", "requested_bytes": 4 * MIB},
    ),
    (
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 29.50G of 8.00G hbm. Exceeded hbm capacity by 21.50G.",
        {"kind": "shortage", "requested_bytes": gib(29.5), "capacity_bytes": 8 * GIB},
    ),
    (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 25,600,000 bytes (allocated so far: 3,635,267,072 bytes).",
        {"kind": "pool_exhausted", "requested_bytes": 25_600_000, "allocated_bytes": 3_635_267_072},
    ),
    (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 200 bytes (allocated so far: 900 bytes, limit set to: 1,000 bytes).",
        {"kind": "process_limit", "requested_bytes": 200, "allocated_bytes": 900, "limit_bytes": 1000},
    ),
    (
        "cupy.cuda.memory.OutOfMemoryError: out of memory to allocate 1073741824 bytes (total 12373894656 bytes)",
        {"kind": "pool_exhausted", "requested_bytes": GIB},
    ),
    (
        "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/include/rmm/mr/device/pool_memory_resource.hpp:196: Maximum pool size exceeded",
        {"kind": "process_limit"},
    ),
    (
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error (failed to allocate 1048576 bytes) at: /a.hpp:68: cudaErrorMemoryAllocation out of memory",
        {"kind": "outside_allocator", "requested_bytes": MIB},
    ),
    (
        "onnxruntime/core/framework/bfc_arena.cc:376 AllocateRawInternal Failed to allocate memory for requested buffer of size 643840",
        {"kind": "pool_exhausted", "requested_bytes": 643840},
    ),
    (
        "Out of memory error on GPU 0. Cannot allocate 98.000000MB memory on GPU 0, 6.000000GB memory has been allocated and available memory is only 0.000000B.",
        {"kind": "pool_exhausted", "device": 0, "requested_bytes": 98 * MIB, "allocated_bytes": 6 * GIB, "free_bytes": 0},
    ),
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", {"kind": "kv_cache"}),
    (
        ("(EngineCore pid=9) ValueError: To serve at least one request with the models's max seq len (131072), (4.50 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (1.75 GiB). Based on the available memory, the estimated maximum"),
        {"kind": "kv_cache", "requested_bytes": gib(4.5), "free_bytes": gib(1.75)},
    ),
    (
        "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in KV cache (3664).",
        {"kind": "kv_cache"},
    ),
    (
        "ValueError: Free memory on device cuda:1 (59.50/80.00 GiB) on startup is less than desired GPU memory utilization (0.9, 72.00 GiB).",
        {"kind": "another_process", "device": 1, "requested_bytes": 72 * GIB, "free_bytes": gib(59.5), "capacity_bytes": 80 * GIB,
         "others_bytes": gib(20.5)},
    ),
    (
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 98304, Hardware limit: 65536. Reducing block sizes or "
        "`num_stages` may help."),
        {"kind": "kernel_resources", "requested_bytes": 98304, "limit_bytes": 65536},
    ),
    ("OutOfResources: out of resource: tensor memory, Required: 640, Hardware limit: 512", {"kind": "kernel_resources"}),
]  # fmt: skip

HOST = [
    (
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 3077222400 bytes. "
        "Error code 12 (Cannot allocate memory)"),
        {"kind": "host_allocation", "requested_bytes": 3077222400},
    ),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:72] data. DefaultCPUAllocator: not enough memory: you tried to allocate 26214400 bytes.",
        {"kind": "host_allocation", "requested_bytes": 25 * MIB},
    ),
    ("RuntimeError: $ Torch: not enough memory: you tried to allocate 72GB. Buy new RAM!", {"kind": "host_allocation", "requested_bytes": 72 * GIB}),
    ("MemoryError", {"kind": "host_allocation"}),
    ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 94.9 MiB for an array with shape (2160, 3840, 3) and data type float32",
     {"kind": "host_allocation", "requested_bytes": round(94.9 * MIB)}),
    ("MemoryError: Unable to allocate 201. GiB for an array with shape (2999, 2999, 2999) and data type int64",
     {"kind": "host_allocation", "requested_bytes": 201 * GIB}),
    ("MemoryError: Unable to allocate array with shape (1024, 1024) and data type float64", {"kind": "host_allocation", "requested_bytes": 8 * MIB}),
    ("OSError: [Errno 12] Cannot allocate memory", {"kind": "host_allocation"}),
    ("RuntimeError: unable to mmap 29764 bytes from file </torch_1_2_3>: Cannot allocate memory (12)", {"kind": "host_allocation", "requested_bytes": 29764}),
    ("  what():  std::bad_alloc", {"kind": "host_allocation"}),
    ("RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. ", {"kind": "worker_died", "victim_pid": 77}),
    ("RuntimeError: DataLoader worker (pid(s) 77, 78) exited unexpectedly", {"kind": "worker_died", "victim_pid": 77}),
    ("RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
     {"kind": "shared_memory_full", "victim_pid": 77}),
    ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).", {"kind": "shared_memory_full"}),
    ("RuntimeError: unable to write to file </torch_319_952_66>: No space left on device (28)", {"kind": "shared_memory_full"}),
    ("RuntimeError: unable to write to file </torch_319_952>", {"kind": "shared_memory_full"}),
    ("n1:1:2 [0] misc/shmutils.cc:72 NCCL WARN Call to posix_fallocate failed : No space left on device", {"kind": "shared_memory_full"}),
    ("oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=0,cpuset=c,mems_allowed=0,global_oom,task_memcg=/a,task=python3,pid=5,uid=0",
     {"kind": "host_oom", "victim": "python3", "victim_pid": 5}),
    ("[12345.678901] Killed process 77 (python3) total-vm:9kB, anon-rss:4kB, file-rss:2kB",
     {"kind": "oom_killed", "victim": "python3", "victim_pid": 77, "victim_resident_bytes": 6 * KIB}),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in step 191.batch cgroup.", {"kind": "cgroup_oom"}),
    ("slurmstepd: error: Exceeded job memory limit at some point.", {"kind": "cgroup_oom"}),
    ("slurmstepd: error: Exceeded step memory limit at some point.", {"kind": "cgroup_oom"}),
    ("slurmstepd: error: Job 41176 exceeded memory limit (3940736 > 2068480), being killed",
     {"kind": "cgroup_oom", "process_bytes": 3940736 * KIB, "limit_bytes": 2068480 * KIB}),
    ("slurmstepd: error: StepId=39.batch exceeded memory limit (6526939136 > 4294967296), being killed",
     {"kind": "cgroup_oom", "process_bytes": 6526939136, "limit_bytes": 4 * GIB}),
    ("srun: error: node-01-01: task 4: Out Of Memory", {"kind": "cgroup_oom"}),
    ("State: OUT_OF_MEMORY (exit code 0)", {"kind": "cgroup_oom"}),
    ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", {"kind": "cgroup_oom"}),
    ("=>> PBS: job killed: mem 4300000kb exceeded limit 4194304kb", {"kind": "cgroup_oom", "process_bytes": 4300000 * KIB, "limit_bytes": 4 * GIB}),
    ("      Reason:       OOMKilled", {"kind": "cgroup_oom"}),
    ('{"terminated":{"exitCode":137,"reason":"OOMKilled"}}', {"kind": "cgroup_oom"}),
    ('        "OOMKilled": true,', {"kind": "cgroup_oom"}),
    ("train-0   0/1     OOMKilled   0          2m", {"kind": "cgroup_oom"}),
    ("Warning  SystemOOM  1m  kubelet  System OOM encountered, victim process: python, pid: 4711", {"kind": "host_oom", "victim": "python", "victim_pid": 4711}),
    ("(raylet) node_manager.cc:3064: 12 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed", {"kind": "host_oom"}),
    ("systemd-oomd[840]: Killed /user.slice/a.scope due to memory used (300) / total (400) and swap used (90) / total (99) being more than 90.00%",
     {"kind": "host_oom", "victim": "/user.slice/a.scope", "allocated_bytes": 300, "capacity_bytes": 400}),
    ("systemd-oomd[840]: Marked /user.slice/a.scope for killing due to memory used (300) / total (400) and swap used (90) / total (99)",
     {"kind": "host_oom", "victim": "/user.slice/a.scope", "allocated_bytes": 300, "capacity_bytes": 400}),
    ("systemd-oomd[840]: Killed /user.slice/a.scope due to memory pressure for /user.slice being 51.07% > 50.00% for > 20s with reclaim activity",
     {"kind": "oom_killed", "victim": "/user.slice/a.scope"}),
    ("Dec  1 10:00:00 n1 systemd[1]: train.service: A process of this unit has been killed by the OOM killer.", {"kind": "oom_killed", "victim": "train.service"}),
    ('earlyoom[5]: sending SIGTERM to process 77 uid 1000 "python": badness 801, VmRSS 1234 MiB',
     {"kind": "host_oom", "victim": "python", "victim_pid": 77, "victim_resident_bytes": 1234 * MIB}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), [*ALLOCATORS, *DEVICE, *HOST])
def test_a_wording_gives_its_kind_and_numbers_and_null_for_the_rest(
    line: str, expected: dict[str, Any]
) -> None:
    assert only(line) == expected


DECORATIONS = [
    "[rank3]: {}", "[1,4]<stderr>:{}", "3: {}", "[default0]:{}", "2024-01-02 03:04:05,678 ERROR {}", "(Worker_TP0 pid=548) ERROR 07-29 {}",
    "\x1b[31m{}\x1b[0m", "Epoch 1: 50%|█████     | 1/2\r{}", "{}\r", '{{"log":"{}\\n","stream":"stderr"}}', "│ {} │", "E       {}", "\x1b]0;title\x07{}",
    "Dec  1 10:00:00 node1 train[77]: {}", "#12 3.456 {}", "b\udcff {}",
]  # fmt: skip


@pytest.mark.parametrize("decoration", DECORATIONS)
@pytest.mark.parametrize("index", range(len([*ALLOCATORS, *DEVICE])))
def test_prefixes_colours_and_progress_bars_change_nothing(decoration: str, index: int) -> None:
    line, expected = [*ALLOCATORS, *DEVICE][index]
    assert only(decoration.format(line)) == expected


@pytest.mark.parametrize(
    "line",
    [
        "will retry on out of memory",
        "caught out of memory, retrying with batch size 8",
        "| WARNING: OOM in all workers, skipping an update",
        "If you see CUDA error: out of memory, lower the batch size",
        "this may raise CUDA error: out of memory on small cards",
        "Decreasing the batch avoids CUDA out of memory",
        'if "out of memory" in str(e):',
        'elif "CUDA error: out of memory" in message:',
        "except torch.cuda.OutOfMemoryError:",
        "except torch.OutOfMemoryError: pass",
        '    raise RuntimeError("CUDA error: out of memory")',
        'logger.error("CUDA out of memory. Tried to allocate")',
        '    with pytest.raises(RuntimeError, match="CUDA out of memory. Tried to allocate 500.00 GiB"):',
        "# CUDA error: out of memory",
        "if status == CUBLAS_STATUS_ALLOC_FAILED:",
        "except MemoryError:",
        "raise MemoryError",
        "If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps against running out of memory",
        "Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com for more information.",
        "W bfc_allocator.cc:217] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.50GiB. The caller indicates that this is not a failure",
        "W cpu_allocator_impl.cc:81] Allocation of 822083584 exceeds 10% of system memory.",
        "[TRT] [W] Skipping tactic 3 due to insufficient memory on requested size of 538 detected for tactic 4.",
        "[TRT] [W] Requested amount of GPU memory (4294967296 bytes) could not be allocated. There may not be enough free memory.",
        '"OOMKilled": false,',
        "0 Workers (tasks / actors) killed due to memory pressure (OOM), 1 Workers crashed due to other reasons",
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Aborted.",
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Terminated.",
        "RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly with exit code 1. Details are lost due to multiprocessing.",
        "python3 invoked oom-killer: gfp_mask=0x0, order=0, oom_score_adj=0",
        "oom_reaper: reaped process 5 (python3), now anon-rss:0kB",
        "systemd-oomd[1]: Considered 21 cgroups for killing, top candidates were:",
        "systemd[1]: Started Userspace Out-Of-Memory (OOM) Killer.",
        "OSError: [Errno 28] No space left on device: '/data/checkpoint.pt'",
        "java.lang.OutOfMemoryError: Java heap space",
        "zoom in: bloom filter of the room ran out of patience; memory: 40.00 GiB allocated",
        "UR_RESULT_ERROR_DEVICE_LOST",
        "nvidia-smi: 40 GiB of memory, OOM score 0",
    ],
)  # fmt: skip
def test_a_line_that_only_mentions_memory_is_no_message(line: str) -> None:
    assert [told(message) for message in read([line])] == []


def test_the_source_line_of_a_traceback_is_no_message_but_the_error_below_is() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/app/train.py", line 5, in step',
        "    CUDA_ERROR_OUT_OF_MEMORY, 'Tried to allocate 20.00 MiB (GPU 0; 2 GiB)'",
        "RuntimeError: CUDA error: out of memory",
    ]
    (message,) = read(lines)
    assert (message.text_line, told(message)) == (4, {"kind": "outside_allocator"})
