"""Message catalogues: what is read, and that nothing a person reads is left untranslated."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.cli import compare
from gpudiag.cli.messages import LANGUAGES, Words, language_of, load, read_po
from gpudiag.cli.render import labels
from gpudiag.cli.render.evidence_labels import EVIDENCE
from gpudiag.errors import InputError
from gpudiag.message import Message
from gpudiag.rules import loader
from gpudiag.rules.verdict import CAUSE_WORDS

ROOT = Path(__file__).resolve().parents[2]
# where texts are spoken, and which arguments of what is called there are texts
SPEAKERS: dict[str, dict[str, tuple[int, ...]]] = {
    "cli": {
        "_": (0,),
        "words": (0,),
        "say": (0,),
        "Message": (0,),
        "joined": (1,),
        "Item": (0, 1),
        "_readable": (1,),
    },
    "rules": {"Message": (0,), "joined": (1,)},
    "agent": {"Message": (0,)},
    "storage": {"Message": (0,)},
}
SAME_IN_EVERY_LANGUAGE = frozenset(
    (
        "GPU", "p10", "Xid", "GPUs", "GPU-h", "NVLink received", "/metrics", "2 P [LoRA]", "CPU", "NVLINK", "PCIE", "SM",
        "dcgm", "dcgm-exporter", "dmesg | grep -i nvrm",
    )
)  # fmt: skip
OTHERS = tuple(language for language in LANGUAGES if language != "en")


def spoken_in_code() -> Iterator[str]:
    """String constants that are handed to something that speaks."""
    for package, speakers in SPEAKERS.items():
        for path in (ROOT / package).rglob("*.py"):
            yield from _spoken(ast.parse(path.read_text(encoding="utf-8")), speakers, {})


def _spoken(
    tree: ast.AST, speakers: Mapping[str, tuple[int, ...]], known: Mapping[str, list[str]]
) -> Iterator[str]:
    """In one scope and those within it; `known` are the texts that names of the outer scopes stand for."""
    known = {**known, **_named(tree)}
    for node in _own(tree):
        if isinstance(node, ast.Call):
            texts = [node.args[at] for at in speakers.get(_name(node.func), ()) if at < len(node.args)]
            yield from (text for argument in texts for text in _constants(argument, known))
        elif isinstance(node, ast.FunctionDef):
            yield from _spoken(node, speakers, known)


def _own(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything in a scope, nested functions as a whole."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef):
            yield from _own(node)


def _named(tree: ast.AST) -> dict[str, list[str]]:
    """The constant texts that each name of a scope is given."""
    found: dict[str, list[str]] = {}
    for node in _own(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).extend(_constants(node.value, {}))
    return found


def _constants(argument: ast.expr, known: Mapping[str, list[str]]) -> Iterator[str]:
    """Strings that the argument may be; those it looks up in tables are found where they are defined."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield argument.value
    elif isinstance(argument, ast.IfExp):
        yield from (*_constants(argument.body, known), *_constants(argument.orelse, known))
    elif isinstance(argument, ast.BoolOp):
        yield from (text for value in argument.values for text in _constants(value, known))
    elif isinstance(argument, ast.Name):
        yield from known.get(argument.id, ())


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def spoken_labels() -> Iterator[str]:
    """Every text of `labels`, letters of strips apart, and the names of compared facts."""
    yield from (*compare.FACT_NAMES, *CAUSE_WORDS.values(), *EVIDENCE.values())
    for name, value in vars(labels).items():
        if name.isupper() and not name.endswith("_LETTERS"):
            if isinstance(value, dict):
                yield from value.values()
            elif isinstance(value, tuple):
                yield from value


def spoken_by_rules() -> Iterator[str]:
    """Summaries, reasons, look-alikes and advice of the built-in rules."""
    for rule in loader.builtin():
        yield rule.summary
        yield rule.why
        yield from (excuse.because for excuse in rule.excuses)
        yield from (hint.text for hint in rule.hints)


def everything_spoken() -> set[str]:
    found = {*spoken_in_code(), *spoken_labels(), *spoken_by_rules()}
    return {text for text in found if text.strip()}


def in_words(text: str) -> bool:
    """Whether there is more to it than placeholders and signs."""
    return re.search(r"[A-Za-z]{2}", re.sub(r"{.*?}", "", text)) is not None


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


# ---- completeness


@pytest.mark.parametrize("language", OTHERS)
def test_nothing_a_person_reads_is_untranslated(language: str) -> None:
    wordy = {text for text in everything_spoken() if in_words(text)}
    missing = wordy - set(load(language).catalogue) - SAME_IN_EVERY_LANGUAGE
    assert not missing, "\n".join(sorted(missing))


@pytest.mark.parametrize("language", OTHERS)
def test_no_translation_is_left_over(language: str) -> None:
    assert not set(load(language).catalogue) - everything_spoken()


@pytest.mark.parametrize("language", OTHERS)
def test_translations_fill_in_the_same_values(language: str) -> None:
    for msgid, msgstr in load(language).catalogue.items():
        assert fields(msgid) == fields(msgstr), msgid


def test_all_evidence_of_the_built_in_rules_has_a_name_that_people_read() -> None:
    used = {name for rule in loader.builtin() for name, _ in rule.evidence}
    assert used == set(EVIDENCE)


def test_the_search_finds_what_is_spoken() -> None:
    found = everything_spoken()
    assert "more findings: {count} (--verbose shows all)" in found
    assert "idle tail" in found
    assert len(found) > 150


# ---- speaking


def test_a_message_is_said_again_with_its_own_numbers() -> None:
    words = Words("zh", {"lost {share} to {cause}": "因{cause}损失{share}", "input": "输入"})
    message = Message("lost {share} to {cause}", share="5 %", cause=Message("input"))
    assert message == "lost 5 % to input"
    assert words(message) == "因输入损失5 %"


def test_an_unknown_text_stays_english_and_braces_stay_as_they_are() -> None:
    assert Words("zh", {})("set {x: 1}") == "set {x: 1}"
    assert Message("{literal}") == "{literal}"


@pytest.mark.parametrize(
    ("wanted", "environ", "expected"),
    [
        ("", {}, "en"),
        ("", {"LANG": "zh_CN.UTF-8"}, "zh"),
        ("", {"LC_ALL": "C.UTF-8", "LANG": "zh_CN.UTF-8"}, "en"),
        ("", {"LC_MESSAGES": "zh_CN", "LANG": "de_DE.UTF-8"}, "zh"),
        ("", {"LANG": "de_DE.UTF-8"}, "en"),
        ("zh", {"LANG": "en_US.UTF-8"}, "zh"),
    ],
)
def test_the_locale_chooses_unless_a_person_does(wanted: str, environ: dict[str, str], expected: str) -> None:
    assert language_of(wanted, environ) == expected


def test_a_language_nobody_speaks_is_an_input_error() -> None:
    with pytest.raises(InputError, match="expected one of en, zh"):
        load("xx")


# ---- the catalogue format

_texts = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")) | st.sampled_from('\n\t"\\'), min_size=1
)


def _quoted(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


@given(st.dictionaries(_texts, _texts))
def test_a_catalogue_reads_back(messages: dict[str, str]) -> None:
    entries = [f"msgid {_quoted(msgid)}\nmsgstr {_quoted(msgstr)}\n" for msgid, msgstr in messages.items()]
    assert read_po('msgid ""\nmsgstr "Language: xx\\n"\n\n' + "\n".join(entries)) == messages


def test_strings_may_run_over_several_lines_and_empty_translations_do_not_count() -> None:
    text = '# note\nmsgid ""\n"one "\n"two"\nmsgstr ""\n"eins "\n"zwei"\n\nmsgid "open"\nmsgstr ""\n'
    assert read_po(text) == {"one two": "eins zwei"}


@pytest.mark.parametrize("line", ['msgctxt "x"', "msgid open", "nonsense", 'msgstr[0] "x"'])
def test_anything_else_in_a_catalogue_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        read_po(f"# catalogue\n{line}\n")


def test_our_catalogues_name_their_charset_as_gettext_tools_expect() -> None:
    for language in OTHERS:
        text = (ROOT / "cli" / "messages" / f"{language}.po").read_text(encoding="utf-8")
        assert text.startswith('msgid ""\nmsgstr ""\n')
        assert "charset=UTF-8" in text.split("\n\n")[0]
