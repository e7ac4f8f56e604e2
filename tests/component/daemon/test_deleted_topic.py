# SPDX-License-Identifier: Apache-2.0
"""What the commands say of a group's positions after its topic was deleted and created again, on the embedded cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.deleted_topic import check_commands
from tests.support.embedded import EmbeddedProcess


@pytest.mark.timeout(120)
def test_commands_tell_a_position_of_a_deleted_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Believed, it hides 30 records of the new topic from lag, and from the consumer once it was exported and set."""
    with EmbeddedProcess(tmp_path / "cluster") as cluster:
        check_commands(cluster, "orders", "lake", tmp_path, capsys)
