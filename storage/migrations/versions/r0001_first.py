"""The first released schema."""

from __future__ import annotations

from alembic import op

from gpudiag.storage import ddl

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Run the revision's statements for this engine."""
    engine = "sqlite" if op.get_bind().dialect.name == "sqlite" else "postgres"
    for statement in ddl.statements(engine, 1):
        op.execute(statement)
