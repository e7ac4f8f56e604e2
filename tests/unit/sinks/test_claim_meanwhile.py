# SPDX-License-Identifier: Apache-2.0
"""A partition that is claimed while its former owner publishes, in each order of their steps."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from consumerd.errors import RetriableSinkError
from consumerd.landing.filesystem import OsFileSystem
from consumerd.landing.metadata import find_metadata_reader
from consumerd.landing.publish import find_chain
from tests.support.clocks import ManualClock
from tests.support.faulty_files import RecordingFileSystem
from tests.support.sinks import PARTITION, SinkRig, run_of

pytestmark = pytest.mark.records

FAR = 1000
WAIT_S = 20.0


class ClaimInSteps(OsFileSystem):
    """The claim of another process, which stops before its ``stop``-th look at a folder, or change of it, from 0."""

    def __init__(self, rig: SinkRig, stop: int) -> None:
        self._rig = rig
        self._left = stop
        self._stopped = threading.Event()
        self._may_go_on = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._claim, daemon=True)
        self.reached = False

    def names(self, path: Path) -> list[str]:
        """See FileSystem."""
        self._step()
        return super().names(path)

    def unlink(self, path: Path) -> None:
        """See FileSystem."""
        self._step()
        super().unlink(path)

    def sync_folder(self, path: Path) -> None:
        """See FileSystem."""
        self._step()
        super().sync_folder(path)

    def begin(self) -> None:
        """Claim the partition up to the step before which the claim stops."""
        self._thread.start()
        assert self._stopped.wait(WAIT_S)

    def end(self) -> None:
        """Do the rest of the claim. Raises what it has failed with."""
        self._may_go_on.set()
        if self._thread.ident is not None:
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive()
        if self._failures:
            raise self._failures[0]

    def _step(self) -> None:
        if self._left == 0:
            self.reached = True
            self._stopped.set()
            assert self._may_go_on.wait(WAIT_S)
        self._left -= 1

    def _claim(self) -> None:
        kind, read_metadata = self._rig.kind, find_metadata_reader(self._rig.kind)
        assert read_metadata is not None
        try:
            find_chain(self, self._rig.path, PARTITION, extension=kind, read_metadata=read_metadata)
        except BaseException as error:  # noqa: BLE001 - told by end()
            self._failures.append(error)
        finally:
            self._stopped.set()


async def publish_while_claimed(rig: SinkRig, *, stop: int, at: int) -> tuple[bool, bool]:
    """Land ten records while another process claims the partition.

    The claim goes up to its step ``stop`` before the file is begun, and does the rest before the ``at``-th change of
    names or of what is durable. Returns whether that step, and that change, were reached.
    """
    first = await rig.writer()
    await first.write(run_of(0, 3))
    await first.flush()

    changes, claim, reached = itertools.count(), ClaimInSteps(rig, stop), False
    files = RecordingFileSystem()
    writer = await rig.writer(files=files)
    claim.begin()

    def go_on_with_claim(operation: str, name: str) -> None:
        nonlocal reached
        if operation != "write" and next(changes) == at:  # a claim sees names, not what a file holds
            reached = True
            claim.end()

    files.before = go_on_with_claim
    try:
        await writer.write(run_of(3, 10))
        await writer.flush()
    except RetriableSinkError:
        pass  # the claim has removed what was hidden
    finally:
        claim.end()
    return claim.reached, reached


async def test_claim_between_any_two_steps_of_publishing_leaves_a_chain_that_goes_on(kind: str, tmp_path: Path):
    """Whoever comes next reads where the chain ends, and lands the rest: each record once, each file with its metadata."""
    cases = 0
    for stop in range(FAR):
        for at in range(FAR):
            rig = SinkRig(kind=kind, path=tmp_path / f"{stop}-{at}", clock=ManualClock())
            stopped, reached = await publish_while_claimed(rig, stop=stop, at=at)
            third = await rig.writer()
            position = third.resume_position
            assert position is not None
            await third.write(run_of(position, 12))
            assert await third.flush() == 12
            landing = rig.landing()
            await rig.close()
            assert (stop, at, landing.problems) == (stop, at, [])
            assert (stop, at, rig.offsets()) == (stop, at, list(range(12)))
            cases += 1
            if not reached:
                break
        if not stopped:
            break
    assert cases > 30
