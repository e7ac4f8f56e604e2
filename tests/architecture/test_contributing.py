# SPDX-License-Identifier: Apache-2.0
"""The worked example of CONTRIBUTING.md goes with the code, and each path that the page names exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DIFFS = re.findall(r"^```diff\n--- a/(\S+)\n\+\+\+ b/\1\n@@\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
NO_PATHS = {"consumerd/A/B.py", "tests/unit/A/test_B.py", "consumerd/consumerd.git"}  # patterns, and an address


def apply(text: str, diff: str) -> str:
    """Return the text with the changes of a diff; the old lines of each must be there once."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def test_the_example_changes_a_test_and_the_code() -> None:
    """In that order."""
    assert ["tests/unit/telemetry/test_wording.py", "consumerd/telemetry/wording.py"] == [path for path, _ in DIFFS]


def test_the_example_does_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its test fails before, and passes after."""
    (test_path, test_diff), (path, diff) = DIFFS
    test: dict[str, Any] = {}
    exec(apply((ROOT / test_path).read_text(encoding="utf-8"), test_diff), test)
    wanted = test["test_an_empty_list_is_said_as_such"]

    with pytest.raises(AssertionError):
        wanted()
    changed: dict[str, Any] = {}
    exec(apply((ROOT / path).read_text(encoding="utf-8"), diff), changed)
    monkeypatch.setitem(test, "join_shown", changed["join_shown"])
    wanted()


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"\b(?:tests|consumerd|docs|deploy)/[\w/.-]*\w", TEXT)) - NO_PATHS)
)
def test_each_path_that_is_named_exists(name: str) -> None:
    """A newcomer opens them one after the other."""
    assert (ROOT / name).exists()
