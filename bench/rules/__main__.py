"""`python -m bench.rules`: measure the rules on labelled jobs and write the table."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

from bench.rules import scores, table
from bench.rules.outcome import Outcome, examine
from bench.scenarios import development, heldout
from bench.scenarios.spec import Scenario
from bench.scenarios.truth import CAUSES

from gpudiag.rules.loader import builtin
from gpudiag.rules.ruleset import RuleSet

RESULTS = Path(__file__).parents[1] / "RESULTS.md"


def main() -> None:
    """Run the chosen sets and print or write the section."""
    parser = argparse.ArgumentParser(prog="bench.rules", description=__doc__)
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--set", dest="chosen", choices=("development", "heldout", "all"), default="all")
    parser.add_argument("--write", action="store_true", help=f"put the table into {RESULTS.name}")
    parser.add_argument("--verbose", action="store_true", help="name every miss and false finding")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    sets = {"Development": development.scenarios, "Held-out": heldout.scenarios}
    _rules()  # before the workers start, so that they share it
    began = time.perf_counter()
    results: dict[str, Sequence[Outcome]] = {}
    for name, scenarios in sets.items():
        if options.chosen in ("all", name.lower().replace("-", "")):
            results[name] = run([s for s in scenarios() if options.only in s.name], options.jobs)
    text = table.section(results, {rule.id: rule.maturity for rule in _rules()}, time.perf_counter() - began)
    print(text)
    if options.verbose:
        _list(results)
    if options.write:
        table.put(RESULTS, text)


@cache
def _rules() -> RuleSet:
    return builtin()


def _examine(scenario: Scenario) -> Outcome:
    rules = _rules()
    return examine(
        scenario, rules.only(rule.id for rule in rules if rule.maturity in ("stable", "incubating"))
    )


def run(scenarios: Iterable[Scenario], jobs: int) -> Sequence[Outcome]:
    """Outcomes in the order of the scenarios."""
    wanted = list(scenarios)
    if jobs <= 1:
        return [_examine(scenario) for scenario in wanted]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(_examine, wanted, chunksize=4))


def _list_one(outcome: Outcome) -> None:
    off = {
        cause: f"{100 * true:.1f}->{100 * got:.1f}"
        for cause, true, got in zip(CAUSES, outcome.truth, outcome.waterfall, strict=True)
        if abs(true - got) > 0.04
    }
    if off:
        print(f"off     {outcome.scenario.name:40s} {off}")
    if scores.top_cause([outcome]) == [False]:
        print(
            f"top     {outcome.scenario.name:40s} {[(s.rule, s.cause, round(s.lost_hours, 2)) for s in outcome.roots]}"
        )


def _list(results: dict[str, Sequence[Outcome]]) -> None:
    for outcomes in results.values():
        for rule, score in scores.by_rule(outcomes).items():
            for kind, names in (("missed", score.misses), ("false", score.false)):
                for name in names:
                    print(f"{kind:7s} {rule:32s} {name}")
        for outcome in outcomes:
            _list_one(outcome)
            for difference in outcome.live:
                print(f"live    {outcome.scenario.name:40s} {difference}")


if __name__ == "__main__":
    main()
