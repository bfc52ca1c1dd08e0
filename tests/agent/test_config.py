from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.agent import configfile, values
from gpudiag.agent.config import Config, keys
from gpudiag.errors import InputError, LocatedError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_defaults_when_nobody_says_anything(tmp_path: Path) -> None:
    config = configfile.load(write(tmp_path / "empty.toml", ""))
    assert config == Config()


def test_later_sources_win_and_origins_tell_which(tmp_path: Path) -> None:
    main = write(tmp_path / "gpudiag.toml", '[agent]\ninterval = "2s"\nflush = "20s"\nnode = "a"\n')
    write(tmp_path / "conf.d" / "20-b.toml", '[agent]\nflush = "40s"\n')
    write(tmp_path / "conf.d" / "10-a.toml", '[agent]\nflush = "30s"\ncluster = "c"\n')
    environ = {"GPUDIAG_AGENT__NODE": "b", "GPUDIAG_AGENT__CLUSTER": "d"}

    config = configfile.load(main, environ, {"agent.cluster": "e"})

    section = config.agent
    assert (section.interval, section.flush, section.node, section.cluster) == (2.0, 40.0, "b", "e")
    assert config.origins == {
        "agent.interval": f"{main}:2",
        "agent.flush": f"{tmp_path}/conf.d/20-b.toml:2",
        "agent.node": "environment variable GPUDIAG_AGENT__NODE",
        "agent.cluster": "command line",
    }


def test_all_mistakes_are_told_at_once_with_their_places(tmp_path: Path) -> None:
    main = write(
        tmp_path / "gpudiag.toml",
        '[agent]\n  interval = 1\n[metrics]\nlisten = "nowhere"\nlissten = ":1"\n[sorces]\nnvml = true\n',
    )
    with pytest.raises(LocatedError) as caught:
        configfile.load(main, {"GPUDIAG_RULES__ENABLED": "maybe"}, {"agent.flush": "10"})

    found = [(problem.line, problem.column, problem.message) for problem in caught.value.problems]
    duration = 'expected a duration with a unit, such as "250ms", "1s", "10m" or "14d"'
    assert found == [
        (2, 3, f"agent.interval: {duration}, found 1"),
        (4, 1, "metrics.listen: expected an address and a port, such as \"127.0.0.1:9836\", found 'nowhere'"),
        (5, 1, "unknown key metrics.lissten; did you mean metrics.listen?"),
        (6, 2, "unknown section [sorces]; did you mean sources?"),
        (0, 0, "rules.enabled: expected true or false, found 'maybe'"),
        (0, 0, f"agent.flush: {duration}, found '10'"),
    ]
    assert f"{main}:2:3: agent.interval" in str(caught.value)
    assert "environment variable GPUDIAG_RULES__ENABLED: rules.enabled" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("[agent]\ninterval = \n", 2, 12), ('[agent]\nnode = "a"\nnode = "b"\n', 3, 1), ("[agent", 1, 1)],
)
def test_broken_toml_names_the_line(tmp_path: Path, text: str, line: int, column: int) -> None:
    with pytest.raises(LocatedError) as caught:
        configfile.load(write(tmp_path / "x.toml", text))
    (problem,) = caught.value.problems
    assert problem.line == line
    assert problem.message.startswith("not valid TOML")


def test_a_named_file_must_exist_the_default_one_need_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such configuration file"):
        configfile.load(tmp_path / "absent.toml")


def test_binary_configuration_is_an_error_not_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read the configuration"):
        configfile.load(path)


def test_database_variable_of_all_commands_counts_for_the_agent_too(tmp_path: Path) -> None:
    main = write(tmp_path / "x.toml", '[storage]\nurl = "sqlite:////a.db"\n')
    config = configfile.load(main, {"GPUDIAG_DB": "sqlite:////b.db"})
    assert config.storage.url == "sqlite:////b.db"


def test_dump_reads_back_as_the_same_configuration(tmp_path: Path) -> None:
    flags = {
        "agent.interval": "250ms",
        "rules.paths": "a,b",
        "metrics.listen": "[::1]:80",
        "cost.gpu_hour": "2.5",
    }
    config = configfile.load(None, {}, flags)
    again = configfile.load(write(tmp_path / "dump.toml", configfile.dump(config)))
    assert [getattr(again, item.section) for item in keys()] == [
        getattr(config, item.section) for item in keys()
    ]


def test_dump_shows_origins_but_no_secrets() -> None:
    config = configfile.load(None, {}, {"forward.url": "postgresql://u:secret@h/d", "agent.node": "n"})
    text = configfile.dump(config)
    assert "secret" not in text
    assert 'node = "n"  # command line' in text
    assert 'flush = "10s"  # default' in text


@given(st.floats(0.001, 1e7), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_durations_keep_their_length(amount: float, unit: str) -> None:
    factor = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
    assert values.duration(f"{amount:f} {unit}") == pytest.approx(float(f"{amount:f}") * factor)


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.integers())))
def test_no_parser_lets_anything_but_value_errors_out(value: object) -> None:
    for item in keys():
        with contextlib.suppress(ValueError):
            item.parse(value)


@pytest.mark.parametrize(
    ("text", "size"), [("512MiB", 2**29), ("8GiB", 2**33), ("1.5 kB", 1500), (77, 77), ("12", 12)]
)
def test_sizes(text: object, size: int) -> None:
    assert values.size(text) == size
