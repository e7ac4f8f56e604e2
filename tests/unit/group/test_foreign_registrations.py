# SPDX-License-Identifier: Apache-2.0
"""What other releases and clients register, and what becomes of it in our plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from consumerd.group.assignors import Strategy
from consumerd.group.plan import (
    DisagreementKind,
    GroupSnapshot,
    GroupTopic,
    MemberView,
    Stamp,
    plan_assignment,
    plan_disagreements,
)
from consumerd.group.subscription import Subscription
from consumerd.model import ConsumerId, PartitionKey
from consumerd.zk.znodes import parse_registration

RECORDED = json.loads(
    (Path(__file__).parents[2] / "vectors" / "znodes" / "whitelist-escaping-by-client.json").read_text()
)
TOPICS = {"te-1": 2, "te-x": 1, "a": 3}
OWNED = frozenset({("te-1", 0), ("te-1", 1)})


def snapshot(*members: MemberView) -> GroupSnapshot:
    return GroupSnapshot(
        stamp=Stamp(ids=(1, 1), names=(1, 1), topics={}),
        members=members,
        topics={
            name: GroupTopic(czxid=1, stamp=(1, 0), partitions=tuple(PartitionKey(number) for number in range(count)))
            for name, count in TOPICS.items()
        },
        names=frozenset(TOPICS),
    )


@pytest.mark.parametrize("release", RECORDED["by_client"])
def test_each_release_s_white_list_gives_it_in_our_plan_what_it_owned(release: str) -> None:
    r"""``te-\d+`` as clients of 0.8 to 0.11 register it is an expression; as those of 1.0 and 1.1 do it matches nothing,
    and the one who set it believes that it consumes. Beside ours, nothing of it is left without an owner.
    """
    nodes = RECORDED["by_client"][release]
    ((path, node),) = ((path, node) for path, node in nodes.items() if "/ids/" in path)
    owned = {
        (path.split("/")[4], int(path.split("/")[5])) for path in nodes if "/owners/" in path and path.count("/") == 5
    }
    java = MemberView(
        consumer=ConsumerId(path.rpartition("/")[2]),
        session_id=1,
        registration=parse_registration(node["data"].encode()),
    )
    alone = snapshot(java)
    planned = {(one.topic, one.partition.number) for one in plan_assignment(alone, Strategy.RANGE)}
    told = [one.kind for one in plan_disagreements(alone, Strategy.RANGE)]

    assert owned == planned == (frozenset() if release.startswith("1.") else OWNED)
    assert told == ([DisagreementKind.PATTERN] if release.startswith("1.") else [])

    ours = Subscription.to_white_list([r"te-\d+"], 1).register(1)
    both = snapshot(java, MemberView(consumer=ConsumerId("zz"), session_id=2, registration=ours))
    assignment = plan_assignment(both, Strategy.RANGE)
    assert {(one.topic, one.partition.number) for one in assignment} == OWNED
    shares = {thread.rpartition("-")[0] for thread in assignment.values()}
    assert shares == ({"zz"} if release.startswith("1.") else {"zz", java.consumer})


@pytest.mark.parametrize(
    ("registered", "matches"),
    [
        (r"te-\\d+|b\\.c", {"te-1"}),
        ("(?!(?:.*-x)$)(?:te-.*)", {"te-1"}),
        ("te-[0-9]+", {"te-1"}),
        (r"te-\\p{Digit}+", {"te-1"}),
        (r"\\Qte-1\\E", {"te-1"}),
        ("te-.*+", {"te-1", "te-x"}),
        ("(?i)TE-1", {"te-1"}),
        ("TE-1", set()),
        ("te", set()),
    ],
)
def test_expressions_of_java_s_own_kind_mean_here_what_they_mean_there(registered: str, matches: set[str]) -> None:
    """A topic that we leave to a Java member which does not take it is consumed by nobody."""
    data = f'{{"version":1,"subscription":{{"{registered}":1}},"pattern":"white_list","timestamp":"1"}}'.encode()
    member = MemberView(consumer=ConsumerId("java"), session_id=1, registration=parse_registration(data))
    found = snapshot(member)
    planned = {one.topic for one in plan_assignment(found, Strategy.RANGE)}
    refused = [one for one in plan_disagreements(found, Strategy.RANGE) if one.kind is DisagreementKind.PATTERN]
    assert planned == matches or refused
    assert not (planned - matches)
