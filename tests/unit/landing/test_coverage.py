# SPDX-License-Identifier: Apache-2.0
"""What a table has taken over, as it is kept in its commits."""

from __future__ import annotations

import json

import pytest

from consumerd.landing.coverage import NOTHING, Coverage, sum_up
from consumerd.landing.ranges import RangeSet
from consumerd.landing.values import ChainRef, LogId
from consumerd.model import BrokerId, Incarnation, PartitionKey

LOG = LogId("orders", PartitionKey(3), Incarnation(7, 1))
LEGACY = LogId("web@home", PartitionKey(2, BrokerId(1)), Incarnation(7))
CHAIN = ChainRef("r1:topic=orders/partition=3/chain=1")


def ranges(*spans: tuple[int, int]) -> RangeSet:
    return RangeSet.of(spans)


def test_coverage_survives_json() -> None:
    """What a commit has recorded is read as it was."""
    coverage = Coverage(
        covered={LOG: ranges((0, 5), (9, 12)), LEGACY: ranges((0, 1))},
        doubtful={LOG: ranges((5, 9))},
        taken={CHAIN: ranges((0, 12))},
    )

    assert coverage == Coverage.parse(json.loads(json.dumps(coverage.encode())))
    assert NOTHING == Coverage.parse({})


def test_sum_of_commits() -> None:
    """What was in doubt and is covered now is in doubt no more."""
    first = Coverage(covered={LOG: ranges((0, 5))}, doubtful={LOG: ranges((5, 9))}, taken={CHAIN: ranges((0, 9))})
    second = Coverage(covered={LOG: ranges((5, 7), (9, 12))}, taken={CHAIN: ranges((9, 12))})

    total = Coverage(
        covered={LOG: ranges((0, 7), (9, 12))}, doubtful={LOG: ranges((7, 9))}, taken={CHAIN: ranges((0, 12))}
    )
    assert total == first | second == sum_up([second, first])
    assert Coverage(covered={LOG: ranges((0, 9))}) == Coverage(doubtful={LOG: ranges((5, 9))}) | Coverage(
        covered={LOG: ranges((0, 9))}
    )


def test_clusters_are_not_added_up() -> None:
    """Their offsets are of different records."""
    one, two = Coverage(cluster="a", covered={LOG: ranges((0, 5))}), Coverage(covered={LOG: ranges((5, 9))})
    assert Coverage(cluster="a", covered={LOG: ranges((0, 9))}) == one | two
    assert one == Coverage.parse(json.loads(json.dumps(one.encode())))
    with pytest.raises(ValueError, match="several clusters, a and b"):
        sum_up([one, two, Coverage(cluster="b")])


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"cluster": 7},
        {"covered": []},
        {"covered": {"orders": []}},
        {"taken": {"a": 3}},
        {"covered": {"/3@7": []}},
    ],
)
def test_parse_refuses_what_it_did_not_write(value: object) -> None:
    """A damaged commit must not read as an empty one: everything would be taken over again."""
    with pytest.raises(ValueError, match="expected"):
        Coverage.parse(value)


def test_log_names_are_read_back() -> None:
    """A log's name stands in commits as text."""
    assert "orders/3@7.1" == str(LOG)
    assert "web@home/1-2@7" == str(LEGACY)
    for log in (LOG, LEGACY):
        assert log == LogId.parse(str(log))
