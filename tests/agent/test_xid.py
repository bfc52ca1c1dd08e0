"""The Xid catalogue, a site's changes to it, and one event for what several places report."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudiag.agent.xid import ACTIONS, CLASSES, WithXids, XidReports, load_catalogue
from gpudiag.errors import InputError
from gpudiag.storage.job import Event
from gpudiag.storage.sample import Frame, Source

GPU = Source("n1", "GPU-0")


def xid(code: int, time_ms: int = 0, known_from: str = "kernel_log", **detail: object) -> Event:
    return Event(GPU, time_ms, "xid", code, detail={"known_from": known_from, **detail})


def test_every_entry_has_a_known_class_and_action() -> None:
    catalogue = load_catalogue()
    assert len(catalogue) > 80
    for entry in catalogue.values():
        assert entry.kind in CLASSES
        assert entry.action in ACTIONS
        assert 0 < len(entry.name) < 100


@pytest.mark.parametrize(
    ("code", "kind", "action"),
    [
        (13, "application", "check_job"),
        (43, "application", "check_job"),
        (45, "echo", "none"),
        (48, "hardware", "reset_gpu"),
        (63, "info", "none"),
        (64, "hardware", "contact_support"),
        (74, "link", "check_link"),
        (79, "hardware", "reboot_node"),
        (94, "hardware", "restart_job"),
        (95, "hardware", "drain_node"),
        (119, "driver", "reset_gpu"),
        (154, "info", "none"),
    ],
)
def test_the_codes_that_matter_most(code: int, kind: str, action: str) -> None:
    entry = load_catalogue()[code]
    assert (entry.kind, entry.action) == (kind, action)


def test_a_site_may_change_one_key_of_one_code_and_add_codes(tmp_path: Path) -> None:
    path = tmp_path / "xids.yaml"
    path.write_text(
        "gpudiag_xids: 1\nxids:\n  94: {action: drain_node}\n  999: {name: Ours, class: link, action: none}\n"
    )
    catalogue = load_catalogue(path)
    assert (catalogue[94].action, catalogue[94].kind) == ("drain_node", "hardware")
    assert catalogue[999].name == "Ours"
    assert load_catalogue()[94].action == "restart_job"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("xids: {}", "gpudiag_xids: 1"),
        ("gpudiag_xids: 1\nxids: {a: {}}", "expected a number"),
        ("gpudiag_xids: 1\nxids: {13: {class: bad}}", "class 'bad': expected one of application"),
        ("gpudiag_xids: 1\nxids: {13: {action: bad}}", "action 'bad': expected one of none"),
        ("gpudiag_xids: 1\nxids: {13: {nmae: x}}", "unknown key 'nmae'"),
        ("gpudiag_xids: 1\nxids: {13: {repeat: 0}}", "repeat 0"),
        ("gpudiag_xids: [\n", ":2:1: no YAML"),
    ],
)
def test_mistakes_in_a_sites_file_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "xids.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        load_catalogue(path)
    assert str(raised.value).startswith(str(path))
    assert message in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: No such file"):
        load_catalogue(tmp_path / "none.yaml")


def test_an_event_says_what_it_means() -> None:
    [event] = XidReports(load_catalogue()).admit([xid(79, pid=7)])
    assert event.detail["class"] == "hardware"
    assert event.detail["action"] == "reboot_node"
    assert event.detail["pid"] == 7


def test_a_code_that_nobody_knows_is_still_an_event() -> None:
    [event] = XidReports(load_catalogue()).admit([xid(4711)])
    assert event.detail["name"] == "Not in the catalogue"


def test_nvlink_reports_that_call_themselves_harmless_are_information() -> None:
    reports = XidReports(load_catalogue())
    [harmless] = reports.admit([xid(145, fatal=False)])
    [fatal] = reports.admit([xid(149, fatal=True)])
    assert (harmless.detail["class"], fatal.detail["class"]) == ("info", "link")


def test_what_two_places_report_is_one_event() -> None:
    reports = XidReports(load_catalogue())
    assert len(reports.admit([xid(79, 1000)])) == 1
    assert reports.admit([xid(79, 1500, "nvml"), xid(79, 30_000, "dcgm")]) == []
    assert len(reports.admit([xid(79, 62_000, "nvml")])) == 1


def test_the_order_of_the_places_does_not_matter() -> None:
    reports = XidReports(load_catalogue())
    assert len(reports.admit([xid(79, 1500, "nvml"), xid(79, 1000)])) == 1


def test_one_place_may_report_again() -> None:
    reports = XidReports(load_catalogue())
    assert len(reports.admit([xid(13, 0), xid(13, 10), xid(31, 10)])) == 3


def test_an_event_of_nvml_does_not_name_its_place() -> None:
    reports = XidReports(load_catalogue())
    assert len(reports.admit([Event(GPU, 0, "xid", 79)])) == 1
    assert reports.admit([xid(79, 10)]) == []


def test_other_events_pass_untouched() -> None:
    event = Event(GPU, 0, "oom_kill", detail={"pid": 1})
    assert XidReports(load_catalogue()).admit([event]) == [event]


class Told:
    name = "told"
    rejected = {"power_watts": 2}  # noqa: RUF012 - a double

    def __init__(self, *items: object) -> None:
        self.items = items
        self.closed = False

    def collect(self, now_ms: int) -> list[object]:
        return list(self.items)

    def close(self) -> None:
        self.closed = True


def test_collectors_share_their_reports() -> None:
    reports = XidReports(load_catalogue())
    frame = Frame(GPU, 0, {"power_watts": 1.0})
    told = Told(frame, xid(79))
    first, second = WithXids(told, reports), WithXids(Told(xid(79, 5, "nvml")), reports)  # type: ignore[arg-type]
    assert [type(item) for item in first.collect(0)] == [Frame, Event]
    assert list(second.collect(0)) == []
    assert (first.name, first.rejected) == ("told", {"power_watts": 2})
    first.close()
    assert told.closed
