# SPDX-License-Identifier: Apache-2.0
"""What tests import from this project exists.

Tests of Kafka and Spark run last, or on some machines only: a name that was moved away from one is noticed here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).parents[2]
OURS: Final = ("consumerd", "tests", "bench")


@cache
def names_of(module: str) -> frozenset[str] | None:
    """Return the names that a module has, submodules included; None for a module that is not there."""
    path = TOP.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        return frozenset(one.stem for one in path.glob("*.py")) if path.is_dir() else None
    found = {one.stem for one in file.parent.iterdir()} if path.is_dir() else set()
    return frozenset(found | set(defined(ast.parse(file.read_text()).body)))


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements define."""
    for one in body:
        match one:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
            case ast.Assign() | ast.AnnAssign():
                # of the value, too: a walrus in it defines a name
                yield from (name.id for name in ast.walk(one) if isinstance(name, ast.Name) and is_stored(name))
            case ast.If() | ast.Try() | ast.With():
                for part in (getattr(one, "body", []), getattr(one, "orelse", []), getattr(one, "finalbody", [])):
                    yield from defined(part)
                for handler in getattr(one, "handlers", []):
                    yield from defined(handler.body)
            case _:
                pass


def is_stored(name: ast.Name) -> bool:
    """Return True for a name that gets a value."""
    return isinstance(name.ctx, ast.Store)


def find_absent(file: Path) -> Iterator[str]:
    """Yield what a file imports that does not exist."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level or not (node.module or "").startswith(OURS):
            continue
        assert node.module is not None
        if node.module.partition(".")[0] not in OURS:
            continue
        names = names_of(node.module)
        for alias in node.names:
            if names is None or (alias.name not in names and alias.name != "*"):
                yield f"{file.relative_to(TOP)}, line {node.lineno}: {node.module} has no {alias.name}"


def test_each_name_that_tests_import_exists() -> None:
    """The module that had it may have been split or renamed."""
    files = [file for folder in ("tests", "bench") for file in sorted((TOP / folder).rglob("*.py"))]
    assert [] == [absent for file in files for absent in find_absent(file)]


def test_an_absent_name_is_found() -> None:
    """Each kind: a name of a module, and a module."""
    names = names_of("tests.support.leaving_zookeeper")
    assert names is not None
    assert "Leaving" in names
    assert "acknowledged" not in names
    assert names_of("tests.support.nothing_of_this_name") is None
