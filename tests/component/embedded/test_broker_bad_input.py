# SPDX-License-Identifier: Apache-2.0
"""The embedded broker under damaged requests; ``make fuzz`` does the same for minutes, with other seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.broker import run


@pytest.mark.timeout(150)
def test_broker_survives_damaged_requests_of_every_kind(tmp_path: Path) -> None:
    """Whatever a client sends, it is answered or cut off: the broker lives, holds little, and its logs stay sound."""
    assert "records in its logs" in run(seconds=4, seed=20, directory=tmp_path)
