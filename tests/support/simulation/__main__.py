# SPDX-License-Identifier: Apache-2.0
"""Tells stories: ``python -m tests.support.simulation FIRST-LAST`` over all cores, or one seed with all that happened.

Exit code 1 when a story ends badly; each such seed is printed with the command that tells it again, line by line.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Final, assert_never

from tests.support import verification
from tests.support.simulation.batch import Kind, describe_failures, tell_all, tell_some
from tests.support.simulation.coordinated import tell_coordinated
from tests.support.simulation.legacy import tell_legacy
from tests.support.simulation.story import Outcome, tell

_FIGURES: Final = {
    Kind.PLAIN: "stories",
    Kind.BRONZE: "stories into bronze",
    Kind.COORDINATED: "stories of coordinated groups",
    Kind.LEGACY: "stories on brokers of Kafka 0.7",
}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulation", description=__doc__)
    parser.add_argument("seeds", help="a seed, or FIRST-LAST")
    parser.add_argument("--kind", type=Kind, choices=list(Kind), default=Kind.PLAIN, help="what the stories are about")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--every", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--from", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    if not last:
        return _show(int(first), arguments.kind)
    if arguments.every is not None:
        seeds = range(int(first) + vars(arguments)["from"], int(last) + 1, arguments.every)
        tell_some(seeds, _find_teller(arguments.kind))
        return 0
    return _tell_all(int(first), int(last), arguments.jobs, arguments.kind)


def _find_teller(kind: Kind) -> Callable[[int], Outcome]:
    match kind:
        case Kind.PLAIN:
            return tell
        case Kind.COORDINATED:
            return tell_coordinated
        case Kind.LEGACY:
            return tell_legacy
        case Kind.BRONZE:
            # with pyspark, which other stories do not need
            from tests.support.simulation.bronze_story import tell_into_bronze

            return tell_into_bronze
        case _:
            assert_never(kind)


def _tell_all(first: int, last: int, jobs: int, kind: Kind) -> int:
    began = time.monotonic()
    endings = tell_all(first, last, jobs=jobs, kind=kind)
    seconds = time.monotonic() - began
    hours = sum(ending.virtual_s for ending in endings) / 3600
    each = 1000 * seconds * jobs / len(endings)
    sys.stdout.write(
        f"{len(endings)} stories, {hours:.1f} h of virtual time, in {seconds:.0f} s on {jobs} cores, {each:.0f} ms each\n"
        f"{describe_failures(endings, kind=kind)}\n"
    )
    if any(ending.failure for ending in endings):
        return 1
    figures = {
        f"{_FIGURES[kind]}, none failed": f"{len(endings):,} (seeds {first}-{last})",
        "virtual time, h": f"{hours:.1f}",
    }
    verification.record("`make simulate`", figures)
    return 0


def _show(seed: int, kind: Kind) -> int:
    told = _find_teller(kind)(seed)
    sys.stdout.writelines(f"{line}\n" for line in told.story)
    sys.stdout.write(f"{told.failure or 'ended well'}; {told.steps} steps, digest {told.trace}\n")
    return 1 if told.failure else 0


if __name__ == "__main__":
    sys.exit(main())
