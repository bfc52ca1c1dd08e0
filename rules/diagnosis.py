"""The diagnosis of a job: phases, waterfall, findings and verdict, from what a store holds about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpudiag.message import Message
from gpudiag.rules import oom
from gpudiag.rules.accounts import Accounts, Figures
from gpudiag.rules.activity import Activity, ActivityFold
from gpudiag.rules.energy import Cost
from gpudiag.rules.engine import conclude
from gpudiag.rules.explain import case_of, merge
from gpudiag.rules.judgement import RuleOutcome
from gpudiag.rules.model import Diagnosis
from gpudiag.rules.node_work import Crew, Observed, alone
from gpudiag.rules.peers import PeerFold
from gpudiag.rules.phase_spans import refine, spans
from gpudiag.rules.phases import Codes, label_activity, marks_of
from gpudiag.rules.ruleset import RuleSet
from gpudiag.rules.samples import JobSamples
from gpudiag.rules.verdict import verdict
from gpudiag.storage.job import Job, Json
from gpudiag.storage.store import Reader

_USEFUL = ("train", "not_measured")


def diagnose(
    reader: Reader,
    job: Job,
    ruleset: RuleSet,
    *,
    now_ms: int,
    cost: Cost | None = None,
    crew: Crew = alone,
) -> Diagnosis:
    """Say where the GPU time of `job` went, up to its end, or to `now_ms` while it runs.

    Of `ruleset`, the rules that are on are judged. One node is in memory at a time; `crew` looks at them, by itself or
    in several processes, with the same result. Raises `StoreError` when the store cannot be read.
    """
    return diagnose_samples(JobSamples.read(reader, job, now_ms), ruleset.active(), cost, crew)


def diagnose_samples(
    samples: JobSamples, ruleset: RuleSet, cost: Cost | None = None, crew: Crew = alone
) -> Diagnosis:
    """`diagnose` for samples that are already at hand; every rule given is judged."""
    nodes = samples.nodes
    at_work = crew(samples, ruleset)
    activity, labels, outcomes, figures = _together(samples, at_work("observe", nodes))
    phases = refine(activity, labels, marks_of(samples))
    judgement = conclude(samples, ruleset, outcomes)
    gpus = samples.sources("gpu")
    cases = [case_of(fired, ruleset[fired.rule].explains, gpus) for fired in judgement.fired]
    peers = _peers(at_work("compare", nodes, phases)) if len(gpus) > 1 else {}
    accounts = Accounts()
    for part in at_work("account", nodes, phases, cases, peers):
        accounts.add_all(part)
    findings = merge(cases, accounts.lost_hours)
    buckets = accounts.waterfall.buckets()
    found = spans(activity, phases)
    extra = _extra(accounts, cost)
    serving = any(span.phase == "inference" for span in found)
    return Diagnosis(
        job=samples.job,
        start_ms=samples.start_ms,
        end_ms=samples.end_ms,
        nodes=nodes,
        coverage=figures.coverage.result(samples),
        verdict=verdict(figures.coverage, buckets, findings, serving),
        findings=findings,
        waterfall=buckets,
        total_gpu_hours=accounts.waterfall.total_gpu_hours,
        phases=found,
        devices=tuple(figures.devices),
        events=samples.events,
        passed=judgement.passed,
        not_evaluated=judgement.not_evaluated,
        notes=(
            *oom.notes(samples.job.meta.get("oom_messages", ())),
            *_notes(figures, samples),
            *_price_notes(extra),
        ),
        extra=extra,
        rule_versions=ruleset.versions(),
    )


def _together(
    samples: JobSamples, nodes: Iterable[Observed]
) -> tuple[Activity, Codes, list[RuleOutcome], Figures]:
    """Activity and labels of the whole job, and what was said of each node; a node at a time is in memory."""
    fold, figures = ActivityFold(samples.start_ms, samples.seconds), Figures()
    outcomes: list[RuleOutcome] = []
    labels = None
    for one in nodes:
        fold.add(one.activity)
        figures.add_all(one.figures)
        outcomes += one.outcomes
        samples.damaged.update(one.damaged)
        labels = one.labels
    activity = fold.result()
    if labels is None or len(samples.nodes) > 1:
        labels = label_activity(activity, samples.job.tags, marks_of(samples))
    return activity, labels, outcomes, figures


def _peers(nodes: Iterable[Mapping[str, PeerFold]]) -> dict[str, PeerFold]:
    folds: dict[str, PeerFold] = {}
    for node in nodes:
        for model, fold in node.items():
            if model in folds:
                folds[model].add_all(fold)
            else:
                folds[model] = fold
    return folds


def _notes(figures: Figures, samples: JobSamples) -> tuple[str, ...]:
    """What was not measured and would have sharpened the diagnosis."""
    notes = []
    headlines = {report.headline for report in figures.devices if report.headline}
    if headlines and "sm_active_ratio" not in headlines:
        notes.append(
            Message(
                "SM activity was not measured; utilisation only says that some kernel ran, so losses inside busy time "
                "are not seen. DCGM, or NVML on Hopper and newer, would measure it."
            )
        )
    if len(headlines) > 1:
        notes.append(
            Message(
                "GPUs were measured in different ways ({metrics}): do not compare them.",
                metrics=", ".join(sorted(headlines)),
            )
        )
    if samples.silent:
        notes.append(
            Message(
                "Nobody said that the job ended, and nothing of it was measured any more: this report ends there. "
                "Did its node go away?"
            )
        )
    hosts = set(samples.reader.sources(samples.start_ms, samples.end_ms))
    if not hosts & {source for scope in ("job", "node") for source in samples.sources(scope)}:
        notes.append(
            Message(
                "Nothing was measured on the host: why a GPU waited for input cannot be told. The agent measures it."
            )
        )
    return tuple(notes)


def _price_notes(extra: Mapping[str, Json]) -> list[str]:
    """What the job cost, in words, where the site has named prices."""
    if "cost" not in extra:
        return []
    price, energy = extra["cost"], extra.get("energy", {})
    return [
        Message(
            "The job cost {total} {currency} with {used} kWh, {lost} {currency} of it for lost time.",
            total=f"{price['total']:.2f}",
            lost=f"{price['lost']:.2f}",
            used=f"{energy.get('kilowatt_hours', 0.0):.2f}",
            currency=str(price["currency"]),
        )
    ]


def _extra(accounts: Accounts, cost: Cost | None) -> Mapping[str, Json]:
    """Energy and money."""
    total = accounts.waterfall.total_gpu_hours
    lost = sum(b.gpu_hours for b in accounts.waterfall.buckets() if b.cause not in _USEFUL)
    return dict(accounts.energy.report(cost, total, lost))
