"""Alembic environment of `gpudiag db upgrade`; nothing else imports it."""
