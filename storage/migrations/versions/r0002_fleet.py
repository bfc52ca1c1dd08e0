"""Forwarding cursors, frozen reports, and views for people."""

from __future__ import annotations

from alembic import op

from gpudiag.storage import ddl

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Run the revision's statements for this engine."""
    engine = "sqlite" if op.get_bind().dialect.name == "sqlite" else "postgres"
    for statement in ddl.statements(engine, 2):
        op.execute(statement)
