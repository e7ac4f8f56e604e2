# SPDX-License-Identifier: Apache-2.0
"""Landed files written by real processes, which are killed and raced."""

import asyncio
import sys
from pathlib import Path

import pytest

from consumerd.aio.timeouts import timeout
from tests.support.landing_process import RACE_END
from tests.support.landing_reader import read_landing

pytestmark = [pytest.mark.records, pytest.mark.timeout(170), pytest.mark.drawn]

KINDS = pytest.mark.parametrize("kind", ["jsonl", "parquet"])


async def run_writer(mode: str, kind: str, path: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        # libraries have threads at rest, about which Python 3.12 warns at each fork
        *(
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-m",
            "tests.support.landing_process",
            mode,
            kind,
            str(path),
        ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, errors.decode()) == (0, "")
    return output.decode()


@KINDS
async def test_process_killed_before_each_system_call_loses_and_repeats_nothing(kind: str, tmp_path: Path):
    """Promise 2 where it is hardest: kill -9 between any two steps of publishing, and another process goes on."""
    async with timeout(150):
        killed = int(await run_writer("dying", kind, tmp_path / "landing"))
    landing = read_landing(tmp_path / "landing")

    assert killed > 20
    assert landing.problems == []
    assert landing.leftovers == []
    partition = landing.partitions["orders", "3"]
    assert partition.offsets == list(range(partition.end))
    assert {record.value for record in partition.records} == {b"%8d" % offset for offset in range(partition.end)}


@KINDS
async def test_process_killed_before_each_system_call_of_a_new_chain_leaves_chains_that_follow_each_other(
    kind: str, tmp_path: Path
):
    """A seal without a successor, a chain without a file: whatever is left, the next process goes on from it."""
    async with timeout(150):
        killed = int(await run_writer("succeeding", kind, tmp_path / "landing"))
    landing = read_landing(tmp_path / "landing")

    assert killed > 40
    assert landing.problems == []
    assert landing.leftovers == []
    partition = landing.partitions["orders", "3"]
    assert len(partition.chains) > 10
    assert {chain.is_sealed for chain in partition.chains[:-1]} == {True}
    for chain in partition.chains:
        assert [record.offset for file in chain.files for record in file.records] == list(
            range(chain.origin, chain.end)
        )


@KINDS
async def test_racing_processes_never_overlap(kind: str, tmp_path: Path):
    """Three processes that all believe to own the partition: every record lands once."""
    async with timeout(150), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(run_writer("racing", kind, tmp_path / "landing"))
    landing = read_landing(tmp_path / "landing")

    assert landing.problems == []
    partition = landing.partitions["orders", "3"]
    assert partition.offsets == list(range(RACE_END))
    writers = {file.metadata["writer"].partition("-")[0] for file in partition.chains[0].files}
    assert len(writers) > 1
