"""The `gpudiag` command: lists subcommands without importing them, turns errors into exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from gpudiag import __version__
from gpudiag.errors import GpudiagError

# name: (module, one line for --help); the module holds a click command called `command`
COMMANDS = {
    "agent": ("gpudiag.cli.agent", "Sample this node, judge it live and serve /metrics (the service)."),
    "alerts": ("gpudiag.cli.alerts", "Print Prometheus alert rules made from the rule files."),
    "check": ("gpudiag.cli.check", "One-shot health of this node, for schedulers and probes."),
    "compare": ("gpudiag.cli.compare", "Why is one job slower than another?"),
    "completion": ("gpudiag.cli.completion", "Print the completion script of a shell."),
    "dashboard": ("gpudiag.cli.dashboard", "Print a Grafana dashboard made from the catalog."),
    "db": ("gpudiag.cli.db", "Status, upgrade, pruning and compaction of the database."),
    "demo": ("gpudiag.cli.demo", "Run a simulated slow job through the real pipeline and report it."),
    "doctor": ("gpudiag.cli.doctor", "What can be measured here, what cannot, and why."),
    "estimate": ("gpudiag.cli.estimate", "Memory, batch, FLOP, energy and cost of a model."),
    "export": ("gpudiag.cli.export", "Write a job's samples as CSV, Parquet or JSON lines."),
    "import": ("gpudiag.cli.import_", "Read a log recorded by nvidia-smi, or a trace, as a job."),
    "job": ("gpudiag.cli.job", "Tell the agent that a job starts or ends (for scheduler hooks)."),
    "jobs": ("gpudiag.cli.jobs", "List jobs by user, time, state, verdict or lost GPU-hours."),
    "memory": ("gpudiag.cli.memory", "Read a PyTorch memory snapshot: what fragments, what pins it."),
    "oom": ("gpudiag.cli.oom", "Explain the out-of-memory messages in a training log."),
    "report": ("gpudiag.cli.report", "Where did the GPU time of a job go, and what to change first?"),
    "rules": ("gpudiag.cli.rules", "List, check, test and explain rules."),
    "run": ("gpudiag.cli.run", "Run a command and record it as a job."),
    "service": ("gpudiag.cli.service", "Install or remove the systemd service."),
    "top": ("gpudiag.cli.top", "Live table of GPUs, jobs and open findings."),
}


class LazyGroup(click.Group):
    """A group that imports a subcommand only when it runs: `--help` stays under 0.2 s."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        loaded: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return loaded

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        names = [name for name in sorted(COMMANDS) if name.startswith(incomplete)]
        return [CompletionItem(name, help=COMMANDS[name][1]) for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(COMMANDS.items())])


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="gpudiag")
def cli() -> None:
    """Diagnose GPU jobs: where the GPU time went, what proves it, what to change first."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 ok, 1 error, 2 usage, 3 findings, 4 no job, 5 unavailable, 130 Ctrl-C."""
    try:
        status = cli.main(args=arguments, prog_name="gpudiag", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except GpudiagError as error:
        click.echo(f"gpudiag: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:  # a full disk, a reader that went away: nothing a traceback would explain
        if not isinstance(error, BrokenPipeError):
            click.echo(f"gpudiag: {error}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)
