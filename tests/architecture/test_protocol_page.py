# SPDX-License-Identifier: Apache-2.0
"""docs/protocol.md says what the code declares, sends and treats, and names tests that there are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
from tests.support.documents import TOP
from tests.support.frames import REQUESTS
from tests.support.protocol_page import (
    GUIDE_CODES,
    GUIDE_REQUESTS,
    GUIDE_RETRIABLE,
    INTEROP,
    PACKAGE,
    PAGE,
    SPOKEN,
    find_codes,
    find_tests,
    finds_name,
    list_sources,
    write_tables,
)
from tests.support.syntax import parse_file

REAL_KAFKA = {"require", "ClusterFactory", "SecureFactory"}
"""What a test takes of ``tests.interop.conftest`` to start real brokers."""


def imports_of(tree: ast.Module) -> list[Path]:
    """Return the files of the modules that a module imports from."""
    names = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    inside = [
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    files = [TOP / f"{name.replace('.', '/')}.py" for name in (*names, *inside)]
    return [path for path in files if path.is_file()]


def constructs(tree: ast.Module, name: str) -> bool:
    """Tell if a module calls a class."""
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any((isinstance(one, ast.Name) and one.id == name) or (isinstance(one, ast.Attribute) and one.attr == name)
               for one in called)  # fmt: skip


def test_the_page_is_written_from_the_code() -> None:
    """A new request, version or use of a code makes the page wrong."""
    page = PAGE.read_text()

    assert write_tables(page) == page, "run: make protocol"


def test_a_page_without_marks_is_refused() -> None:
    """A table that is written nowhere would be current for ever."""
    with pytest.raises(ValueError, match="expected <!-- requests"):
        write_tables("# Kafka's protocol\n")


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, names in SPOKEN.items() for name in names], ids=str)
def test_a_named_test_asks_a_real_broker(key: ApiKey, name: str) -> None:
    """It exists, starts real brokers, and makes the request, or imports what makes it."""
    file, _, test = name.partition("::")
    module = parse_file(INTEROP / f"{file}.py")
    request = REQUESTS[key].__name__

    assert test in {one.name for one in find_tests(module)}
    assert any(finds_name(module, kafka) for kafka in REAL_KAFKA)
    assert any(constructs(tree, request) for tree in (module, *map(parse_file, imports_of(module))))


def test_every_declared_request_is_in_the_table_of_tests() -> None:
    """A request without a real broker has an empty entry: the page says "none yet"."""
    assert set(REQUESTS) == set(SPOKEN)


def test_the_table_of_requests_knows_every_declared_class() -> None:
    """A class that is not registered would be missing from the page."""
    declared = {
        node.name
        for path in list_sources(PACKAGE / "wire" / "modern", word="Request[")
        for node in ast.walk(parse_file(path))
        if isinstance(node, ast.ClassDef) and any("Request[" in ast.unparse(base) for base in node.bases)
    }

    assert declared == {request.__name__ for request in REQUESTS.values()}


def test_the_guides_names_are_complete() -> None:
    """API keys 0 to 16 without 4 to 7, codes -1 to 31 without 13."""
    assert set(map(int, GUIDE_REQUESTS)) == {*range(4), *range(8, 17)}
    assert set(GUIDE_CODES) == set(range(-1, 32)) - {13}
    assert {code for code in GUIDE_CODES if ErrorCode(code).retriable} ^ GUIDE_RETRIABLE == {9}


@pytest.mark.parametrize(
    "source",
    [
        "from consumerd.wire.modern.groups import JoinGroupRequest",
        "from consumerd.wire.modern import groups\ngroups.JoinGroupRequest(group_id='g')",
        "import consumerd.wire.modern.groups\nconsumerd.wire.modern.groups.JoinGroupRequest",
    ],
)
def test_uses_of_a_request_are_found(source: str) -> None:
    """However a module comes by the class."""
    assert finds_name(ast.parse(source), "JoinGroupRequest")


def test_a_request_in_a_comment_is_not_used() -> None:
    """Text does not count."""
    source = '"""JoinGroupRequest"""\n# groups.JoinGroupRequest\n'

    assert not finds_name(ast.parse(source), "JoinGroupRequest")


def test_codes_are_found_by_name() -> None:
    """Members alone: not the class's own methods."""
    tree = ast.parse("a = ErrorCode.NOT_COORDINATOR\nb = ErrorCode.from_bytes\nc = other.NOT_CONTROLLER")

    assert find_codes(tree) == {ErrorCode.NOT_COORDINATOR}


def test_no_code_is_compared_as_a_number() -> None:
    """A number in place of the name would hide a special treatment from the page."""
    found = [
        f"{path.relative_to(TOP)}:{node.lineno}"
        for path in list_sources(PACKAGE, PACKAGE / "wire", word="code")
        for node in ast.walk(parse_file(path))
        if isinstance(node, ast.Compare)
        and ast.unparse(node.left).endswith(("error_code", "error.code", "failure.code", "outcome.code"))
        and any(isinstance(one, ast.Constant) and isinstance(one.value, int) for one in node.comparators)
    ]

    assert found == []
