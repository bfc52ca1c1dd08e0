"""A recorded job played to the engine that runs in the agent, against the judgement of the whole job afterwards."""

from __future__ import annotations

from dataclasses import replace

from bench.scenarios.build import Recording
from bench.scenarios.write import frames

from gpudiag.rules.engine import judge
from gpudiag.rules.live import LiveEngine, LiveJob, body_of
from gpudiag.rules.ruleset import RuleSet
from gpudiag.rules.samples import JobSamples
from gpudiag.storage.sample import Source
from gpudiag.storage.store import StoredFinding

Findings = dict[tuple[str, Source, int], StoredFinding]
GRID_MS = 10_000


def differences(recording: Recording, samples: JobSamples, ruleset: RuleSet, every_s: int = 10) -> list[str]:
    """Findings that one of the two does not have, or has otherwise in any field; none is what we want."""
    now, later = live(recording, ruleset, every_s), afterwards(samples, ruleset)
    return [
        f"{key[0]} {key[1].device} {key[2]}: live {now.get(key)}, afterwards {later.get(key)}"
        for key in sorted({*now, *later})
        if now.get(key) != later.get(key)
    ]


def afterwards(samples: JobSamples, ruleset: RuleSet) -> Findings:
    """What a pass over the whole job finds, in the form in which the agent stores findings."""
    return {
        (fired.rule, fired.source, one.start_ms): StoredFinding(
            fired.rule,
            fired.source,
            one.start_ms,
            None if one.open else one.end_ms,
            one.severity,
            samples.job.key,
            body_of(one, fired.cause),
        )
        for fired in judge(samples, ruleset).fired
        for one in fired.intervals
    }


def live(recording: Recording, ruleset: RuleSet, every_s: int = 10) -> Findings:
    """What the engines of the job's nodes have said by the end, each fed with what its own agent sees."""
    found = Findings()
    for node in sorted({source.node for source in recording.blocks}):
        found |= _live_on(node, recording, ruleset, every_s)
    return found


def _live_on(node: str, recording: Recording, ruleset: RuleSet, every_s: int) -> Findings:
    """One engine, fed in time order and judging every `every_s` seconds."""
    job = recording.job
    engine = LiveEngine(ruleset, node, maturities=("stable", "incubating"), together_s=every_s)
    devices = tuple(recording.devices.values())
    engine.set_jobs([LiveJob(replace(job, end_ms=None), tuple(recording.allocations), devices)])
    here = [frames(block) for source, block in recording.blocks.items() if source.node == node]
    waiting = sorted((frame for some in here for frame in some), key=lambda frame: frame.time_ms)
    events = [event for event in recording.events if event.source.node == node]
    end_ms = job.end_ms or 0
    at, before_ms, found = 0, 0, Findings()
    first_ms = job.start_ms // GRID_MS * GRID_MS
    engine.evaluate(first_ms)  # the agent was there before the job
    last_ms = -(-end_ms // 1000) * 1000 // GRID_MS * GRID_MS  # the second in which it ends is judged whole
    for now_ms in (*range(first_ms + every_s * 1000, last_ms, every_s * 1000), last_ms):
        stop = at
        while stop < len(waiting) and waiting[stop].time_ms < now_ms:
            stop += 1
        engine.observe(waiting[at:stop])
        engine.observe_events([e for e in events if before_ms <= e.time_ms < now_ms])
        at, before_ms = stop, now_ms
        found.update(((f.rule, f.source, f.start_ms), f) for f in engine.evaluate(now_ms))
    # an open one is told again once a minute only
    found.update(((f.rule, f.source, f.start_ms), f) for f in engine.open)
    return found
