# SPDX-License-Identifier: Apache-2.0
"""Whole groups on virtual time, by the thousand: rebalancing, delivery, trackers, chains and commits are the real ones.

``make simulate`` tells tens of thousands of stories; a seed that fails is told again by the command that is printed.
``CONSUMERD_SIMULATION_SEEDS=A-B`` tells others than the standing ones.
"""

from __future__ import annotations

import os

import pytest

from tests.support.simulation.batch import describe_failures, tell_all

pytestmark = pytest.mark.records

FIRST, LAST = (int(part) for part in os.environ.get("CONSUMERD_SIMULATION_SEEDS", "0-1999").split("-"))
CORES = os.cpu_count() or 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_happens_one_owner_one_deliverer_whole_chains_and_commits_that_hold() -> None:
    """Promises 1, 2, 3 and 6, over deaths, stops, cuts, expiries, late events, growing and recreated topics, Java members."""
    endings = tell_all(FIRST, LAST, jobs=CORES)
    assert [ending.seed for ending in endings] == list(range(FIRST, LAST + 1))
    assert not [ending.seed for ending in endings if ending.failure], describe_failures(endings)


def test_a_seed_tells_the_same_story_in_every_process() -> None:
    """A failure that does not come again cannot be mended: not even the order of Python's sets may matter."""
    one, other = (tell_all(0, 39, jobs=CORES, hash_seed=seed) for seed in ("1", "2"))
    assert one == other
    assert len({ending.trace for ending in one}) == 40
