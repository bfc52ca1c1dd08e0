"""The schema of each revision as SQL text: what `gpudiag db upgrade` and a fresh SQLite file run alike.

A released file is never edited; the next revision is a new pair of files, plus its number in `schema.SCHEMA_VERSION`.
"""

from __future__ import annotations

from pathlib import Path


def statements(engine: str, revision: int) -> list[str]:
    """The statements of one revision for `sqlite` or `postgres`; an empty line separates them."""
    text = (Path(__file__).parent / f"{revision:04d}_{engine}.sql").read_text(encoding="utf-8")
    return [statement.strip().removesuffix(";") for statement in text.split(";\n\n") if statement.strip()]
