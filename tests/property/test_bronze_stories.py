# SPDX-License-Identifier: Apache-2.0
"""Stories of simulated groups whose bronze table is held against the logs.

``make simulate`` tells hundreds of stories; a seed that fails is told again by the command that is printed.
``CONSUMERD_BRONZE_SEEDS=A-B`` tells others than the standing ones.
"""

from __future__ import annotations

import os

import pytest

from tests.support.simulation.batch import Kind, describe_failures, tell_all

pytestmark = pytest.mark.records

FIRST, LAST = (int(part) for part in os.environ.get("CONSUMERD_BRONZE_SEEDS", "0-31").split("-"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bronze_holds_what_the_logs_held_record_by_record() -> None:
    """Identities and coverage, over truncations, requests, several roots, another cluster, kills and damage."""
    endings = tell_all(FIRST, LAST, jobs=1, kind=Kind.BRONZE)
    assert list(range(FIRST, LAST + 1)) == [ending.seed for ending in endings]
    failed = [ending.seed for ending in endings if ending.failure]
    assert [] == failed, describe_failures(endings, kind=Kind.BRONZE)


def test_a_seed_tells_the_same_story_into_bronze_in_every_process() -> None:
    """A failure must come again to be mended, though attempts and roots have random names."""
    one, other = (tell_all(0, 1, jobs=1, hash_seed=seed, kind=Kind.BRONZE) for seed in ("1", "2"))
    assert one == other
