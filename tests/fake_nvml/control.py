"""Build the stand-in for libnvidia-ml.so.1 and drive it live through a mapped file.

>>> fake = FakeNvml(build(directory), directory / "state", gpus=8)
>>> fake.set(0, "gpu_util", 97)                   # what the driver answers from now on
>>> fake.fail(1, "nvmlDeviceGetPowerUsage", "not_supported")
>>> fake.fail(2, "*", "gpu_is_lost"); fake.fail(None, "nvmlInitWithFlags", "hang")
>>> subprocess.run([...], env={**os.environ, **fake.environ})
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pynvml

HERE = Path(__file__).parent
GIB = 1 << 30
XID = pynvml.nvmlEventTypeXidCriticalError

_PLAIN = {
    "uint32_t": ctypes.c_uint32,
    "int32_t": ctypes.c_int32,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
    "char": ctypes.c_char,
}
FUNCTIONS = tuple(re.findall(r"^F\((\w+)\)", (HERE / "functions.def").read_text(), re.MULTILINE))


def _structures() -> tuple[dict[str, int], dict[str, type[ctypes.Structure]]]:
    """Constants and ctypes structures of layout.h."""
    text = (HERE / "layout.h").read_text()
    sizes = {name: int(value) for name, value in re.findall(r"^#define (\w+) (\d+)", text, re.MULTILINE)}
    kinds: dict[str, Any] = dict(_PLAIN)
    structures: dict[str, type[ctypes.Structure]] = {}
    for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.MULTILINE | re.DOTALL):
        fields = []
        for kind, member, size in re.findall(
            r"^\s+(?:struct )?(\w+) (\w+)(?:\[(\w+)\])?;", body, re.MULTILINE
        ):
            fields.append((member, kinds[kind] * sizes[size] if size else kinds[kind]))
        structures[name] = kinds[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return sizes, structures


SIZES, STRUCTURES = _structures()
State = STRUCTURES["state"]

FAILURES = {"return": 1, "slow": 2, "hang": 3, "crash": 4}
H200: Mapping[str, Any] = {
    "name": b"NVIDIA H200",
    "cuda_major": 9,
    "cuda_minor": 0,
    "gpu_util": 95,
    "memory_util": 40,
    "memory_total": 141 * GIB,
    "memory_reserved": 600 << 20,
    "memory_used": 60 * GIB,
    "power_mw": 550_000,
    "power_limit_mw": 700_000,
    "energy_mj": 1_000_000_000,
    "energy_rate_mw": 550_000,
    "temperature": 55,
    "memory_temperature": 60,
    "temperature_margin": 30,
    "sm_clock_mhz": 1980,
    "memory_clock_mhz": 3201,
    "max_sm_clock_mhz": 1980,
    "max_memory_clock_mhz": 3201,
    "pcie_tx_bytes": 1 << 40,
    "pcie_rx_bytes": 2 << 40,
    "pcie_tx_rate": 1_000_000_000,
    "pcie_rx_rate": 3_000_000_000,
    "pcie_counter_bits": 64,
    "pcie_tx_kbs": 1_000_000,
    "pcie_rx_kbs": 3_000_000,
    "pcie_generation": 5,
    "pcie_width": 16,
    "max_pcie_generation": 5,
    "max_pcie_width": 16,
    "nvlinks": 18,
    "nvlink_tx_kib": 1 << 40,
    "nvlink_rx_kib": 1 << 40,
    "nvlink_tx_rate_kib": 20_000_000,
    "nvlink_rx_rate_kib": 20_000_000,
    "gpm_supported": 1,
}
H200_GPM = {
    1: 95.0,
    2: 80.0,
    3: 50.0,
    5: 45.0,
    10: 35.0,
    11: 0.0,
    12: 10.0,
    13: 2.0,
    20: 900.0,
    21: 2800.0,
    60: 19000.0,
    61: 19000.0,
}


def build(directory: Path, without: Iterable[str] = ()) -> Path:
    """Compile `directory/libnvidia-ml.so.1`; the symbols in `without` are truly absent from it."""
    library = directory / "libnvidia-ml.so.1"
    hidden = " ".join(f"{name};" for name in without)
    script = directory / "exports.map"
    script.write_text("{ global: nvml*; local: " + hidden + " *; };\n")
    compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
    subprocess.run(
        [
            compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-fPIC", "-shared", "-Wl,-soname,libnvidia-ml.so.1",
            f"-Wl,--version-script={script}", "-o", str(library), str(HERE / "nvml.c"),
        ],
        check=True,
    )  # fmt: skip
    return library


class FakeNvml:
    """One fake driver: its values, failures and events, shared with every process that loads the library."""

    def __init__(
        self, library: Path, state_file: Path, gpus: int = 8, model: Mapping[str, Any] = H200
    ) -> None:
        self.library = library
        self.state_file = state_file
        state_file.write_bytes(bytes(ctypes.sizeof(State)))
        with state_file.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.state: Any = State.from_buffer(self._map)
        self.state.epoch_ns = time.monotonic_ns()
        self.state.process_stride = 24
        self.state.driver_version = b"580.105.08"
        self.state.gpu_count = gpus
        for index in range(gpus):
            self._fill(index, model)
        self.state.size = ctypes.sizeof(State)
        self.state.version = SIZES["LAYOUT_VERSION"]

    def _fill(self, index: int, model: Mapping[str, Any]) -> None:
        self.set(index, "present", 1)
        self.set(index, "minor", index)
        self.set(index, "uuid", f"GPU-{index:08x}-0000-4000-8000-{index:012x}")
        self.set(index, "pci_bus_id", f"00000000:{0x18 + 0x10 * index:02X}:00.0")
        for name, value in model.items():
            self.set(index, name, value)
        for metric, percent in H200_GPM.items():
            self.gpm(index, metric, percent)

    @staticmethod
    def attached(state_file: Path) -> Any:
        """The living `struct state` of a driver that another process made."""
        with state_file.open("r+b") as file:
            return State.from_buffer(mmap.mmap(file.fileno(), 0))

    @property
    def environ(self) -> dict[str, str]:
        """What a process needs to find this driver."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML_STATE": str(self.state_file)}

    def close(self) -> None:
        """Let every call that hangs return, and unmap."""
        self.state.stop = 1
        del self.state
        self._map.close()

    # values ------------------------------------------------------------------------------------------

    def set(self, gpu: int | None, field: str, value: Any) -> None:
        """Set a member of `struct gpu` (layout.h), or of `struct state` when `gpu` is None."""
        target = self.state if gpu is None else self.state.gpus[gpu]
        if not hasattr(target, field):
            raise AttributeError(field)
        setattr(target, field, value.encode() if isinstance(value, str) else value)

    def get(self, gpu: int | None, field: str) -> Any:
        """Read a member back; texts as str."""
        value = getattr(self.state if gpu is None else self.state.gpus[gpu], field)
        return value.decode() if isinstance(value, bytes) else value

    def uuid(self, gpu: int) -> str:
        """The UUID of a GPU."""
        return str(self.get(gpu, "uuid"))

    def gpm(self, gpu: int, metric: int, value: float, code: int = 0) -> None:
        """Percent or MiB/s of a GPM metric; `code` is its own nvmlReturn."""
        self.state.gpus[gpu].gpm[metric] = value
        self.state.gpus[gpu].gpm_return[metric] = code

    def field(self, gpu: int, field_id: int, code: str | int) -> None:
        """Make one field id answer with an error (`"not_supported"`, ...), 0 heals it."""
        self.state.gpus[gpu].field_return[field_id] = code if isinstance(code, int) else error(code)

    def processes(self, gpu: int, entries: Iterable[tuple[int, int]], gpu_instance: int = 0xFFFFFFFF) -> None:
        """Replace the compute processes: (pid, bytes used)."""
        target = self.state.gpus[gpu]
        target.process_count = 0
        for count, (pid, used) in enumerate(entries):
            target.processes[count] = STRUCTURES["process"](
                pid=pid,
                used_bytes=used,
                gpu_instance=gpu_instance,
                compute_instance=0 if gpu_instance != 0xFFFFFFFF else 0xFFFFFFFF,
            )
            target.process_count = count + 1

    def slice(self, gpu: int, instances: Iterable[tuple[str, int]], gib_per_slice: int = 17) -> None:
        """Re-slice: MIG instances as (UUID, slices); none switches MIG off. Old handles become invalid."""
        target = self.state.gpus[gpu]
        wanted = list(instances)
        for position in range(SIZES["MAX_MIGS"]):
            target.migs[position] = STRUCTURES["mig"]()
        for position, (uuid, slices) in enumerate(wanted):
            target.migs[position] = STRUCTURES["mig"](
                present=1, uuid=uuid.encode(), gpu_instance=position + 1, slices=slices,
                multiprocessors=16 * slices, memory_mib=gib_per_slice * 1024 * slices, memory_used=GIB,
            )  # fmt: skip
            for metric in H200_GPM:
                target.migs[position].gpm[metric] = target.gpm[metric]
        target.mig_enabled = bool(wanted)
        target.mig_generation += 1

    # faults ------------------------------------------------------------------------------------------

    def fail(self, gpu: int | None, call: str, mode: str, delay: float = 0.0, after: int = 0) -> None:
        """From the `after`+1st call on, `call` (`"*"`: every device call) misbehaves on `gpu` (None: on any).

        `mode` is `"hang"`, `"slow"` (by `delay` seconds), `"crash"`, or an error's name as in
        `NVML_ERROR_GPU_IS_LOST`: `"gpu_is_lost"`.
        """
        kind = mode if mode in FAILURES else "return"
        code = error(mode) if kind == "return" else 0
        for slot in self._slots(gpu, call):
            slot.code, slot.delay_us, slot.after = code, int(delay * 1e6), after
            slot.mode = FAILURES[kind]

    def heal(self, gpu: int | None, call: str = "*") -> None:
        """End the misbehaviour set by `fail` with the same arguments."""
        for slot in self._slots(gpu, call):
            slot.mode = 0

    def _slots(self, gpu: int | None, call: str) -> list[Any]:
        names = [name for name in FUNCTIONS if call in ("*", name)]
        if not names:
            raise KeyError(call)
        numbers = [FUNCTIONS.index(name) for name in names]
        if gpu is None:
            return [self.state.failures_any[number] for number in numbers]
        return [self.state.failures[number * SIZES["MAX_GPUS"] + gpu] for number in numbers]

    def xid(self, gpu: int, code: int, gpu_instance: int = 0xFFFFFFFF, kind: int = XID) -> None:
        """Deliver an event to every event set that listens to this GPU."""
        head = self.state.event_head
        self.state.events[head % SIZES["MAX_EVENTS"]] = STRUCTURES["event"](
            gpu=gpu, gpu_instance=gpu_instance, type=kind, data=code
        )
        self.state.event_head = head + 1

    def reset(self, gpu: int) -> None:
        """The GPU was reset: it works again, but only for processes that initialise anew."""
        self.set(gpu, "lost", 0)
        self.set(gpu, "generation", self.get(gpu, "generation") + 1)

    # what happened -----------------------------------------------------------------------------------

    def calls(self, name: str = "*") -> int:
        """How often a function was entered so far (`"*"`: all together)."""
        wanted = range(len(FUNCTIONS)) if name == "*" else [FUNCTIONS.index(name)]
        return sum(int(self.state.calls[number]) for number in wanted)

    @property
    def clients(self) -> list[int]:
        """Living processes that hold the driver initialised."""
        return [pid for pid in self.state.clients if pid and os.path.exists(f"/proc/{pid}")]


def error(name: str) -> int:
    """The code of `NVML_ERROR_<NAME>`."""
    return int(getattr(pynvml, f"NVML_ERROR_{name.upper()}"))
