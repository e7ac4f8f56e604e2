# SPDX-License-Identifier: Apache-2.0
"""Stories of groups that brokers coordinate: membership, delivery, chains, and commits with generations are real.

``make simulate`` tells thousands; a seed that fails is told again by the command that is printed.
``CONSUMERD_COORDINATED_SEEDS=A-B`` tells others than the standing ones.
"""

from __future__ import annotations

import os

import pytest

from tests.support.simulation.batch import Kind, describe_failures, tell_all

pytestmark = pytest.mark.records

FIRST, LAST = (int(part) for part in os.environ.get("CONSUMERD_COORDINATED_SEEDS", "0-29").split("-"))


@pytest.mark.timeout(600)
def test_coordinated_groups_have_one_owner_whole_chains_and_commits_that_hold() -> None:
    """Over deaths, stops, cuts, moves of the coordinator, and topics that grow."""
    endings = tell_all(FIRST, LAST, jobs=1, kind=Kind.COORDINATED)
    assert list(range(FIRST, LAST + 1)) == [ending.seed for ending in endings]
    failed = [ending.seed for ending in endings if ending.failure]
    assert [] == failed, describe_failures(endings, kind=Kind.COORDINATED)


@pytest.mark.timeout(300)
def test_a_seed_tells_the_same_story_of_a_coordinated_group_in_every_process() -> None:
    """A failure must come again to be mended."""
    one, other = (tell_all(0, 1, jobs=1, hash_seed=seed, kind=Kind.COORDINATED) for seed in ("1", "2"))
    assert one == other
    assert len({ending.trace for ending in one}) == 2
