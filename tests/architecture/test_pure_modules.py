# SPDX-License-Identifier: Apache-2.0
"""The contract of pure modules names all of them, and each third party has its adapter.

import-linter proves that a listed module imports nothing impure, however indirectly. It cannot tell that a pure module,
or a new dependency, is missing from the lists in ``pyproject.toml``.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.documents import TOP

PACKAGE: Final = "consumerd"
PURE: Final = "Pure modules do no IO, read no clock and log nothing"
ADAPTERS: Final = "Each third party only in its adapter"
EVERYWHERE: Final = frozenset({"structlog"})
"""Third parties without an adapter: all that is not pure may log."""

Graph = Mapping[str, frozenset[str]]
"""Imports of each module of the package: modules of the package, and top-level names of all others."""


def read_contract(name: str) -> dict[str, Any]:
    contracts = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return next(one for one in contracts if one["name"] == name)


def list_modules() -> dict[str, Path]:
    found = {}
    for path in sorted((TOP / PACKAGE).rglob("*.py")):
        names = path.relative_to(TOP).with_suffix("").parts
        found[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return found


def find_imports(source: str, modules: Collection[str]) -> frozenset[str]:
    """Return what a module imports, in functions too, but not for annotations only."""
    found: set[str] = set()
    for node in _walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [one if one in modules else node.module for one in inside]
        found |= {one if one in modules else one.partition(".")[0] for one in names}
    return frozenset(found)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        for child in node.orelse:
            yield from _walk(child)
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)


def find_impure(graph: Graph, forbidden: Collection[str], ignored: Collection[tuple[str, str]]) -> set[str]:
    """Return the modules from which a chain of imports leads to a forbidden one."""
    kept = {module: {one for one in found if (module, one) not in ignored} for module, found in graph.items()}
    impure = {module for module, found in kept.items() if not found.isdisjoint(forbidden)}
    while more := {module for module, found in kept.items() if not found.isdisjoint(impure)} - impure:
        impure |= more
    return impure


@pytest.fixture(scope="module")
def graph() -> Graph:
    modules = list_modules()
    return {module: find_imports(path.read_text(), modules.keys()) for module, path in modules.items()}


def test_every_pure_module_is_listed(graph: Graph) -> None:
    """One that is not listed may lose its purity unnoticed."""
    contract = read_contract(PURE)
    ignored = {tuple(one.split(" -> ")) for one in contract["ignore_imports"]}
    impure = find_impure(graph, contract["forbidden_modules"], ignored)
    packages = {module for module, path in list_modules().items() if path.name == "__init__.py"}
    entries = contract["source_modules"]
    listed = {module for module in graph for one in entries if f"{module}.".startswith(f"{one}.")} - packages
    pure = graph.keys() - impure - packages
    assert sorted(pure - listed) == [], "pure modules that the list lacks"
    assert sorted(listed - pure) == [], "modules on the list that are not pure"
    assert sorted({*entries} - graph.keys()) == [], "modules on the list that do not exist"


def test_every_third_party_has_an_adapter(graph: Graph) -> None:
    """A dependency that is imported anywhere cannot be replaced."""
    imported = {one for found in graph.values() for one in found} - graph.keys() - sys.stdlib_module_names
    adapted = {*read_contract(ADAPTERS)["forbidden_modules"]}
    assert sorted(imported - adapted - {PACKAGE}) == sorted(EVERYWHERE)


def test_chains_and_annotations_are_told_apart() -> None:
    """A graph without edges would find every module pure."""
    source = "import a.b\nfrom c import d\nfrom e import f\nif TYPE_CHECKING:\n    import os\nelse:\n    import time\n"
    assert frozenset({"a", "c.d", "e", "time"}) == find_imports(source, {"c", "c.d"})
    graph: Graph = {"a": frozenset({"b"}), "b": frozenset({"os"}), "c": frozenset({"d"}), "d": frozenset({"os"})}
    assert {"a", "b"} == find_impure(graph, {"os"}, {("d", "os")})
