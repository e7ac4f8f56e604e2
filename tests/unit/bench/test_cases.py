# SPDX-License-Identifier: Apache-2.0
"""What can be measured is declared soundly, and found by name."""

from __future__ import annotations

import itertools

import pytest

from bench.cases import CASES, Case, Part, Payload, select


def test_names_are_unique_and_topics_within_a_release() -> None:
    """Results are kept by name, and one cluster holds a release's topics."""
    assert len({case.name for case in CASES} | set(Part)) == len(CASES) + len(Part)
    assert len({(case.filling.release, case.filling.topic) for case in CASES}) == len(CASES)


def test_cases_of_a_release_follow_one_another() -> None:
    """Each release is started once."""
    releases = [case.filling.release for case in CASES]
    assert len(set(releases)) == 1 + sum(a != b for a, b in itertools.pairwise(releases))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_targets_are_of_readers_that_take_part(case: Case) -> None:
    """A target without its peer in the same rounds would never be judged."""
    for target in case.targets:
        assert target.reader in case.readers
        assert target.peer is None or target.peer in case.readers
        assert (target.times > 0) == (target.peer is not None)
        assert (target.records_per_s > 0) == (target.peer is None)


def test_selecting_by_name() -> None:
    """Shell patterns over cases and parts; all by default."""
    assert select(["*"]) == (CASES, tuple(Part))
    cases, parts = select(["1.1.1-snappy-*", "kernel"])
    assert [case.name for case in cases] == [f"1.1.1-snappy-{payload}" for payload in Payload]
    assert parts == (Part.KERNEL,)
    with pytest.raises(ValueError, match="no case is named nothing"):
        select(["kernel", "nothing"])
