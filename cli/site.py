"""What this site has configured for judging stored jobs: its rule files and its prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpudiag.agent.config import CostSection
    from gpudiag.rules.energy import Cost
    from gpudiag.rules.ruleset import RuleSet


def site_rules(environ: Mapping[str, str], more: Iterable[Path] = ()) -> RuleSet:
    """Built-in rules, those of `[rules] paths`, as the agent judges by live, then `more`. Raises `InputError`."""
    from gpudiag.agent import configfile
    from gpudiag.rules.loader import load

    return load([*configfile.load(None, environ).rules.paths, *more])


def prices(environ: Mapping[str, str]) -> Cost | None:
    """The site's prices as configured under `[cost]`, None when it names none. Raises `InputError`."""
    from gpudiag.agent import configfile

    return cost_of(configfile.load(None, environ).cost)


def cost_of(site: CostSection) -> Cost | None:
    """Prices of the configuration, None when it names none."""
    from gpudiag.rules.energy import Cost

    if not site.gpu_hour and not site.kilowatt_hour:
        return None
    return Cost(site.currency, site.gpu_hour, site.kilowatt_hour, site.pue)
