# SPDX-License-Identifier: Apache-2.0
"""``docs/site/wrap.py`` wraps prose and leaves everything else alone."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from typing import Final, cast

import pytest

from tests.support.documents import DOCS

wrap: Final = cast("Callable[[str], str]", runpy.run_path(str(DOCS / "site" / "wrap.py"))["wrap"])
WORDS: Final = " ".join(f"word{number}" for number in range(40))


@pytest.mark.parametrize(
    "kept",
    [
        "short lines\nstay as they are",
        f"| a table | {WORDS} |",
        f"```sh\n{WORDS}\n```",
        f"# {WORDS}",
        f"<!-- {WORDS} -->",
        f"![{WORDS}](images/a.png)",
    ],
)
def test_what_is_no_long_prose_stays(kept: str) -> None:
    """A table that is broken over two lines is no table."""
    assert wrap(f"before\n\n{kept}\n\nbehind\n") == f"before\n\n{kept}\n\nbehind\n"


@pytest.mark.parametrize(("first", "rest"), [("", ""), ("- ", "  "), ("12. ", "    "), ("  - ", "    ")])
def test_long_prose_is_wrapped_with_its_words_and_its_indent(first: str, rest: str) -> None:
    """A list item goes on below its own text."""
    lines = wrap(f"{first}{WORDS}\n").rstrip("\n").split("\n")

    assert len(lines) > 1
    assert all(len(line) <= 120 for line in lines)
    assert lines[0].startswith(f"{first}word0 ")
    assert all(line.startswith(f"{rest}word") for line in lines[1:])
    assert " ".join(line.strip() for line in lines) == f"{first.strip()} {WORDS}".strip()


def test_inline_code_is_not_broken() -> None:
    """Its spaces are part of it."""
    code = "`consumerd lag --zookeeper zk1:2181/kafka --group lake`"

    assert code in wrap(f"{'a' * 90} {code} {WORDS}\n")


def test_no_line_begins_with_what_would_begin_a_list() -> None:
    """A hyphen between two words is no item."""
    assert "\n- " not in wrap(f"{'a' * 116} - {WORDS}\n")
