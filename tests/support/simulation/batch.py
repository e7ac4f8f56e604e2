# SPDX-License-Identifier: Apache-2.0
"""Many stories over all cores: each core has a Python of its own, which tells every so-manieth story."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.simulation.story import Outcome


class Kind(enum.StrEnum):
    """A kind of story, by its option on the command line."""

    PLAIN = "plain"
    """Of a group that ZooKeeper keeps."""
    BRONZE = "bronze"
    """Goes on into a bronze table."""
    COORDINATED = "coordinated"
    """Of a group that brokers coordinate."""
    LEGACY = "legacy"
    """Of a group on brokers of Kafka 0.7."""


_TOP = Path(__file__).resolve().parents[3]
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Ending:
    """How one story ended: ``failure`` is empty where it ended well."""

    seed: int
    trace: str
    virtual_s: float
    failure: str


def tell_all(first: int, last: int, *, jobs: int, hash_seed: str = "random", kind: Kind = Kind.PLAIN) -> list[Ending]:
    """Tell the stories from ``first`` to ``last``, and return how they ended, by seed.

    Args:
        jobs: number of processes.
        kind: kind of the stories.
    """
    command = [sys.executable, "-m", "tests.support.simulation", f"{first}-{last}", "--kind", kind.value]
    command += ["--every", str(jobs), "--from"]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(_TOP)]))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}
    workers = [
        subprocess.Popen([*command, str(job)], env=environment, stdout=subprocess.PIPE, text=True)
        for job in range(jobs)
    ]
    endings = []
    for worker in workers:
        output, _ = worker.communicate()
        if worker.returncode != 0:
            raise RuntimeError(f"a worker ended with {worker.returncode}")
        endings += [_parse(line) for line in output.splitlines()]
    return sorted(endings, key=lambda ending: ending.seed)


def tell_some(seeds: Sequence[int], tell: Callable[[int], Outcome]) -> None:
    """Tell stories one after the other, and write a line on each: what a worker does."""
    for seed in seeds:
        told = tell(seed)
        failure = " ".join((told.failure or "").split())
        sys.stdout.write(f"{seed}\t{told.trace}\t{told.virtual_s:.3f}\t{failure}\n")
        sys.stdout.flush()


def _parse(line: str) -> Ending:
    seed, trace, virtual_s, failure = line.split("\t")
    return Ending(int(seed), trace, float(virtual_s), failure)


def describe_failures(endings: Sequence[Ending], *, kind: Kind = Kind.PLAIN) -> str:
    """Say which stories ended badly, and how to see them again."""
    failed = [ending for ending in endings if ending.failure]
    lines = [
        f"seed {ending.seed}: {ending.failure}\n    python -m tests.support.simulation {ending.seed} --kind {kind}"
        for ending in failed[:_SHOWN]
    ]
    return "\n".join([f"{len(failed)} of {len(endings)} stories ended badly", *lines])
