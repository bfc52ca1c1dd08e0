"""The host side of a job on one node: loader workers, main process, pressure, storage, memory, network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from bench.scenarios.plan import Plan, window
from bench.scenarios.spec import GIB, Scenario
from bench.scenarios.steps import Floats


@dataclass(frozen=True)
class Busy:
    """Shares of each second, mean over the node's GPUs: in `input`, `checkpoint`, `compute`, `comm`, `host`, `eval`."""

    input: Floats
    checkpoint: Floats
    compute: Floats
    comm: Floats
    host: Floats
    launch: Floats
    eval: Floats


class HostModel:
    """Series [seconds] of the job on a node and of the node."""

    def __init__(self, scenario: Scenario, plan: Plan, busy: Busy, rng: np.random.Generator) -> None:
        self.scenario, self.plan, self.busy, self.rng = scenario, plan, busy, rng
        self.t = np.arange(plan.seconds, dtype=float)
        self.alive = (self.t >= plan.start) & (self.t < plan.seconds - 2)
        self.starting = (self.t >= plan.start) & (self.t < plan.warmup)
        self.warming = (self.t >= plan.warmup) & (self.t < plan.train)
        sleeps = any(fault.kind == "never_started" for fault in scenario.faults)
        self.training = (self.t >= plan.train) & (self.t < plan.end) & (not sleeps)

    def during(self, *kinds: str) -> Floats:
        """1 while a fault of one of the kinds lasts."""
        on = np.zeros(len(self.t))
        for fault in self.scenario.faults:
            if fault.kind in kinds:
                first, last = window(fault, self.plan.train, self.plan.end)
                on[(self.t >= first) & (self.t < last)] = 1.0
        return on

    def noisy(self, values: Floats, spread: float = 0.03, top: float = 1.0) -> Floats:
        return np.clip(values * (1 + spread * self.rng.standard_normal(len(values))), 0, top)

    def job(self) -> dict[str, Floats]:
        work = self.scenario.workload
        on_cpu, on_disk = self.during("cpu_steady", "cpu_gappy"), self.during("disk_steady", "disk_gappy")
        launching = self.during("launch", "main_bound")
        loading = self.training & (self.busy.checkpoint < 0.5)
        worker = np.where(loading, work.worker_load, 0.0) * (1 - 0.85 * on_disk)
        worker = np.where((on_cpu > 0) & loading, 0.985, worker)
        stuck = on_disk * loading * (0.62 + 0.3 * self.busy.input)
        main = np.where(self.training, 0.55, 0.0) + 0.35 * self.starting + 0.9 * self.warming
        if self.scenario.kind == "notebook":
            main = 0.03 + 0.6 * self.busy.compute * self.scenario.workload.gpus
        main = np.where(launching > 0, 0.995, main) + 0.4 * self.busy.host
        workers, cpus = work.workers * work.gpus, work.cpus_per_gpu * work.gpus
        compiling = self.warming * (0.6 if work.warmup_kind == "compile" else 0.05)
        used = (workers * worker + main * work.gpus) / cpus + compiling
        enough = np.minimum(1.0, used)
        out = {
            "job_cpus_allowed": np.where(self.alive, float(cpus), np.nan),
            "job_processes": np.where(self.alive, 1.0 + work.gpus + workers * loading, 0.0),
            "job_cpu_busy_ratio": self.noisy(enough, 0.03, 1.05),
            "job_cpu_throttled_ratio": self.noisy(np.clip(used - 1.0, 0, 0.6)),
            "job_pressure_cpu_some_ratio": self.noisy(
                np.clip(0.02 + 0.6 * np.clip(used - 0.9, 0, 1), 0, 1), 0.1
            ),
            "job_pressure_io_some_ratio": self.noisy(self._io_pressure(on_disk), 0.15),
            "job_pressure_memory_full_ratio": self.noisy(0.35 * self.during("swap")),
            "main_cpu_ratio": self.noisy(np.minimum(main, 1.0), 0.015),
            "loader_workers": np.where(loading & (work.workers > 0), float(workers), 0.0),
            "loader_cpu_ratio": np.where(
                loading & (work.workers > 0), self.noisy(worker, 0.02, 1.02), np.nan
            ),
            "loader_dstate_ratio": np.where(loading & (work.workers > 0), self.noisy(stuck, 0.15), np.nan),
            "job_read_bytes_per_second": self.noisy(self._read(on_disk), 0.25, 1e12),
            "job_write_bytes_per_second": self.noisy(self._write(), 0.2, 1e12),
            **self._memory(),
        }
        if work.hook:
            out["input_wait_ratio"] = np.where(self.training, np.clip(self.busy.input, 0, 1), np.nan)
        return out

    def _io_pressure(self, on_disk: Floats) -> Floats:
        base = 0.01 + 0.3 * self.busy.checkpoint + 0.25 * self.starting
        return np.clip(base + on_disk * self.training * (0.4 + 0.4 * self.busy.input), 0, 1)

    def _read(self, on_disk: Floats) -> Floats:
        usual = 60e6 * self.training * (1 - self.busy.checkpoint)
        return usual * (1 + on_disk) + 800e6 * self.starting

    def _write(self) -> Floats:
        return 3e4 + 1.1e9 * self.busy.checkpoint

    def _memory(self) -> dict[str, Floats]:
        limit = 512 * GIB
        work = self.scenario.workload
        level = work.host_memory * np.clip((self.t - self.plan.start) / 60, 0, 1) * self.alive
        for fault in self.scenario.faults:
            if fault.kind == "host_leak":
                onset = self.plan.end - 60 * fault.size
                level = level + (1 - work.host_memory) * np.clip((self.t - onset) / (60 * fault.size), 0, 1)
        cache = np.clip(0.25 * np.clip((self.t - self.plan.train) / 1800, 0, 1), 0, 1 - level)
        if self.scenario.kind == "page_cache":
            cache = np.clip(
                np.clip((self.t - self.plan.train) / 2400, 0, 1), 0, np.maximum(0.0, 0.99 - level)
            )
        level = self.noisy(level, 0.002, 1.0)
        return {
            "job_memory_working_set_bytes": level * limit,
            "job_memory_anon_bytes": 0.9 * level * limit,
            "job_memory_shmem_bytes": 0.08 * level * limit,
            "job_memory_file_bytes": cache * limit,
            "job_memory_limit_bytes": np.full(len(level), float(limit)),
            "job_oom_kills_total": np.zeros(len(level)),
        }

    def node(self) -> dict[str, Floats]:
        work, job = self.scenario.workload, self.job()
        cpus = work.cpus_per_gpu * work.gpus
        cores = 2.0 * cpus
        on_disk, swapping = self.during("disk_steady", "disk_gappy"), self.during("swap")
        several = 1.0 if work.nodes > 1 else 0.0
        total = 1024 * GIB
        held = job["job_memory_working_set_bytes"]
        talk = self.busy.comm
        return {
            "cpus": np.full(len(self.t), cores),
            "cpu_busy_ratio": self.noisy(job["job_cpu_busy_ratio"] * cpus / cores + 0.01, 0.05),
            "cpu_iowait_ratio": self.noisy(0.002 + 0.1 * on_disk, 0.2),
            "memory_total_bytes": np.full(len(self.t), float(total)),
            "memory_available_bytes": np.clip(0.97 * total - held, 1e9, None) * (1 - 0.97 * swapping),
            "swap_in_bytes_per_second": self.noisy(60e6 * swapping, 0.3, 1e12),
            "swap_out_bytes_per_second": self.noisy(80e6 * swapping, 0.3, 1e12),
            "pressure_cpu_some_ratio": job["job_pressure_cpu_some_ratio"],
            "pressure_io_some_ratio": job["job_pressure_io_some_ratio"],
            "pressure_io_full_ratio": 0.5 * job["job_pressure_io_some_ratio"],
            "pressure_memory_some_ratio": self.noisy(0.001 + 0.5 * swapping, 0.1),
            "pressure_memory_full_ratio": self.noisy(0.3 * swapping, 0.1),
            "disk_read_bytes_per_second": job["job_read_bytes_per_second"],
            "disk_write_bytes_per_second": job["job_write_bytes_per_second"] + 1e5,
            "disk_read_await_seconds": self.noisy(0.0008 + 0.035 * on_disk, 0.2, 10),
            "disk_busy_ratio": self.noisy(0.05 + 0.88 * on_disk + 0.3 * self.busy.checkpoint, 0.05),
            "network_rx_bytes_per_second": self.noisy(
                2e5 + self._requests() + several * 9e9 * talk, 0.2, 1e12
            ),
            "network_tx_bytes_per_second": self.noisy(1e5 + several * 9e9 * talk, 0.2, 1e12),
            "shm_used_bytes": np.full(len(self.t), 4.0 * GIB),
        }

    def _requests(self) -> Floats:
        return 6e6 * self.busy.eval if self.scenario.kind == "inference" else 0.0 * self.t
