"""The agent keeps its database within age and size, and shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudiag.agent.config import StorageSection
from gpudiag.agent.housekeeping import Housekeeping, policy
from gpudiag.agent.sampler import Snapshot
from gpudiag.errors import StoreError
from gpudiag.storage.open import open_store
from gpudiag.storage.retention import Policy
from gpudiag.storage.sample import Frame, Source
from gpudiag.storage.sqlstore import SqlStore

DAY_MS = 86_400_000
GPU = Source("n1", "GPU-0")


class Clock:
    """Sixteen days later."""

    def now_ms(self) -> int:
        return 16 * DAY_MS

    def monotonic(self) -> float:
        return 0.0

    def boottime(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("housekeeping does not sleep by the clock")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A sample on each of 15 days."""
    url = f"sqlite:///{tmp_path}/gpudiag.db"
    store = open_store(url, node="n1")
    for day in range(1, 16):
        store.append([Frame(GPU, day * DAY_MS, {"power_watts": 300.0})])
    store.close()
    return url


def exposed(keeper: Housekeeping, snapshot: Snapshot | None = None) -> dict[str, float]:
    return {
        sample.name: sample.value for family in keeper.families(snapshot) for sample in family.samples  # type: ignore[arg-type]
    }  # fmt: skip


def test_the_defaults_are_those_of_the_policy() -> None:
    assert policy(StorageSection()) == Policy(14, 400, 800, 1830, max_bytes=10 * 2**30)


def test_a_round_prunes_and_measures(url: str) -> None:
    keeper = Housekeeping(
        lambda: open_store(url, node="n1", seal=False), Policy(raw_days=14), Clock(), start=False
    )
    assert exposed(keeper) == {"gpudiag_store_dropped_chunks_total": 0.0}
    keeper.once()
    store = open_store(url, node="n1")
    assert len(store.read(GPU, 0, 2**42)) == 14
    store.close()
    assert exposed(keeper)["gpudiag_store_bytes"] > 0
    keeper.close()


def test_samples_dropped_at_the_limit_are_counted(url: str) -> None:
    keeper = Housekeeping(
        lambda: open_store(url, node="n1", seal=False),
        Policy(max_bytes=1),
        Clock(),
        sink="u@h:5432/d",
        start=False,
    )
    keeper.once()
    assert exposed(keeper)["gpudiag_store_dropped_chunks_total"] == 15.0
    keeper.close()


def test_a_store_that_cannot_be_opened_is_logged_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> SqlStore:
        raise StoreError("locked by another process")

    keeper = Housekeeping(refuse, Policy(), Clock(), start=False)
    keeper.once()
    assert "could not be pruned: locked by another process" in caplog.text
    keeper.close()
