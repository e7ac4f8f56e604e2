# SPDX-License-Identifier: Apache-2.0
"""No module of these packages imports itself through others, in functions and for annotations included."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from typing import Final

import pytest

from tests.support.documents import TOP

PACKAGES: Final = ("client", "fetch", "wire")


def find_imports(source: str, modules: Collection[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {one if one in modules else node.module for one in inside}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & {*modules}


def find_circles(graph: Mapping[str, Collection[str]]) -> set[str]:
    """Return the modules that reach themselves."""
    reached = {module: set(found) for module, found in graph.items()}
    while more := {
        (module, far)
        for module, found in reached.items()
        for near in found
        for far in reached[near]
        if far not in found
    }:
        for module, far in more:
            reached[module].add(far)
    return {module for module, found in reached.items() if module in found}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_itself_through_others(package: str) -> None:
    """Of two modules that import each other neither can be read, tested or replaced alone."""
    paths = {
        ".".join(path.relative_to(TOP).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (TOP / "consumerd" / package).rglob("*.py")
    }
    graph = {module: find_imports(path.read_text(), paths.keys()) - {module} for module, path in paths.items()}

    assert set() == find_circles(graph)


def test_a_circle_is_found() -> None:
    """A check without edges would find none in any package."""
    assert {"a", "b", "c"} == find_circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})
    source = "if TYPE_CHECKING:\n    from a import b\ndef f():\n    import c\n"
    assert {"a.b", "c"} == find_imports(source, {"a.b", "c", "d"})
