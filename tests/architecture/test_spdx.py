# SPDX-License-Identifier: Apache-2.0
"""Each source file says its licence, in the one line that tools look for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.spdx import IDENTIFIER, ROOT, add_line, find_comment, find_lacking, has_line


def require_git() -> None:
    """Skip without git or outside of a clone; fail where ``CONSUMERD_REQUIRE_TOOLS=1``."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        reason = "git says which files are sources: apt-get install git, and run this in a clone"
        if os.environ.get("CONSUMERD_REQUIRE_TOOLS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


def test_each_source_file_names_its_licence() -> None:
    """Files are copied one by one into other projects. To mend it: ``python -m tests.support.spdx --add``."""
    require_git()

    assert [] == [str(path.relative_to(ROOT)) for path, _ in find_lacking()]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", '"""A module."""\n', f'# {IDENTIFIER}\n"""A module."""\n'),
        ("a.pyx", "# cython: x=1\n", f"# {IDENTIFIER}\n# cython: x=1\n"),
        ("a.h", "#pragma once\n", f"// {IDENTIFIER}\n#pragma once\n"),
        ("A.java", "class A {}\n", f"// {IDENTIFIER}\nclass A {{}}\n"),
        ("run", "#!/bin/sh\n# why\n", f"#!/bin/sh\n# {IDENTIFIER}\n# why\n"),
        ("Makefile", "a:\n", f"# {IDENTIFIER}\na:\n"),
    ],
)
def test_the_line_is_added_where_nothing_else_must_be_first(name: str, text: str, expected: str) -> None:
    """The kernel looks for ``#!`` in the first two bytes."""
    comment = find_comment(name, text)
    assert comment is not None
    assert not has_line(text)

    assert expected == add_line(text, comment)
    assert has_line(expected)


@pytest.mark.parametrize(("name", "text"), [("a.md", "# A\n"), ("a.yaml", "a: 1\n"), ("LICENSE", "Apache\n")])
def test_documents_and_settings_are_left_alone(name: str, text: str) -> None:
    """People copy settings and make them their own."""
    assert find_comment(name, text) is None


def test_a_new_file_without_the_line_is_found(tmp_path: Path) -> None:
    """Empty ones have nothing to license."""
    require_git()
    for name, text in (("new.py", "x = 1\n"), ("__init__.py", ""), ("old.py", f"# {IDENTIFIER}\n")):
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)

    assert ["new.py"] == [path.name for path, _ in find_lacking(tmp_path)]
