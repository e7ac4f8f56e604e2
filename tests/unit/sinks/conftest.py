# SPDX-License-Identifier: Apache-2.0
from collections.abc import AsyncIterator

import pytest

from tests.support.clocks import ManualClock
from tests.support.sinks import SinkRig


@pytest.fixture(params=["jsonl", "parquet"])
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of sink that lands files."""
    return str(request.param)


@pytest.fixture
async def rig(kind: str, tmp_path) -> AsyncIterator[SinkRig]:
    """A landing folder, and members that write to it."""
    rig = SinkRig(kind=kind, path=tmp_path / "landing", clock=ManualClock())
    yield rig
    await rig.close()
