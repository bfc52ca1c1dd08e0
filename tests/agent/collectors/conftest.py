from __future__ import annotations

from pathlib import Path

import pytest
from fake_host import FakeHost

from gpudiag.agent.clock import ManualClock


@pytest.fixture
def host(tmp_path: Path, clock: ManualClock) -> FakeHost:
    return FakeHost(tmp_path, clock)
