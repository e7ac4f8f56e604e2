# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.mutants [NAME...]``: run all mutants, or those whose names are given; ``--brief``: one a promise.

Exit code 1 when one survives, dies of something else than a failed assertion, or does not apply any more.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from consumerd.wire import kernel
from tests.mutants.around import AROUND
from tests.mutants.mutant import Mutant
from tests.mutants.run import Fate, run_mutants, run_unchanged
from tests.mutants.table import MUTANTS
from tests.support import verification

ALL = (*MUTANTS, *AROUND)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="which mutants (all)")
    parser.add_argument("--brief", action="store_true", help="the first mutant of each promise")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    mutants = _choose(arguments.names, brief=arguments.brief)
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
