"""What can be configured: one frozen dataclass per section, each key with its kind, default and meaning.

`docs/agent.md` lists every key (a test keeps it so); `agent/configfile.py` reads and merges the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from gpudiag.agent import values
from gpudiag.agent.values import Address

T = TypeVar("T")
_DAY = 86_400.0
_LISTEN = Address("127.0.0.1", 9836)


def key(default: T, parse: Callable[[object], T], help: str, secret: bool = False) -> T:
    """A configuration key: its default, the parser that also checks it, and what it means."""
    made: T = field(default=default, metadata={"parse": parse, "help": help, "secret": secret})
    return made


@dataclass(frozen=True)
class AgentSection:
    interval: float = key(1.0, values.positive_duration, "Time between two samples")
    flush: float = key(10.0, values.positive_duration, "Time between two writes to the database")
    node: str = key("", values.text, "Name of this node; empty: the host name")
    cluster: str = key("local", values.text, "Name of the cluster, part of every job's key")
    root: str = key("/", values.text, "Where /proc and /sys of the host are found")
    runtime_dir: str = key("/run/gpudiag", values.text, "Control socket and job hook files")
    log_level: str = key("info", values.OneOf("debug", "info", "warning", "error"), "Least severe log line")
    log_burst: int = key(10, values.count, "Equal log lines allowed per minute; the rest are counted")


@dataclass(frozen=True)
class StorageSection:
    url: str = key("", values.database_url, "Database of this node; empty: the default one")
    ring: float = key(1800.0, values.duration, "How much is kept in memory while the database fails")
    keep_samples: float = key(14 * _DAY, values.positive_duration, "How long samples are kept")
    keep_minutes: float = key(400 * _DAY, values.positive_duration, "How long per-minute means are kept")
    keep_events: float = key(800 * _DAY, values.positive_duration, "How long events and findings are kept")
    keep_jobs: float = key(1830 * _DAY, values.positive_duration, "How long jobs and their reports are kept")
    max_size: int = key(10 * 2**30, values.size, "Size of the database at which the oldest samples go; 0: no limit")  # fmt: skip


@dataclass(frozen=True)
class ForwardSection:
    url: str = key("", values.database_url, "Central PostgreSQL that samples are forwarded to", secret=True)
    url_file: str = key("", values.text, "File that holds that URL; a systemd credential `forward-url` is found by itself")  # fmt: skip
    interval: float = key(10.0, values.positive_duration, "Time between two rounds of forwarding")


@dataclass(frozen=True)
class MetricsSection:
    listen: Address = key(_LISTEN, values.address, "Address of /metrics, /healthz and /readyz")  # noqa: RUF009 - frozen
    enabled: bool = key(True, values.boolean, "Serve HTTP at all")
    compat: str = key("", values.OneOf("", "dcgm"), 'With "dcgm", also the names of dcgm-exporter')
    max_scrapes: int = key(8, values.count, "Requests served at the same time; more are answered 503")
    tls_cert: str = key("", values.text, "PEM certificate chain; with tls_key, HTTPS only")
    tls_key: str = key("", values.text, "PEM private key")
    users_file: str = key("", values.text, "Lines `name:hash` from `gpudiag agent password`: basic auth")


@dataclass(frozen=True)
class OtelSection:
    endpoint: str = key("", values.http_url, "URL of an OTLP/HTTP receiver that gets the same metrics, such as http://127.0.0.1:4318; needs the extra otel")  # fmt: skip
    interval: float = key(15.0, values.positive_duration, "Time between two exports")
    timeout: float = key(10.0, values.positive_duration, "How long one export may take, repetitions included")


@dataclass(frozen=True)
class SourcesSection:
    nvml: bool = key(True, values.boolean, "Read GPUs through NVML, in a child process")
    nvml_library: str = key("", values.text, "Path of libnvidia-ml.so.1; empty: found by the loader")
    dcgm_exporter: str = key("", values.http_url, "URL of a dcgm-exporter on this node")
    dcgm_hostengine: str = key("", values.text, "Address of a running nv-hostengine, with NVIDIA's own bindings")  # fmt: skip
    host: bool = key(True, values.boolean, "Read CPU, memory, pressure, disk, network of the host")
    jobs: bool = key(True, values.boolean, "Attribute GPUs to jobs and read the jobs' cgroups and processes")
    kernel_log: bool = key(True, values.boolean, "Read Xid and out-of-memory lines of the kernel log")
    scontrol: str = key("scontrol", values.text, "Program that is asked once about each Slurm job; empty: nobody is asked")  # fmt: skip
    sacct: str = key("sacct", values.text, "Program that is asked about a Slurm job that scontrol has forgotten; empty: nobody is asked")  # fmt: skip
    job_directories: tuple[str, ...] = key((), values.texts, "Directories of jobstats or dcgm-exporter that name the job of each GPU")  # fmt: skip
    job_silence: float = key(7 * _DAY, values.duration, "How long the GPUs of a job that only `gpudiag job start` told of may be unused until it counts as over; 0: for ever")  # fmt: skip
    pod_resources: str = key("", values.text, "Socket of the kubelet that lists pods and their GPUs; needs the extra k8s")  # fmt: skip
    pod_labels: tuple[str, ...] = key((), values.texts, "Labels of pods that their jobs carry, read from the Kubernetes API; needs pod_resources")  # fmt: skip
    xid_catalogue: str = key("", values.text, "YAML file that changes what Xids mean and what to do about them")  # fmt: skip


@dataclass(frozen=True)
class RulesSection:
    enabled: bool = key(True, values.boolean, "Judge the samples live")
    paths: tuple[str, ...] = key((), values.texts, "Rule files or directories; they override built-in rules by id")  # fmt: skip


@dataclass(frozen=True)
class CostSection:
    currency: str = key("USD", values.text, "Currency of the prices")
    gpu_hour: float = key(0.0, values.number, "Price of one GPU for one hour; 0: not known")
    kilowatt_hour: float = key(0.0, values.number, "Price of one kilowatt-hour; 0: not known")
    pue: float = key(1.5, values.number, "Power of the building over power of its computers")


@dataclass(frozen=True)
class Config:
    """The whole configuration; `origins` says for each `section.key` where its value comes from."""

    agent: AgentSection = AgentSection()
    storage: StorageSection = StorageSection()
    forward: ForwardSection = ForwardSection()
    metrics: MetricsSection = MetricsSection()
    otel: OtelSection = OtelSection()
    sources: SourcesSection = SourcesSection()
    rules: RulesSection = RulesSection()
    cost: CostSection = CostSection()
    origins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Key:
    """One key of the configuration, as documentation and loader see it."""

    section: str
    name: str
    default: Any
    parse: Callable[[object], Any]
    help: str
    secret: bool

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"GPUDIAG_{self.section}__{self.name}".upper()


def sections() -> dict[str, type[Any]]:
    """Section name to its dataclass, in order."""
    return {item.name: type(item.default) for item in fields(Config) if item.name != "origins"}


def keys() -> Iterator[Key]:
    """Every key there is, section by section."""
    for section, cls in sections().items():
        for item in fields(cls):
            yield Key(section, item.name, item.default, **item.metadata)
