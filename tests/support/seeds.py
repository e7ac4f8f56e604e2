# SPDX-License-Identifier: Apache-2.0
"""Seeds of tests that try something new in each run, all from one number, so that a failure can be repeated as it was.

``CONSUMERD_SEED`` is that number. Where it is not set, a run draws one, and says it in its header; xdist's workers inherit it.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence
from typing import Final, TypeVar

_VARIABLE: Final = "CONSUMERD_SEED"

T = TypeVar("T")


def run_seed() -> int:
    """Return the seed of this run of the tests, drawn now if there is none yet."""
    return int(os.environ.setdefault(_VARIABLE, str(random.SystemRandom().randrange(1 << 31))))


def draw_seed(what: str) -> int:
    """Return the seed for ``what``, the same for one seed of the run, and print both for a test that fails."""
    seed = zlib.crc32(f"{run_seed()}:{what}".encode()) >> 1
    print(f"seed {seed} of {what}; {_VARIABLE}={run_seed()} gives it again")  # noqa: T201 - shown when the test fails
    return seed


def some_of(what: str, cases: Sequence[T], count: int) -> list[T]:
    """Return ``count`` of the cases of a slow test, in their order: other ones for another seed, all with the full matrix."""
    if os.environ.get("CONSUMERD_FULL_MATRIX") == "1":
        return list(cases)
    chosen = random.Random(zlib.crc32(f"{run_seed()}:{what}".encode())).sample(range(len(cases)), count)
    return [cases[at] for at in sorted(chosen)]
