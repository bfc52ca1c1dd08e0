"""`gpudiag completion`: the script that makes a shell complete commands, options and values."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    For this shell only: eval "$(gpudiag completion bash)". For everybody: save it where the shell looks, such as
    /usr/share/bash-completion/completions/gpudiag.
    """
    click.echo(script(shell))


def script(shell: str) -> str:
    """Click's own completion script; it asks `gpudiag` itself for what is possible."""
    from click.shell_completion import get_completion_class

    from gpudiag.cli.main import cli

    completion = get_completion_class(shell)
    assert completion is not None, shell
    return completion(cli, {}, "gpudiag", "_GPUDIAG_COMPLETE").source()
