"""`gpudiag alerts`: Prometheus alert rules made from the rule files."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command("alerts")
@click.option("--rules", "paths", multiple=True, type=click.Path(path_type=Path), help="A rule file or folder besides the site's; repeatable.")  # fmt: skip
@click.option("--xid-catalogue", type=click.Path(path_type=Path), help="A site's file of Xids, as in sources.xid_catalogue.")  # fmt: skip
def command(paths: tuple[Path, ...], xid_catalogue: Path | None) -> None:
    """Print a Prometheus rule file: an alert per stable rule, and those about hardware and the agent."""
    import yaml

    from gpudiag.agent.xid import load_catalogue
    from gpudiag.cli.site import site_rules
    from gpudiag.rules.alerts import alert_groups

    fatal = [xid.code for xid in load_catalogue(xid_catalogue).values() if xid.is_fatal]
    content = yaml.dump(
        alert_groups(site_rules(os.environ, paths), fatal), sort_keys=False, width=110, allow_unicode=True
    )
    click.echo("# Made by `gpudiag alerts`; change rules, not this file.\n" + content, nl=False)
