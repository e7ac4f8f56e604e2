# SPDX-License-Identifier: Apache-2.0
"""Docstrings are plain English: a short first line that names the thing, no idioms, no long lines."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.documents import TOP

PACKAGE: Final = TOP / "consumerd"
MODULES: Final = "modules"
"""Stands for the modules directly in the package."""
BENCH: Final = "bench"
"""Stands for the benchmarks, which are beside the package."""
PARTS: Final = sorted({MODULES, BENCH, *(path.parent.name for path in PACKAGE.glob("*/__init__.py"))})

LINE_LENGTH: Final = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["ruff"]["line-length"]
FIRST_LINE_WORDS: Final = 15
INDIRECT: Final = ("What", "Whether", "Where", "How")
"""Words with which a first line describes a thing instead of naming it."""
IDIOMS: Final = ("so many", "so long", "whoever", "whatever", "somebody", "nobody", "anybody", "what is so")

_IDIOM: Final = re.compile(rf"\b({'|'.join(IDIOMS)})\b".replace(" ", r"\s+"), re.IGNORECASE)
_Owner = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def find_faults(source: str) -> Iterator[str]:
    """Yield the faults of all docstrings in a module, each with its line."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        owns_text = isinstance(node, _Owner) and ast.get_docstring(node) is not None
        if owns_text:
            text = node.body[0]
            yield from _find_first_line_faults(ast.get_docstring(node) or "", text.lineno)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            end = node.end_lineno or node.lineno
            for number in range(node.lineno, end + 1):
                if len(lines[number - 1]) > LINE_LENGTH:
                    yield f"line {number}: {len(lines[number - 1])} columns, at most {LINE_LENGTH}"
            for found in _IDIOM.finditer(node.value.value):
                yield f"line {node.lineno}: idiom {' '.join(found[0].split())!r}"


def _find_first_line_faults(docstring: str, number: int) -> Iterator[str]:
    words = docstring.splitlines()[0].split()
    if len(words) > FIRST_LINE_WORDS:
        yield f"line {number}: a first line of {len(words)} words, at most {FIRST_LINE_WORDS}"
    if words[0] in INDIRECT:
        yield f"line {number}: a first line that begins with {words[0]!r}; name the thing"


def find_part_faults(part: str) -> list[str]:
    if part == MODULES:
        paths = PACKAGE.glob("*.py")
    else:
        paths = (TOP / BENCH if part == BENCH else PACKAGE / part).rglob("*.py")
    return [f"{path.relative_to(TOP)}, {fault}" for path in sorted(paths) for fault in find_faults(path.read_text())]


@pytest.mark.parametrize("part", PARTS)
def test_docstrings_are_plain(part: str) -> None:
    """A docstring that has to be read twice is not read at all."""
    assert [] == find_part_faults(part)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('"""What a module holds."""\n', "line 1: a first line that begins with 'What'; name the thing"),
        (
            'def f() -> None:\n    """Whether it is."""\n',
            "line 2: a first line that begins with 'Whether'; name the thing",
        ),
        (f'"""{"word " * 16}."""\n', "line 1: a first line of 17 words, at most 15"),
        ('X = 1\n"""Waits so\nlong."""\n', "line 2: idiom 'so long'"),
        (f'"""Short.\n\n{"x" * 121}\n"""\n', "line 3: 121 columns, at most 120"),
    ],
)
def test_each_fault_is_found(source: str, fault: str) -> None:
    """A check that finds nothing passes for every package."""
    assert [fault] == list(find_faults(source))


def test_a_plain_docstring_has_no_fault() -> None:
    """Texts in code are not docstrings, and a word may contain an idiom."""
    assert [] == list(
        find_faults('"""Names of a thing."""\nTEXT = "whoever"\n\ndef somewhat() -> None:\n    """Wait."""\n')
    )
