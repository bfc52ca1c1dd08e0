"""Logs of nvidia-smi as people have them: units, markers, encodings, several GPUs, mistakes."""

from __future__ import annotations

import contextlib
import math
from datetime import timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.errors import InputError, LocatedError
from gpudiag.storage.nvidia_smi_columns import canonical, number
from gpudiag.storage.nvidia_smi_csv import Log, Options, read
from gpudiag.storage.sample import Block

CAPTURES = Path(__file__).parents[3] / "shared" / "data"
HEADER = "timestamp, index, name, utilization.gpu [%], memory.used [MiB], power.draw [W]"
_SHORT = "timestamp, index, utilization.gpu [%]"
ROW = "2025/06/13 00:27:5{second}.195, {index}, NVIDIA A100, {busy} %, 512 MiB, 61.50 W"


def _read(tmp_path: Path, text: str | bytes, **options: object) -> Log:
    path = tmp_path / "log.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read([path], Options("node1", timezone.utc, **options))  # type: ignore[arg-type]


def _rows(*rows: str, header: str = HEADER) -> str:
    return "\n".join((header, *rows)) + "\n"


def _only(log: Log) -> Block:
    (block,) = log.blocks
    return block


def _column(log: Log, name: str) -> list[float]:
    return [float(value) for value in _only(log).columns[name]]


def test_units_in_cells_become_base_units(tmp_path: Path) -> None:
    log = _read(tmp_path, _rows(ROW.format(second=2, index=0, busy=57)))
    block = _only(log)
    assert block.times_ms.tolist() == [1749774472195]
    assert {name: float(column[0]) for name, column in block.columns.items()} == {
        "gpu_util_ratio": 0.57,
        "memory_used_bytes": 512 * 2**20,
        "power_watts": 61.5,
    }
    assert set(block.origins.values()) == {"nvml"}
    assert log.devices[0].index == 0
    assert log.devices[0].model == "NVIDIA A100"


def test_units_only_in_the_header_as_with_nounits(tmp_path: Path) -> None:
    log = _read(tmp_path, _rows("2025/06/13 00:27:52.195, 0, A100, 57, 512, 61.50"))
    assert _column(log, "gpu_util_ratio") == [0.57]
    assert _column(log, "memory_used_bytes") == [512 * 2**20]


def test_no_unit_anywhere_means_the_unit_nvidia_smi_prints(tmp_path: Path) -> None:
    header = "timestamp,clocks.sm,memory.used,temperature.gpu,temperature.gpu.tlimit"
    log = _read(tmp_path, _rows("2025/06/13 00:27:52,1410,512,40,46", header=header))
    assert _column(log, "sm_clock_hertz") == [1.41e9]
    assert _column(log, "memory_used_bytes") == [512 * 2**20]
    assert _column(log, "temperature_celsius") == [40]
    assert _column(log, "temperature_margin_celsius") == [46]


@pytest.mark.parametrize(
    "marker", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", "ERR!", ""]
)
def test_a_missing_value_is_absent_not_zero(tmp_path: Path, marker: str) -> None:
    log = _read(
        tmp_path,
        _rows(
            f"2025/06/13 00:27:52.195, 0, A100, {marker}, 512 MiB, {marker}",
            ROW.format(second=3, index=0, busy=1),
        ),
    )
    assert math.isnan(_column(log, "gpu_util_ratio")[0])
    frames = [frame for batch in log.batches() for frame in batch]
    assert frames[0].values == {"memory_used_bytes": 512 * 2**20}


def test_a_column_that_is_never_measured_is_left_out(tmp_path: Path) -> None:
    log = _read(tmp_path, _rows("2025/06/13 00:27:52.195, 0, A100, 5 %, 512 MiB, [N/A]"))
    assert "power_watts" not in _only(log).columns


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_encodings_and_line_ends(tmp_path: Path, encoding: str, newline: str) -> None:
    text = _rows(ROW.format(second=2, index=0, busy=57)).replace("\n", newline)
    assert _column(_read(tmp_path, text.encode(encoding)), "gpu_util_ratio") == [0.57]


@pytest.mark.parametrize(
    "time",
    [
        "2025/06/13 00:27:52.195",
        "2025-06-13T00:27:52.195Z",
        "2025-06-13 02:27:52.195+02:00",
        "2025-06-12T19:27:52.195-0500",
        "1749774472.195",
        "1749774472195",
    ],
)
def test_date_formats(tmp_path: Path, time: str) -> None:
    log = _read(tmp_path, _rows(f"{time}, 0, A100, 5 %, 1 MiB, 60 W"))
    assert _only(log).times_ms.tolist() == [1749774472195]


def test_a_date_format_can_be_given(tmp_path: Path) -> None:
    log = _read(
        tmp_path, _rows("13.06.25 00:27:52, 0, A100, 5 %, 1 MiB, 60 W"), time_format="%d.%m.%y %H:%M:%S"
    )
    assert _only(log).times_ms.tolist() == [1749774472000]


def test_gpus_are_told_apart_by_index(tmp_path: Path) -> None:
    rows = [ROW.format(second=second, index=index, busy=index) for second in (2, 3) for index in (0, 1)]
    log = _read(tmp_path, _rows(*rows))
    assert [len(block) for block in log.blocks] == [2, 2]
    assert len({block.source.device for block in log.blocks}) == 2
    assert [device.index for device in log.devices] == [0, 1]


def test_the_same_log_gives_the_same_synthetic_uuid(tmp_path: Path) -> None:
    text = _rows(ROW.format(second=2, index=0, busy=1))
    assert _only(_read(tmp_path, text)).source == _only(_read(tmp_path, text)).source


def test_a_uuid_is_kept_and_a_masked_one_is_not(tmp_path: Path) -> None:
    header = "timestamp, uuid, index, utilization.gpu [%]"
    own = "GPU-5f0d6c1e-0000-1111-2222-333344445555"
    masked = "GPU-00000000-0000-0000-0000-000000000000"
    log = _read(
        tmp_path,
        _rows(f"2025/06/13 00:27:52, {own}, 0, 1 %", f"2025/06/13 00:27:52, {masked}, 1, 2 %", header=header),
    )
    assert log.blocks[0].source.device == own
    assert log.blocks[1].source.device != masked


def test_rows_of_several_gpus_without_a_name_are_refused(tmp_path: Path) -> None:
    rows = [f"2025/06/13 00:27:{second:02}.{ms:03}, {ms} %" for second in range(20) for ms in (10, 13)]
    with pytest.raises(InputError, match="tells them apart"):
        _read(tmp_path, _rows(*rows, header="timestamp, utilization.gpu [%]"))


def test_rows_that_were_written_twice_count_once(tmp_path: Path) -> None:
    rows = [f"2025/06/13 00:27:{second}.195, {index}, 5 %" for second in range(10, 40) for index in (0, 1)]
    log = _read(tmp_path, _rows(*(row for row in rows for _ in range(2)), header=_SHORT))
    assert [len(block) for block in log.blocks] == [30, 30]
    assert len([note for note in log.notes if note.startswith("30 rows repeat an instant")]) == 2


def test_rows_of_one_index_that_disagree_at_one_time_are_refused_with_what_is_missing(tmp_path: Path) -> None:
    rows = [f"2025/06/13 00:27:{second}.195, 3, {busy} %" for second in range(10, 40) for busy in (10, 90)]
    with pytest.raises(InputError, match=r"GPU 3 has several rows .* do not agree.*hostname or uuid"):
        _read(tmp_path, _rows(*rows, header=_SHORT))


def test_several_files_become_one_series_in_time_order(tmp_path: Path) -> None:
    late, early = tmp_path / "b.csv", tmp_path / "a.csv"
    late.write_text(_rows(ROW.format(second=5, index=0, busy=5)))
    early.write_text(_rows(ROW.format(second=2, index=0, busy=2)))
    log = read([late, early], Options("node1", timezone.utc))
    assert _column(log, "gpu_util_ratio") == [0.02, 0.05]
    assert log.end_ms - log.start_ms == 6000  # one interval after the last sample


def test_a_header_in_the_middle_as_after_a_restart(tmp_path: Path) -> None:
    log = _read(
        tmp_path,
        _rows(
            ROW.format(second=2, index=0, busy=2),
            "timestamp, index, utilization.gpu [%]",
            "2025/06/13 00:27:53.195, 0, 3 %",
        ),
    )
    assert _column(log, "gpu_util_ratio") == [0.02, 0.03]
    assert math.isnan(_column(log, "power_watts")[1])


def test_unknown_columns_are_named_and_known_ones_used(tmp_path: Path) -> None:
    header = "timestamp, index, fan.speed [%], utilization.gpu [%], future.metric"
    log = _read(tmp_path, _rows("2025/06/13 00:27:52, 0, 30 %, 5 %, whatever", header=header))
    assert log.ignored_columns == ("fan.speed", "future.metric")


def test_a_log_without_header_needs_its_columns(tmp_path: Path) -> None:
    row = "2025/06/13 00:27:52.195, 0, 57 %\n"
    with pytest.raises(LocatedError, match="--columns"):
        _read(tmp_path, row)
    log = _read(tmp_path, row, columns=("timestamp", "index", "utilization.gpu"))
    assert _column(log, "gpu_util_ratio") == [0.57]


def test_the_log_of_a_gpu_that_was_lost_is_read_up_to_there_and_says_so(tmp_path: Path) -> None:
    lost = "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system.\n"
    log = _read(tmp_path, _rows(ROW.format(second=2, index=0, busy=2)) + lost + lost)
    assert len(_only(log)) == 1
    (note,) = log.notes
    assert "nvidia-smi says: Unable to determine the device handle" in note
    assert note.endswith("(2 times)")


def test_a_cut_last_line_is_left_out_with_a_note(tmp_path: Path) -> None:
    log = _read(tmp_path, _rows(ROW.format(second=2, index=0, busy=2)) + "2025/06/13 00:27:53.1")
    assert len(_only(log)) == 1
    assert "cut off" in log.notes[0]


def test_every_mistake_is_listed_with_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(LocatedError) as caught:
        _read(
            tmp_path,
            _rows(
                ROW.format(second=2, index=0, busy=2),
                "2025/06/13 00:27:53, 0, A100, soon %, 1 MiB, 3 W",
                "yesterday, 0, A100, 3 %, 1 MiB, 3 W",
                "a line of another program",
                "2025/06/13 00:27:54, 0, A100, 3 %, 1 W, 3 W",
            ),
        )
    assert [(problem.line, problem.column) for problem in caught.value.problems] == [
        (3, 31),
        (4, 1),
        (5, 1),
        (6, 36),
    ]
    assert "expected 6 cells" in caught.value.problems[2].message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\x7fELF\x02\x01\x01\xff\xfe\x80", "no text"),
        (b"SQLite format 3\x00aaaaaaaaaa", "binary"),
        (b"a,b\n1,2\n", "column names"),
        (b"index, utilization.gpu [%]\n0, 5 %\n", "no column timestamp"),
        (b"timestamp, fan.speed [%]\n2025/06/13 00:27:52, 5 %\n", "none of these columns"),
        (b"timestamp, utilization.gpu [%]\n2025/06/13 00:27:52, [N/A]\n", "nothing was measured"),
    ],
)
def test_what_is_no_log_is_refused_in_one_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _read(tmp_path, content)


def test_values_out_of_range_are_left_out_and_counted(tmp_path: Path) -> None:
    log = _read(tmp_path, _rows(ROW.format(second=2, index=0, busy=4294967295)))
    assert "gpu_util_ratio" not in _only(log).columns
    assert log.notes == ("1 values of utilization.gpu are out of range and were left out",)


_FLAGS = (
    "sw_power_cap",
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
)


def test_single_clock_reasons_become_the_mask(tmp_path: Path) -> None:
    header = "timestamp, " + ", ".join(f"clocks_throttle_reasons.{flag}" for flag in _FLAGS)
    row = "2025/06/13 00:27:52, Not Active, Active, Active, Not Active, Not Active"
    assert _column(_read(tmp_path, _rows(row, header=header)), "clock_event_reasons") == [0x48]


def test_a_part_of_the_clock_reasons_is_no_mask(tmp_path: Path) -> None:
    header = "timestamp, utilization.gpu [%], clocks_throttle_reasons.sw_power_cap"
    log = _read(tmp_path, _rows("2025/06/13 00:27:52, 5 %, Not Active", header=header))
    assert "clock_event_reasons" not in _only(log).columns


def test_throttle_counters_of_one_cause_are_added(tmp_path: Path) -> None:
    prefix = "clocks_event_reasons_counters"
    header = f"timestamp, {prefix}.sw_thermal_slowdown [us], {prefix}.hw_thermal_slowdown [us]"
    log = _read(tmp_path, _rows("2025/06/13 00:27:52, 1500000 us, 500000 us", header=header))
    assert _column(log, "throttle_thermal_seconds_total") == [2.0]


def test_the_hour_that_the_clocks_repeat_is_read_twice(tmp_path: Path) -> None:
    from zoneinfo import ZoneInfo

    path = tmp_path / "log.csv"
    times = ("02:59:59", "02:00:00", "02:59:59", "03:00:00")
    path.write_text(
        _rows(
            *(f"2025/10/26 {time}, {at} %" for at, time in enumerate(times)),
            header="timestamp, utilization.gpu [%]",
        )
    )
    block = _only(read([path], Options("node1", ZoneInfo("Europe/Berlin"))))
    assert [(b - a) // 1000 for a, b in zip(block.times_ms, block.times_ms[1:], strict=False)] == [1, 3599, 1]


@given(st.floats(0, 1e6, allow_nan=False).map(lambda value: round(value, 2)), st.sampled_from(["", " "]))
def test_a_number_reads_the_same_with_its_unit_in_the_cell_or_in_the_header(value: float, gap: str) -> None:
    assert number(f"{value}{gap}MiB", "", "bytes") == number(f"{value}", "MiB", "bytes") == value * 2**20


@given(st.text(max_size=20))
def test_any_cell_is_a_number_missing_or_a_value_error(cell: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(number(cell.strip(), "%", "ratio"), float)


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("logs") / "any.csv"
    path.write_text(HEADER + "\n" + text, encoding="utf-8", errors="surrogatepass")
    with contextlib.suppress(InputError):
        assert read([path], Options("node1", timezone.utc)).blocks


def test_older_spellings_mean_the_same_column() -> None:
    assert canonical(" clocks_throttle_reasons.active") == ("clocks_event_reasons.active", "")
    assert canonical("clocks.gr [MHz]") == ("clocks.current.graphics", "MHz")


def _query_gpu(capture: Path) -> str:
    """The two query-gpu answers of a capture (idle, load) as one log."""
    lines = capture.read_text().splitlines()
    heads = [at for at, line in enumerate(lines) if line.startswith("timestamp, driver_version")]
    return "\n".join([lines[heads[0]], *(lines[at + 1] for at in heads)]) + "\n"


@pytest.mark.parametrize("model", ["h100-80gb-hbm3", "l40s", "geforce-rtx-4080-super"])
def test_all_columns_of_a_real_machine(tmp_path: Path, model: str) -> None:
    found = sorted((CAPTURES / "nvidia-smi-captures").glob(f"*nvidia-{model}_*"))
    if not found:
        pytest.skip("captures of nvidia-smi are not here")
    text = _query_gpu(found[0])
    assert text.partition("\n")[0].count(",") > 190
    log = _read(tmp_path, text)
    block = _only(log)
    assert len(block) == 2
    assert log.notes == ()
    assert len(block.columns) >= 15
    assert {"power_watts", "sm_clock_hertz", "clock_event_reasons", "pcie_link_width"} <= block.columns.keys()
    device = log.devices[0]
    assert device.max_pcie_link_width == 16
    assert device.memory_total_bytes is not None
    assert device.driver


def test_the_v100_log(tmp_path: Path) -> None:
    path = CAPTURES / "nvidia-smi-csv" / "v100s-1s-miris.csv"
    if not path.exists():
        pytest.skip("the captured nvidia-smi log is not here")
    log = read([path], Options("node1", timezone.utc))
    block = _only(log)
    assert len(block) == 107
    assert max(_column(log, "gpu_util_ratio")) == 0.19
    assert max(_column(log, "memory_used_bytes")) == 1094 * 2**20
    assert set(block.columns) == {
        "gpu_util_ratio", "memory_util_ratio", "memory_total_bytes", "memory_used_bytes", "temperature_celsius",
    }  # fmt: skip
