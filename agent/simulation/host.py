"""The simulated host and the job's share of it: arrays of one value per second, NaN where there is nothing to measure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpudiag.agent.simulation.course import Course
from gpudiag.agent.simulation.script import GIB, GPUS, Script
from gpudiag.storage.sample import Floats

_HOST_MEMORY = 1007.0 * GIB
_JOB_MEMORY = 900.0 * GIB


def _pick(course: Course, **level: float) -> Floats:
    """One level per activity; `other` for the rest."""
    return np.select(
        [course.starved, course.training, course.evaluating, course.saving, course.compiling, course.loading],
        [level[name] for name in ("starved", "training", "evaluating", "saving", "compiling", "loading")],
        level.get("other", 0.0),
    )


def simulate_node(script: Script, course: Course, rng: np.random.Generator) -> Mapping[str, Floats]:
    """Every node metric."""
    job = _job_cpus(script, course)
    wobble = rng.normal(1.0, 0.04, script.seconds)
    reading = _pick(
        course, starved=0.35e9, training=0.7e9, evaluating=0.5e9, saving=2e7, compiling=3e8, loading=2.1e9
    )
    writing = _pick(
        course, starved=2e6, training=2e6, evaluating=2e6, saving=5.1e9, compiling=8e6, loading=4e6
    )
    pressure = _pick(
        course, starved=0.01, training=0.012, evaluating=0.01, saving=0.22, compiling=0.02, loading=0.15
    )
    used = _job_memory(course) + 31 * GIB
    quiet = np.zeros(script.seconds)
    return {
        "cpu_busy_ratio": np.clip(job / script.cpus * wobble + 0.008, 0.0, 1.0),
        "cpu_iowait_ratio": np.clip(pressure * 0.08 * wobble, 0.0, 1.0),
        "cpus": np.full(script.seconds, float(script.cpus)),
        "memory_available_bytes": _HOST_MEMORY - used,
        "memory_total_bytes": np.full(script.seconds, _HOST_MEMORY),
        "swap_in_bytes_per_second": quiet,
        "swap_out_bytes_per_second": quiet,
        "pressure_cpu_some_ratio": np.clip(0.03 * wobble, 0.0, 1.0),
        "pressure_io_some_ratio": np.clip(pressure * wobble, 0.0, 1.0),
        "pressure_io_full_ratio": np.clip(pressure * 0.4 * wobble, 0.0, 1.0),
        "pressure_memory_some_ratio": quiet,
        "pressure_memory_full_ratio": quiet,
        "disk_read_bytes_per_second": reading * wobble,
        "disk_write_bytes_per_second": writing * wobble + 4e5,
        "disk_read_await_seconds": np.clip(4e-4 * wobble, 1e-5, None),
        "network_rx_bytes_per_second": 3e5 * wobble,
        "network_tx_bytes_per_second": 2e5 * wobble,
        "shm_used_bytes": np.where(course.training | course.evaluating, 11.0, 0.1) * GIB,
    }


def simulate_job(script: Script, course: Course, rng: np.random.Generator) -> Mapping[str, Floats]:
    """Every metric of the job's processes on the host; NaN while it has none."""
    cpus = _job_cpus(script, course)
    wobble = rng.normal(1.0, 0.03, script.seconds)
    worker = _pick(
        course, starved=0.985, training=0.52, evaluating=0.38, saving=0.03, compiling=0.2, loading=0.0
    )
    main = _pick(course, starved=0.55, training=0.93, evaluating=0.8, saving=0.7, compiling=1.0, loading=1.0)
    reading = _pick(
        course, starved=0.35e9, training=0.7e9, evaluating=0.5e9, saving=2e7, compiling=3e8, loading=2.1e9
    )
    writing = _pick(
        course, starved=1e6, training=1e6, evaluating=1e6, saving=5.0e9, compiling=5e6, loading=0.0
    )
    feeding = course.process & ~course.loading
    metrics = {
        "job_cpus_allowed": np.full(script.seconds, float(script.cpus_allowed)),
        "job_cpu_busy_ratio": np.clip(cpus / script.cpus_allowed * wobble, 0.0, 1.2),
        "job_cpu_throttled_ratio": np.zeros(script.seconds),
        "job_memory_working_set_bytes": _job_memory(course),
        "job_memory_limit_bytes": np.full(script.seconds, _JOB_MEMORY),
        "job_oom_kills_total": np.zeros(script.seconds),
        "job_read_bytes_per_second": reading * wobble,
        "job_write_bytes_per_second": writing * wobble,
        "job_processes": np.where(feeding, 2.0 + GPUS + script.workers, 2.0 + GPUS),
        "main_cpu_ratio": np.clip(main * wobble, 0.0, 1.05),
        "loader_workers": np.where(feeding, float(script.workers), np.nan),
        "loader_cpu_ratio": np.where(
            feeding, np.clip(worker * rng.normal(1.0, 0.012, script.seconds), 0.0, 1.0), np.nan
        ),
        "loader_dstate_ratio": np.where(
            feeding, np.where(rng.random(script.seconds) < 0.02, 1 / script.workers, 0.0), np.nan
        ),
    }
    return {name: np.where(course.process, values, np.nan) for name, values in metrics.items()}


def _job_cpus(script: Script, course: Course) -> Floats:
    """CPUs the job keeps busy: main processes, loader workers, compilers."""
    worker = _pick(
        course, starved=0.985, training=0.52, evaluating=0.38, saving=0.03, compiling=0.2, loading=0.0
    )
    main = _pick(course, starved=0.55, training=0.93, evaluating=0.8, saving=0.7, compiling=1.0, loading=1.0)
    compilers = np.where(course.compiling, 24.0, 0.0)
    return np.where(course.process, worker * script.workers + main * GPUS + compilers, 0.0)


def _job_memory(course: Course) -> Floats:
    grown = _pick(
        course, starved=172.0, training=168.0, evaluating=168.0, saving=168.0, compiling=120.0, loading=60.0
    )
    return np.where(course.process, grown, 0.3) * GIB
