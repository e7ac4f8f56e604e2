"""The worked example of CONTRIBUTING.md goes with the code, and each path that the page names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DIFFS = re.findall(r"^```diff\n--- a/(\S+)\n\+\+\+ b/\1\n@@\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
NO_PATHS = {"consumerd/A/B.py", "tests/unit/A/test_B.py", "consumerd/consumerd.git"}  # patterns, and an address


def apply(text: str, diff: str) -> str:
    """Return the text with the one change of a diff; its old lines must be there once."""
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] in " -")
    new = "".join(line[1:] for line in lines if line[0] in " +")
    assert text.count(old) == 1, old
    return text.replace(old, new)


def test_the_example_changes_a_test_and_the_code() -> None:
    """In that order."""
    assert ["tests/unit/telemetry/test_wording.py", "consumerd/telemetry/wording.py"] == [path for path, _ in DIFFS]


def test_the_example_does_what_it_says() -> None:
    """Its test fails before, and passes after."""
    (test_path, test_diff), (path, diff) = DIFFS
    code = (ROOT / path).read_text(encoding="utf-8")
    before: dict[str, object] = {}
    after: dict[str, object] = {}
    exec(code, before)
    exec(apply(code, diff), after)
    wanted = re.findall(
        r'\((\d+), "([^"]+) members?"\)', apply((ROOT / test_path).read_text(encoding="utf-8"), test_diff)
    )

    def said(module: dict[str, object], count: str) -> str:
        return module["counted"](int(count), "member").split()[0]  # type: ignore[operator, no-any-return]

    assert ["1234567"] == [count for count, number in wanted if number != said(before, count)]
    assert [] == [count for count, number in wanted if number != said(after, count)]


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"\b(?:tests|consumerd|docs|deploy)/[\w/.]*\w", TEXT)) - NO_PATHS)
)
def test_each_path_that_is_named_exists(name: str) -> None:
    """A newcomer opens them one after the other."""
    assert (ROOT / name).exists()
