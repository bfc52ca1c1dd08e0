"""A diagnosis by nodes: what is found of one node alone, in three steps between which the nodes are put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpudiag.rules.accounts import ACCOUNTED, FIGURES, Accounts, Bookkeeper, Figures
from gpudiag.rules.activity import ActivityFold
from gpudiag.rules.engine import judge_node
from gpudiag.rules.explain import Case
from gpudiag.rules.host_evidence import JOB_METRICS, NODE_METRICS
from gpudiag.rules.judgement import RuleOutcome
from gpudiag.rules.peers import PeerFold
from gpudiag.rules.phases import GPU_METRICS as PHASE_METRICS
from gpudiag.rules.phases import Codes, gather, label_activity, marks_of
from gpudiag.rules.ruleset import RuleSet
from gpudiag.rules.samples import JobSamples
from gpudiag.storage.sample import Source

_ACCOUNTED = {"gpu": ACCOUNTED, "job": JOB_METRICS, "node": NODE_METRICS}


@dataclass(frozen=True)
class Observed:
    """One node: its activity with the labels of its seconds, what the rules say, its devices, where samples are damaged."""

    activity: ActivityFold
    labels: Codes
    outcomes: list[RuleOutcome]
    figures: Figures
    damaged: Mapping[Source, tuple[tuple[int, int], ...]]


class Workers(Protocol):
    """Call a step of `NodeWork` for each of the nodes; results come in the order of the nodes."""

    def __call__(self, step: str, nodes: Sequence[str], *arguments: Any) -> Iterator[Any]:
        """Raises what the step raises."""
        ...


Crew = Callable[[JobSamples, RuleSet], Workers]


def alone(samples: JobSamples, ruleset: RuleSet) -> Workers:
    """Every node in this process, one after the other."""
    work = NodeWork(samples, ruleset, samples.nodes)
    return lambda step, nodes, *arguments: (getattr(work, step)(node, *arguments) for node in nodes)


class NodeWork:
    """Looks at some of a job's nodes, one at a time: first `observe` all, then `compare` all, then `account`.

    A node's samples are read once for its activity, the rules and figures; of what the later steps need as much is
    kept as fits into the memory of `samples`, the rest is read again.
    """

    def __init__(self, samples: JobSamples, ruleset: RuleSet, nodes: Iterable[str]) -> None:
        self._samples = samples
        self._ruleset = ruleset
        self._unseen = set(nodes)
        every = (*PHASE_METRICS, *ruleset.metrics().get("gpu", ()), *FIGURES, *ACCOUNTED)
        self._fits = samples.want_kept(every, self._gpus(self._unseen))
        self._books = Bookkeeper(samples)

    def observe(self, node: str) -> Observed:
        """Everything that depends on no other node."""
        samples = self._samples
        if not self._fits:
            samples.want_only("gpu", PHASE_METRICS)
        activity = gather(samples, node)
        labels = label_activity(activity.result(), samples.job.tags, marks_of(samples, node))
        for scope, names in self._ruleset.metrics().items():
            samples.want(scope, names)
        outcomes = judge_node(samples, self._ruleset, node, labels)
        figures = self._books.describe(node)
        self._unseen.discard(node)
        self._keep(node, self._gpus(self._unseen))
        return Observed(activity, labels, outcomes, figures, dict(samples.damaged))

    def compare(self, node: str, phases: Codes) -> dict[str, PeerFold]:
        """What its GPUs did under the phases of the whole job, by model: the measure for their peers."""
        self._samples.want_only("gpu", ACCOUNTED)
        folds = self._books.compare(node, phases)
        self._keep(node)
        return folds

    def account(
        self, node: str, phases: Codes, cases: Sequence[Case], peers: Mapping[str, PeerFold]
    ) -> Accounts:
        """Where the time of its GPUs went, given what was found on all nodes."""
        self._samples.want_only("gpu", ACCOUNTED)
        accounts = self._books.account(node, phases, cases, peers)
        for source in self._sources(node):
            self._samples.forget(source)
        return accounts

    def _keep(self, node: str, ahead: Sequence[Source] = ()) -> None:
        """Keep what is needed again, and room for the largest node of `ahead`, at least for a GPU that is read again."""
        sources = self._sources(node)
        beside = self._samples.room_of_a_node(ahead or sources[:1])
        for source in sources:
            self._samples.keep(source, _ACCOUNTED[source.scope], beside)

    def _gpus(self, nodes: Iterable[str]) -> list[Source]:
        return [source for source in self._samples.sources("gpu") if source.node in nodes]

    def _sources(self, node: str) -> list[Source]:
        scopes = ("gpu", "node", "job")
        return [one for scope in scopes for one in self._samples.sources(scope) if one.node == node]
