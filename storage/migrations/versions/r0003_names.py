"""When a series ended, and what refers to a source: for pruning names."""

from __future__ import annotations

from alembic import op

from gpudiag.storage import ddl

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Run the revision's statements for this engine."""
    engine = "sqlite" if op.get_bind().dialect.name == "sqlite" else "postgres"
    for statement in ddl.statements(engine, 3):
        op.execute(statement)
