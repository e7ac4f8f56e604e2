# SPDX-License-Identifier: Apache-2.0
"""The mutants fit the code as it is, and count as killed only where a named test has asserted what they break."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.__main__ import ALL, Part
from tests.mutants.mutant import Mutant
from tests.mutants.run import Fate, find_failures, judge
from tests.support.syntax import parse_file

TOP = Path(__file__).resolve().parents[2]
ONE, OTHER = "tests/unit/test_a.py::test_one", "tests/unit/test_a.py::TestIt::test_other"


def mutant(*tests: str, dies_of: str = "") -> Mutant:
    return Mutant(name="m", promise=1, file="errors.py", old="a", new="b", tests=tests, dies_of=dies_of)


def report(*cases: tuple[str, str, str, str]) -> str:
    """Write a report as pytest does: class name, name, message and text of each case."""
    written = "".join(
        f'<testcase classname="{place}" name="{name}">'
        + (f'<failure message="{message}">{text}</failure>' if message else "")
        + "</testcase>"
        for place, name, message, text in cases
    )
    return f"<testsuites><testsuite>{written}</testsuite></testsuites>"


def test_every_mutant_applies_and_has_a_name_of_its_own() -> None:
    """One whose text has moved is found here, not in the hour of `make mutants`."""
    for one in ALL:
        assert one.edit(one.find_path(TOP).read_text()) != one.find_path(TOP).read_text(), one.name
    assert [name for name, count in Counter(one.name for one in ALL).items() if count > 1] == []


def test_parts_have_each_mutant_once_and_each_promise() -> None:
    """CI runs one part of three: after a few runs each mutant was in one."""
    parts = [Part(index, 3) for index in (1, 2, 3)]

    assert [one.name for one in ALL if [part.has(one) for part in parts].count(True) != 1] == []
    promises = {one.promise for one in ALL}
    assert [promises - {one.promise for one in ALL if part.has(one)} for part in parts] == [set(), set(), set()]


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b"])
def test_a_part_that_there_is_not_is_refused(text: str) -> None:
    """Nothing would run, and all would seem to be killed."""
    with pytest.raises(ValueError, match=r"part|unpack|invalid"):
        Part.parse(text)


@pytest.mark.parametrize("test", sorted({test for one in ALL for test in one.tests}))
def test_every_named_test_exists(test: str) -> None:
    """A test that was renamed would be reported as broken an hour later."""
    path, *names = test.partition("[")[0].split("::")
    body: list[ast.stmt] = parse_file(TOP / path).body
    for name in names:
        found = next((node for node in body if getattr(node, "name", None) == name or _binds(node, name)), None)
        assert found is not None, name
        body = getattr(found, "body", [])


def _binds(node: ast.stmt, name: str) -> bool:
    """Whether a statement assigns a name, as the test of a state machine is made."""
    return isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in node.targets)


def test_every_edit_of_python_is_python() -> None:
    """A syntax error fails every test, and shows nothing."""
    for one in ALL:
        if one.file.endswith(".py"):
            compile(one.edit(one.find_path(TOP).read_text()), one.file, "exec")


def test_failures_are_those_of_the_named_tests() -> None:
    """With and without parameters, in a class, and of a group of exceptions each of them."""
    found = find_failures(
        report(
            ("tests.unit.test_a", "test_one[1]", "", ""),
            ("tests.unit.test_a", "test_one[2]", "AssertionError: assert 1 == 2", ""),
            ("tests.unit.test_a.TestIt", "test_other", "ExceptionGroup: unhandled errors", "E | KeyError: 3\nE | x: 1"),
            ("tests.unit.test_b", "test_one", "AssertionError: assert 0", ""),
        ),
        [ONE, OTHER, "tests/unit/test_a.py::test_gone"],
    )

    assert found == {ONE: ["AssertionError: assert 1 == 2"], OTHER: ["KeyError"]}


@pytest.mark.parametrize(
    "reason",
    ["AssertionError: assert 1 == 2", "assert [] == [1]", "Failed: DID NOT RAISE <class 'OSError'>", "TimeoutError"],
)
def test_a_mutant_dies_of_an_assertion(reason: str) -> None:
    """The test has said what it expects, and it was not so."""
    assert judge(mutant(ONE), {ONE: [reason]})[0] is Fate.KILLED


@pytest.mark.parametrize(
    "reason",
    [
        "NameError: name 'x' is not defined",
        "TypeError: f() takes 1 argument",
        "AttributeError: no y",
        "ImportError: z",
        "error in a fixture: AssertionError: assert 0",
        "consumerd.errors.OffsetError: no",
    ],
)
def test_a_mutant_that_dies_of_something_else_is_broken(reason: str) -> None:
    """An edit that cannot run fails any test; other exceptions count where the mutant expects them."""
    assert judge(mutant(ONE), {ONE: [reason]})[0] is Fate.BROKEN
    assert judge(mutant(ONE, dies_of=r".*OffsetError"), {ONE: ["consumerd.errors.OffsetError: no"]})[0] is Fate.KILLED


def test_each_named_test_must_fail_and_run() -> None:
    """A simulation that stands behind a unit test which fails first would never be seen to fail."""
    assert judge(mutant(ONE, OTHER), {ONE: ["assert 0"], OTHER: []}) == (Fate.SURVIVED, OTHER)
    assert judge(mutant(ONE, OTHER), {ONE: ["assert 0"]})[0] is Fate.BROKEN
