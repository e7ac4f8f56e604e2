"""Every defect of aiozk 0.32.0 that docs/aiozk.md lists is tried here, or cannot reach us for a reason that is checked.

A test that tries number A13 carries it in its name (``test_a13_...``) or in its docstring (``AIOZK A13``).
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from consumerd.zk import aiozk_client
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.port import Create, ZkClient
from consumerd.zk.session import Session

DOCUMENT = Path(__file__).parents[3] / "docs" / "aiozk.md"
NUMBERS = [f"{letter}{number}" for letter, count in (("A", 14), ("W", 5), ("O", 7)) for number in range(1, count + 1)]


def imports_nothing_of_aiozk_but_its_protocol() -> bool:
    tree = ast.parse(Path(inspect.getfile(aiozk_client)).read_text())
    names = {
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    used = {name for name in names if name.partition(".")[0] == "aiozk"}
    return bool(used) and all(re.match(r"aiozk\.(protocol|exc)\b", name) for name in used)


def writes_no_access_control() -> bool:
    return not any("acl" in name for name in vars(ZkClient))


def makes_plain_and_ephemeral_nodes_only() -> bool:
    wanted = {"path", "data", "ephemeral", "epoch"}
    return (
        set(inspect.signature(AiozkClient.create).parameters) - {"self"} <= wanted
        and set(inspect.signature(Create).parameters) <= wanted
    )


def offers_no_tls_and_no_sasl() -> bool:
    parameters = {*inspect.signature(AiozkClient).parameters, *inspect.signature(Session).parameters}
    return not any(word in name for name in parameters for word in ("tls", "ssl", "sasl"))


CANNOT_REACH_US: dict[str, Callable[[], bool]] = {
    "W4": imports_nothing_of_aiozk_but_its_protocol,
    "O3": writes_no_access_control,
    "O6": lambda: offers_no_tls_and_no_sasl() and makes_plain_and_ephemeral_nodes_only(),
}
"""Of what is not used, its defects do not matter; that it is not used is what is checked."""


def documented() -> set[str]:
    """Return the numbers in the first column of the document's table."""
    rows = re.findall(r"^\| ([AWO][\dAWO, ]*) \|", DOCUMENT.read_text(), re.MULTILINE)
    return {number for row in rows for number in re.findall(r"[AWO]\d+", row)}


def tried() -> dict[str, list[str]]:
    """Return the tests of this folder by the numbers that they try."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                docstring = ast.get_docstring(node) or ""
                listed = re.match(r"AIOZK ((?:[AWO]\d+(?:, )?)+)", docstring)
                numbers = set(re.findall(r"[AWO]\d+", listed[1])) if listed else set()
                numbers |= {part.upper() for part in node.name.split("_") if re.fullmatch(r"[awo]\d+", part)}
                for number in numbers:
                    found.setdefault(number, []).append(node.name)
    return found


def test_document_lists_every_known_defect() -> None:
    """What is found by a later reading must get a number, a line there, and a test here."""
    assert documented() == set(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_defect_is_tried_or_cannot_reach_us(number: str) -> None:
    """A defect that nobody tries comes back with the next release of aiozk, or with the next use that we make of it."""
    if number in CANNOT_REACH_US:
        assert CANNOT_REACH_US[number]()
        assert number not in tried()
    else:
        assert tried().get(number), "no test has it in its name or docstring"
