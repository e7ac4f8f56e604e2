# SPDX-License-Identifier: Apache-2.0
"""Stories of groups on brokers of Kafka 0.7: all of a member is real, from the directory of the cluster to the files.

``make simulate`` tells thousands; a seed that fails is told again by the command that is printed.
``CONSUMERD_LEGACY_SEEDS=A-B`` tells others than the standing ones.
"""

from __future__ import annotations

import os

import pytest

from tests.support.seeds import draw_seed
from tests.support.simulation.batch import Kind, describe_failures, tell_all

pytestmark = pytest.mark.records

FIRST, LAST = (int(part) for part in os.environ.get("CONSUMERD_LEGACY_SEEDS", "0-39").split("-"))
DRAWN = 20
"""Stories of other seeds in each run."""


@pytest.mark.timeout(600)
def test_groups_on_brokers_of_kafka_0_7_have_each_record_once_and_positions_that_hold() -> None:
    """Over brokers that go, come back and are wiped, deaths, stops, cuts, expiries, and topics on further brokers."""
    tell(FIRST, LAST)


@pytest.mark.timeout(600)
def test_so_have_groups_of_other_stories_in_each_run() -> None:
    """The standing stories find what they once found; others find more."""
    first = draw_seed("stories of groups on brokers of Kafka 0.7")
    tell(first, first + DRAWN - 1)


def tell(first: int, last: int) -> None:
    endings = tell_all(first, last, jobs=1, kind=Kind.LEGACY)
    assert list(range(first, last + 1)) == [ending.seed for ending in endings]
    failed = [ending.seed for ending in endings if ending.failure]
    assert [] == failed, describe_failures(endings, kind=Kind.LEGACY)


@pytest.mark.timeout(300)
def test_a_seed_tells_the_same_story_on_brokers_of_kafka_0_7_in_every_process() -> None:
    """A failure must come again to be mended."""
    one, other = (tell_all(0, 3, jobs=1, hash_seed=seed, kind=Kind.LEGACY) for seed in ("1", "2"))
    assert one == other
    assert len({ending.trace for ending in one}) == 4
