# SPDX-License-Identifier: Apache-2.0
"""``consumerd produce`` on a cluster whose generation it finds in ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumerd.cli.main import main
from tests.support.embedded import EmbeddedThread
from tests.support.zookeeper import run_server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedThread]:
    """One broker of a release after 0.7."""
    with (
        run_server() as server,
        EmbeddedThread(tmp_path_factory.mktemp("modern"), f"{server.connect_string}/produce") as broker,
    ):
        broker.create_topic("t")
        yield broker


@pytest.mark.parametrize("option", [["--magic", "0"], ["--unknown", "fail"], ["--unknown", "resend"]])
def test_options_of_older_brokers_are_refused(
    cluster: EmbeddedThread, option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would do nothing: with ``--unknown fail``, records would still be sent again. Nothing is written."""
    lines = tmp_path / "lines"
    lines.write_bytes(b"value\n")
    assert main(["produce", "t", "-z", cluster.zookeeper, "--file", str(lines), *option]) == 2
    assert f"{option[0]}: only with Kafka 0.6 and 0.7" in capsys.readouterr().err
    assert cluster.count("t") == 0
