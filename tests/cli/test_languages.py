"""Every command says what it says in the reader's language: no English sentence is left in Chinese output."""

from __future__ import annotations

import ast
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Gpudiag
from fake_nvml.control import FakeNvml

from gpudiag.cli.render import labels
from gpudiag.storage.retention import Pruned
from gpudiag.storage.status import _COUNTED

ROOT = Path(__file__).resolve().parents[2]
# two English words in a row; names, paths, options and metrics have other signs at their sides
SENTENCE = re.compile(r"(?<![\w./=:\"'-])[A-Za-z]{2,}[,;:]? [a-z]{2,}(?![\w/=(-]|\.\w)")
VERBATIM = (  # commands to type, and what others say in their own words
    r"gpudiag [a-z]+( [a-z]+)?",
    r"dcgmi profile --resume",
    r"nvidia-smi topo",
    r"systemctl start",
    r"py-spy dump",
    r"sqlite:.*",
    r"library not found",
    r"Not Supported",
    r"gpu is lost",
    r"Connection refused",
    r"Permission denied",
    r"dcgmi diag",
    r"2 L kv_heads head_size bytes tokens",
    r"srun --pty gpudiag top",
    r"flash attention",
    r"scaled-dot-product attention",
    r"SM [a-z]+",
)
OOM = (
    "CUDA out of memory. Tried to allocate 20.00 GiB (GPU 0; 79.00 GiB total capacity; 70.00 GiB already allocated; "
    "1.00 GiB free; 71.00 GiB reserved in total by PyTorch)\n"
    "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:2kB, file-rss:0kB, shmem-rss:0kB\n"
)


def english_left(text: str) -> list[str]:
    for name in VERBATIM:
        text = re.sub(name, "", text)
    return SENTENCE.findall(text)


@pytest.fixture
def chinese(gpudiag: Gpudiag, demo_database: str, monkeypatch: pytest.MonkeyPatch) -> Gpudiag:
    """Commands in a Chinese locale, on the database of the demo."""
    monkeypatch.setenv("GPUDIAG_DB", demo_database)
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    return gpudiag


@pytest.mark.parametrize(
    "arguments",
    [
        "report --job 42 --verbose",
        "report --job 42 --markdown",
        "jobs --worst",
        "compare 42 42",
        "doctor --job 42",
        "rules list --all",
        "rules check",
        "rules test --rule health/ecc",
        "db status",
        "estimate train --model llama-3-8b --gpus 8 --zero 2 --recompute selective",
        "estimate train --model llama-3-8b --lora 16",
        "estimate train --model llama-3-8b --qlora 16 --precision bf16",
        "estimate infer --model llama-3-8b --gpus 2",
        "estimate mfu --model llama-3-8b --tokens-per-second 99999 --total-tokens 1T",
        "estimate batch --job 42 --params 7B",
        "estimate cost --job 42 --price-kwh 0.2 --price-gpu-hour 2 --hardware-price 30000",
        "estimate cost --hours 2 --watts 300",
        "estimate myths",
        "estimate models",
    ],
)
def test_nothing_is_said_in_english(chinese: Gpudiag, arguments: str) -> None:
    outcome = chinese(*arguments.split())
    assert re.search(r"[\u4e00-\u9fff]", outcome.out), outcome.err
    assert not english_left(outcome.out + outcome.err)


@pytest.mark.parametrize("rule", ["input/cpu-bound-loader", "util/straggler", "memory/fragmentation"])
def test_only_the_expressions_of_a_rule_are_english(chinese: Gpudiag, rule: str) -> None:
    sentences, _, table = (
        chinese("rules", "explain", rule, "--job", "42").out.partition("\n\n")[2].rpartition("\n\n")
    )
    said = [line for line in sentences.splitlines() if not line.startswith("  ")]
    assert not english_left("\n".join([*said, table.splitlines()[0]]))


def test_the_driver_and_the_node(
    chinese: Gpudiag, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fake_nvml.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GPUDIAG_SOURCES__NVML_LIBRARY", str(fake_nvml.library))
    fake_nvml.fail(2, "*", "gpu_is_lost")
    for arguments in ("doctor --verbose", "check --wait 20 --gpus 64 --require-agent --idle", "top --once"):
        outcome = chinese(*arguments.split())
        assert re.search(r"[\u4e00-\u9fff]", outcome.out), outcome.err
        assert not english_left(outcome.out + outcome.err), arguments


def test_files_that_a_person_hands_in(
    chinese: Gpudiag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUDIAG_DB", f"sqlite:///{tmp_path}/own.db")
    (tmp_path / "train.log").write_text(OOM)
    block = {"size": 1 << 20, "state": "active_allocated", "frames": []}
    segment = {"total_size": 2 << 20, "address": 0, "segment_type": "large", "is_expandable": True}
    segment |= {"segment_pool_id": (0, 1), "blocks": [block, {**block, "state": "inactive"}]}
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps({"segments": [segment]}))
    (tmp_path / "run.csv").write_text(
        "time,node,device,sm_active_ratio,sm_activ_ratio\n"
        + "".join(f"{t},n,GPU-1,0.5,2\n" for t in range(1000, 1060))
    )
    for arguments in (
        "oom train.log",
        "memory snapshot.pickle --html page.html",
        "import run.csv --job 7",
        "import run.csv --job 7",
        "export --job 7 -o out.csv",
        "db upgrade",
        "db prune --raw-days 0",
        "db vacuum",
    ):
        monkeypatch.chdir(tmp_path)
        outcome = chinese(*arguments.split())
        assert outcome.code == 0, outcome.err
        assert re.search(r"[\u4e00-\u9fff]", outcome.out), arguments
        assert not english_left(outcome.out + outcome.err), arguments
    assert not english_left(re.sub("<[^>]*>", " ", (tmp_path / "page.html").read_text()))


def test_the_search_for_english_finds_a_sentence_left_behind() -> None:
    assert english_left("正常 GPU 0: no sample was taken")
    assert not english_left("GPU 0  sm_active_ratio 0.5 /dev/nvidia0  gpudiag doctor")


@pytest.mark.parametrize("arguments", ["doctor --job 42", "estimate myths", "rules list", "db status"])
def test_json_does_not_depend_on_the_language(
    chinese: Gpudiag, arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = json.loads(chinese(*arguments.split(), "--json").out)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert spoken == json.loads(chinese(*arguments.split(), "--json").out)


def test_a_terminal_without_chinese_gets_english(chinese: Gpudiag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudiag.cli.messages.can_show", lambda stream, text: text.isascii())
    assert "rules ok" in chinese("rules", "check").out


# ---- texts that no catalogue could know


def spoken_past_the_catalogue(tree: ast.AST) -> Iterator[int]:
    """Lines that print a literal with words in it which nothing translates."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "click.echo":
            yield from (
                part.lineno
                for part in _bare(node.args[0])
                if re.search(r"[A-Za-z]{3}", part.value.replace("gpudiag: ", ""))
            )


def _bare(node: ast.AST) -> Iterator[ast.Constant]:
    if isinstance(node, ast.Call):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _bare(child)


OPERATORS_ONLY = {"agent", "alerts", "dashboard", "completion", "job", "main", "service"}


@pytest.mark.parametrize(
    "path", [path for path in sorted((ROOT / "cli").glob("*.py")) if path.stem not in OPERATORS_ONLY], ids=lambda path: path.stem
)  # fmt: skip
def test_no_command_prints_past_the_catalogue(path: Path) -> None:
    assert not list(spoken_past_the_catalogue(ast.parse(path.read_text(encoding="utf-8"))))


def test_every_table_and_every_count_of_pruning_has_words() -> None:
    assert set(labels.TABLES) == set(_COUNTED)
    assert set(labels.PRUNED) == {*vars(Pruned()), "frozen_reports", "freed_bytes"}
