# SPDX-License-Identifier: Apache-2.0
"""The embedded broker's rules: what they allow, and a file that changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.embedded.acls import AclFile, parse_rules
from consumerd.errors import ConfigError


@pytest.mark.parametrize(
    ("rule", "allowed", "denied"),
    [
        (
            "allow User:a Read Topic:t",
            [("User:a", "Read", "Topic", "t"), ("User:a", "Describe", "Topic", "t")],
            [
                ("User:a", "Write", "Topic", "t"),
                ("User:b", "Read", "Topic", "t"),
                ("User:a", "Read", "Topic", "u"),
                ("User:a", "Read", "Group", "t"),
            ],
        ),
        ("allow User:* Describe Topic:*", [("User:b", "Describe", "Topic", "u")], [("User:b", "Read", "Topic", "u")]),
        ("allow User:a All *", [("User:a", "Create", "Cluster", "kafka-cluster")], [("User:b", "Read", "Topic", "t")]),
        ("# allow User:a All *", [], [("User:a", "Read", "Topic", "t")]),
    ],
)
def test_rules_allow_what_they_say(
    rule: str, allowed: list[tuple[str, str, str, str]], denied: list[tuple[str, str, str, str]]
) -> None:
    """Everything else is denied."""
    rules = parse_rules(f"{rule}\n\n", "acls")

    assert all(any(one.allows(*request) for one in rules) for request in allowed)
    assert not any(one.allows(*request) for one in rules for request in denied)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("deny User:a Read Topic:t", "line 2: expected `allow"),
        ("allow a Read Topic:t", "line 2: expected a principal"),
        ("allow User:a Raed Topic:t", "line 2: expected an operation"),
        ("allow User:a Read Topics:t", "line 2: expected a resource"),
        ("allow User:a Read Topic:", "line 2: expected a resource"),
        ("allow User:a Read", "line 2: expected `allow"),
    ],
)
def test_a_rule_that_is_none_is_named(line: str, said: str) -> None:
    """A rule that is passed over in silence would be looked for long."""
    with pytest.raises(ConfigError, match=said):
        parse_rules(f"\n{line}\n", "acls")


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    """One that has become wrong keeps its former rules."""
    path = tmp_path / "acls"
    path.write_text("allow User:a Read Topic:t\n")
    acls = AclFile(path)
    assert acls.allows("User:a", "Read", "Topic", "t")
    path.write_text("")
    assert not acls.allows("User:a", "Read", "Topic", "t")
    path.write_text("allow User:a Read Topic:t # again\n")
    assert acls.allows("User:a", "Read", "Topic", "t")
    path.write_text("allow everybody everything\n")
    assert acls.allows("User:a", "Read", "Topic", "t")
    path.unlink()
    assert acls.allows("User:a", "Read", "Topic", "t")
    with pytest.raises(ConfigError, match="cannot be read"):
        AclFile(path)
