# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.mutants [NAME...]``: run all mutants, or those whose names are given.

``--brief`` runs one of each promise, and ``--part 2/3`` the second third of them.

Exit code 1 when one survives, dies of something else than a failed assertion, or does not apply any more.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from consumerd.wire import kernel
from tests.mutants.around import AROUND
from tests.mutants.coordinated import COORDINATED
from tests.mutants.encoded import ENCODED
from tests.mutants.http_sink import HTTP_SINK
from tests.mutants.legacy import LEGACY
from tests.mutants.migrated import MIGRATED
from tests.mutants.mirrored import MIRRORED
from tests.mutants.mutant import Mutant
from tests.mutants.run import Fate, run_mutants, run_unchanged
from tests.mutants.secured import SECURED
from tests.mutants.table import MUTANTS
from tests.mutants.transactional import TRANSACTIONAL
from tests.mutants.without_zookeeper import WITHOUT_ZOOKEEPER
from tests.support import verification

ALL = (
    *MUTANTS,
    *AROUND,
    *COORDINATED,
    *WITHOUT_ZOOKEEPER,
    *LEGACY,
    *HTTP_SINK,
    *TRANSACTIONAL,
    *SECURED,
    *MIRRORED,
    *MIGRATED,
    *ENCODED,
)


@dataclass(frozen=True, slots=True)
class Part:
    """One of several parts of the mutants, each of which has some of every promise: number ``index`` of ``count``, from 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Parse ``2/3``. Raises ValueError."""
        index, count = (int(number) for number in text.split("/"))
        if not 1 <= index <= count:
            raise ValueError(f"part {text}: expected the first number from 1 to the second")
        return cls(index, count)

    def has(self, mutant: Mutant) -> bool:
        """Return True if the mutant is in this part: a mutant that is added moves no other one."""
        return zlib.crc32(mutant.name.encode()) % self.count == self.index - 1


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="which mutants (all)")
    parser.add_argument("--brief", action="store_true", help="the first mutant of each promise")
    parser.add_argument(
        "--part", type=Part.parse, default=Part(1, 1), metavar="I/N", help="one of N parts of them (1/1)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    mutants = [one for one in _choose(arguments.names, brief=arguments.brief) if arguments.part.has(one)]
    if not mutants:
        parser.error(f"no such mutant; there are {', '.join(mutant.name for mutant in ALL)}")
    began = time.monotonic()
    if (problem := run_unchanged(mutants)) is not None:
        sys.stdout.write(f"{problem}\na named test fails on the code as it is\n")
        return 1
    bad = 0
    for verdict in run_mutants(mutants, jobs=arguments.jobs):
        mutant = verdict.mutant
        bad += verdict.fate is not Fate.KILLED
        sys.stdout.write(
            f"{verdict.fate.value:9} promise {mutant.promise}  {mutant.name:40} {verdict.seconds:5.1f} s  {verdict.detail}\n"
        )
        sys.stdout.flush()
    sys.stdout.write(f"{len(mutants) - bad} of {len(mutants)} mutants killed in {time.monotonic() - began:.0f} s\n")
    if not bad and mutants == list(ALL):
        verification.record("`make mutants`", {"mutants killed": len(mutants)})
    return 1 if bad else 0


def _choose(names: Sequence[str], *, brief: bool) -> list[Mutant]:
    chosen = [mutant for mutant in ALL if not names or mutant.name in names]
    if not kernel.NATIVE:
        sys.stdout.write("mutants of the native kernel are left out: there is none\n")
        chosen = [mutant for mutant in chosen if not mutant.part]
    if not brief:
        return chosen
    first: dict[int, Mutant] = {}
    for mutant in chosen:
        first.setdefault(mutant.promise, mutant)
    return list(first.values())


if __name__ == "__main__":
    sys.exit(main())
