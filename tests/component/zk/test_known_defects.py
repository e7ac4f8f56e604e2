# SPDX-License-Identifier: Apache-2.0
"""Every defect of aiozk 0.32.0 that docs/aiozk.md lists is tried here, or cannot reach us for a reason that is checked.

A test that tries number A13 carries it in its name (``test_a13_...``) or in its docstring (``AIOZK A13``). Names prove
nothing by themselves: such a test must make a client and state what it expects. Where a row of the document has parts that
one test cannot show, the table below names a test for each.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from aiozk import protocol

from consumerd.zk import aiozk_client
from consumerd.zk.aiozk_client import AiozkClient
from consumerd.zk.port import Create
from tests.support.syntax import parse_file

DOCUMENT = Path(__file__).parents[3] / "docs" / "aiozk.md"
NUMBERS = [f"{letter}{number}" for letter, count in (("A", 14), ("W", 5), ("O", 7)) for number in range(1, count + 1)]


ADAPTER = parse_file(Path(inspect.getfile(aiozk_client)))

PARTS = {
    "O1": {
        "test_o1_multi_does_all_or_none_and_says_which_failed",
        "test_o1_results_of_a_multi_are_in_the_order_of_its_operations",
    },
    "O2": {"test_o2_versions_are_the_callers_own", "test_o2_nodes_that_were_used_leave_nothing_behind"},
    "O6": {
        "test_o6_sasl_comes_before_everything_else_on_every_connection",
        "test_o6_tls_to_the_servers",
    },
    "A4": {
        "test_a4_cut_at_each_step_of_reconnecting_is_survived",
        "test_a4_more_watches_than_fit_into_a_request_are_set_again",
    },
    "W2": {
        "test_data_watch_tells_of_every_kind_of_change",
        "test_children_watch_tells_of_every_kind_of_change",
    },
}


def imports_nothing_of_aiozk_but_its_protocol() -> bool:
    names = {
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ADAPTER)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    used = {name for name in names if name.partition(".")[0] == "aiozk"}
    return bool(used) and all(re.match(r"aiozk\.(protocol|exc)\b", name) for name in used)


def used_of_the_protocol() -> set[str]:
    """Return the names of aiozk's protocol that the adapter takes."""
    return {
        node.attr
        for node in ast.walk(ADAPTER)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "protocol"
    }


def writes_no_access_control() -> bool:
    """Whether no request is used that changes a node's access control, as far as aiozk has any."""
    unused = {"SetACLRequest"}
    return unused <= vars(protocol).keys() and not unused & used_of_the_protocol()


def makes_plain_and_ephemeral_nodes_only() -> bool:
    wanted = {"path", "data", "ephemeral", "epoch"}
    return (
        set(inspect.signature(AiozkClient.create).parameters) - {"self"} <= wanted
        and set(inspect.signature(Create).parameters) <= wanted
    )


CANNOT_REACH_US: dict[str, Callable[[], bool]] = {
    "W4": imports_nothing_of_aiozk_but_its_protocol,
    "O3": writes_no_access_control,
}
"""Of what is not used, its defects do not matter; that it is not used is what is checked."""


def documented() -> set[str]:
    """Return the numbers in the first column of the document's table."""
    rows = re.findall(r"^\| ([AWO][\dAWO, ]*) \|", DOCUMENT.read_text(), re.MULTILINE)
    return {number for row in rows for number in re.findall(r"[AWO]\d+", row)}


@cache
def tried() -> dict[str, set[str]]:
    """Return the tests of this folder by the numbers that they try."""
    found: dict[str, set[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        functions = [
            node for node in ast.walk(parse_file(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        makers = {"make_client", *(one.name for one in functions if "make_client" in called_by(one))}
        for test in functions:
            if not test.name.startswith("test_"):
                continue
            listed = re.match(r"AIOZK ((?:[AWO]\d+(?:, )?)+)", ast.get_docstring(test) or "")
            numbers = set(re.findall(r"[AWO]\d+", listed[1])) if listed else set()
            numbers |= {part.upper() for part in test.name.split("_") if re.fullmatch(r"[awo]\d+", part)}
            if numbers:
                assert makers & called_by(test), f"{test.name} carries {numbers}, and makes no client"
                assert states_something(test), f"{test.name} carries {numbers}, and states nothing"
            for number in numbers:
                found.setdefault(number, set()).add(test.name)
    return found


def called_by(function: ast.AST) -> set[str]:
    """Return what a function calls, as it is written there."""
    return {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}


def states_something(test: ast.AST) -> bool:
    """Whether a test asserts something, or is bounded where the defect would have hung it."""
    bounds = {"pytest.raises", "asyncio.run", "bell.wait", "timeout"}
    return any(isinstance(node, ast.Assert) for node in ast.walk(test)) or bool(called_by(test) & bounds)


def test_of_other_kinds_of_nodes_none_is_made() -> None:
    """aiozk has no nodes with a time to live, and no SASL request that can be serialised."""
    assert makes_plain_and_ephemeral_nodes_only()
    assert "SASLRequest" not in used_of_the_protocol()


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
        assert PARTS.get(number, set()) <= tried().get(number, set())
        assert tried().get(number), "no test has it in its name or docstring"
