"""The option `--lang` of every command that prints texts for people."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpudiag.cli.messages import Words


def _words(_context: click.Context, _parameter: click.Parameter, language: str) -> Words:
    from gpudiag.cli.messages import language_of, load, spoken_on

    return spoken_on(sys.stdout, load(language_of(language, os.environ)))


# the command gets `words`, which speaks the language; English where standard output cannot show it
speaks = click.option(
    "--lang", "words", default="", metavar="en|zh", callback=_words, help="Language (default: the locale's)."
)
