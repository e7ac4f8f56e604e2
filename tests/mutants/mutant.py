# SPDX-License-Identifier: Apache-2.0
"""What a mutant is, and how its edit is applied."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SIMULATION = "tests/property/test_simulation.py::test_whatever_happens_one_owner_one_deliverer_whole_chains_and_commits_that_hold"
"""The stories of ``tests.support.simulation``; a mutant that they are to kill says how many are told."""

BRONZE_STORIES = "tests/property/test_bronze_stories.py::test_bronze_holds_what_the_logs_held_record_by_record"
"""The stories that go on into a bronze table, always the standing ones."""

COORDINATED_STORIES = "tests/property/test_coordinated_stories.py::test_coordinated_groups_have_one_owner_whole_chains_and_commits_that_hold"
"""The stories of groups that brokers coordinate, always the standing ones."""

LEGACY_STORIES = "tests/property/test_legacy_stories.py::test_groups_on_brokers_of_kafka_0_7_have_each_record_once_and_positions_that_hold"
"""The stories of groups on brokers of Kafka 0.7, always the standing ones."""


class StaleMutant(Exception):
    """The code that a mutant changes is not there any more, or not just once: the mutant is to be written anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One edit of one file, after which each of ``tests`` must fail by an assertion.

    ``also`` are further edits of that file, each an old and a new text: what one defence does while another covers for it
    shows only where both are gone. ``part`` is the part of the native kernel that is compiled anew, where the file is C.
    ``promise`` is the number of the promise (docs/architecture.md) that the edit breaks; 0 for what operators and users of
    the commands and of Spark rely on. ``stories`` is how many seeds :data:`SIMULATION` tells, where it is among the tests.
    ``dies_of`` names the exceptions, besides assertions, by which a test may notice it (a regular expression).
    """

    name: str
    promise: int
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    stories: int = 0
    also: tuple[tuple[str, str], ...] = ()
    part: str = ""
    dies_of: str = ""

    def edit(self, text: str) -> str:
        """Return the file's text with the mutation in it. Raises StaleMutant."""
        for old, new in ((self.old, self.new), *self.also):
            found = text.count(old)
            if found != 1:
                raise StaleMutant(f"{self.name}: the text to replace is {found} times in {self.file}, expected once")
            text = text.replace(old, new)
        return text

    def find_path(self, top: Path) -> Path:
        """Return the file's path below a copy of the repository."""
        return top / "consumerd" / self.file
