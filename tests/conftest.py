"""Shared fixtures: each plugin module holds the fixtures of one real or fake program."""

from __future__ import annotations

import signal

# A runner in the background of a shell, or under nohup, hands down ignored signals, and commands under test would
# rightly keep ignoring them.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

pytest_plugins: list[str] = [  # one a line, sorted
    "agent_process",
    "chromium",
    "command_line",
    "demo_database",
    "fake_nvml.fixture",
    "golden_files",
    "postgres",
    "prometheus",
    "slurm",
]
