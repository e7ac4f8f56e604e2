# SPDX-License-Identifier: Apache-2.0
"""A leader of ours assigns what the leaders of Java groups assign: Kafka's own classes are asked."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from consumerd.group.assignors import java_order
from consumerd.group.classic.assignment import GroupAssignor, assign
from tests.interop.conftest import require
from tests.support.kafka import java_command

GROUPS: Final = 2000
_LETTERS: Final = ("a", "B", "-", "0", "9", "é", "\uff5e", "\U0001f600")
_TOPICS: Final = ("t", "T", "t1", "t10", "t2", "u_", "v.w")

Group = tuple[GroupAssignor, dict[str, int], dict[str, list[str]]]


def draw_group(chance: random.Random) -> Group:
    """Draw an assignor, the partition counts of some topics, and members that subscribe to these and to others."""
    counts = {topic: chance.randint(1, 13) for topic in _TOPICS if chance.random() < 0.7}
    members = {}
    alike = chance.random() < 0.5
    topics = [topic for topic in _TOPICS if chance.random() < 0.6]
    for _ in range(chance.randint(1, 7)):
        member = "".join(chance.choice(_LETTERS) for _ in range(chance.randint(1, 5)))
        members[member] = topics if alike else [topic for topic in _TOPICS if chance.random() < 0.5]
    return chance.choice(list(GroupAssignor)), counts, members


def ask_java(release: str, groups: Sequence[Group]) -> list[str]:
    """Return the oracle's answers."""
    source = Path(__file__).with_name("AssignorOracle.java")
    questions = []
    for assignor, counts, members in groups:
        known = ";".join(f"{topic}={count}" for topic, count in counts.items())
        subscribed = ";".join(f"{member}={','.join(topics)}" for member, topics in members.items())
        questions.append(f"{assignor.value}\t{known}\t{subscribed}")
    done = subprocess.run(
        java_command(release, str(source), brisk=True),
        input="\n".join(questions),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout.removesuffix("\n").split("\n")


def describe(assignor: GroupAssignor, counts: Mapping[str, int], members: Mapping[str, Sequence[str]]) -> str:
    """Return our assignment as the oracle writes it."""
    assigned = assign(assignor, members, counts)
    return ";".join(
        f"{member}={','.join(sorted(f'{one.topic}/{one.partition}' for one in assigned[member]))}"
        for member in sorted(assigned, key=java_order)
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("oracle", ["1.1.1", "2.8.2"])
def test_random_groups_are_assigned_as_java_assigns_them(oracle: str) -> None:
    """Sorted as Java sorts, each topic's extras and each turn: an oracle that shares no line with us."""
    require(oracle)
    chance = random.Random(18)
    groups = [draw_group(chance) for _ in range(GROUPS)]
    answers = ask_java(oracle, groups)
    assert len(answers) == GROUPS
    for group, answer in zip(groups, answers, strict=True):
        assert describe(*group) == answer, group
