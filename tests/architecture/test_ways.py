# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md: the ways of a record, a rebalance and a setting name functions that exist."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.documents import DOCS, TOP

PACKAGE: Final = TOP / "consumerd"
FUNCTION: Final = re.compile(r"`([a-z_]+(?:/[a-z_]+)+): ([A-Za-z_][\w.]*)`")
WAYS: Final = ("The way of a record", "The way of its position", "The way of a rebalance", "The way of a setting")
VISITED_ONCE: Final = ("The way of a record", "The way of a setting")


def read_section(heading: str) -> str:
    _, found, rest = (DOCS / "architecture.md").read_text().partition(f"\n### {heading}\n")
    assert found, f"there is no section {heading!r}"
    return re.split(r"\n##+ ", rest, maxsplit=1)[0]


def read_steps(heading: str) -> list[tuple[int, str, str]]:
    """Return the number, the file and the function of each step."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in read_section(heading).splitlines()
        if re.match(r"\| \d+ \|", line)
    ]
    return [(int(row[0]), *match.groups()) for row in rows if (match := FUNCTION.fullmatch(row[1])) is not None]


def find_names(path: Path) -> Iterator[str]:
    """Yield the classes and functions of a module, methods as ``Class.method``."""

    def visit(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}{node.name}"
                if isinstance(node, ast.ClassDef):
                    yield from visit(node.body, f"{prefix}{node.name}.")

    yield from visit(ast.parse(path.read_text()).body, "")


def explain_function(path: str, name: str) -> str | None:
    """Return what is wrong with a function that a document names; None if it exists."""
    file = PACKAGE / f"{path}.py"
    if not file.is_file():
        return f"{path}: there is no such module"
    return None if name in set(find_names(file)) else f"{path}: has no {name}"


def test_functions_that_the_page_names_exist() -> None:
    """A reader opens them one after the other. A renamed function is renamed on the page too."""
    named = FUNCTION.findall((DOCS / "architecture.md").read_text())

    assert [fault for path, name in named if (fault := explain_function(path, name)) is not None] == []
    assert len(named) > 50


@pytest.mark.parametrize("heading", WAYS)
def test_steps_of_a_way_are_numbered(heading: str) -> None:
    """Also: each row's step names one function, or it would be left out of the other tests."""
    steps = read_steps(heading)
    rows = re.findall(r"^\| \d+ \|", read_section(heading), re.MULTILINE)

    assert list(range(1, len(rows) + 1)) == [number for number, _, _ in steps]
    assert len(steps) > 4


@pytest.mark.parametrize("heading", VISITED_ONCE)
def test_a_way_visits_no_package_twice(heading: str) -> None:
    """Each package takes the data over once; what it calls below itself returns to it."""
    visits = [package for package, _ in itertools.groupby(path.split("/")[0] for _, path, _ in read_steps(heading))]

    assert sorted(set(visits)) == sorted(visits)


@pytest.mark.parametrize(
    ("path", "name"),
    [("net/conection", "BrokerConnection"), ("net/connection", "BrokerConnection.frame_recieved"), ("net/pool", "get")],
)
def test_wrong_names_are_seen(path: str, name: str) -> None:
    """A check that accepts every name would let everything pass."""
    assert explain_function(path, name) is not None
