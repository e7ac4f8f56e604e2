# SPDX-License-Identifier: Apache-2.0
"""``consumerd broker`` as a process: it says where it is, serves foreign clients, and ends with all that it has started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from consumerd.embedded.tied import tied_command
from tests.support.embedded import EmbeddedFailed, EmbeddedProcess
from tests.support.kafka import free_port
from tests.support.processes import pids_in, wait_gone
from tests.support.waiting import wait_until
from tests.support.zookeeper import run_server

pytestmark = pytest.mark.drawn

LINES = b"".join(b"key-%d\tvalue-%d\n" % (number, number) for number in range(100))


def test_it_serves_keeps_its_data_and_its_port_and_ends_in_order(tmp_path: Path) -> None:
    """What a developer leaves in the evening is there in the morning; naming a topic again does no harm."""
    expected = sorted(tuple(line.split(b"\t")) for line in LINES.splitlines())
    with EmbeddedProcess(tmp_path, "--topic", "orders:3", "--topic", "clicks") as cluster:
        cluster.create_topic("made.by.znode", partitions=2)
        cluster.produce("orders", LINES, codec="gzip")
        cluster.produce("made.by.znode", LINES, codec="lz4")
        before = cluster.bootstrap
        assert cluster.stop() == 0
        wait_gone(tmp_path)

        cluster.start()

        assert cluster.bootstrap == before
        assert sorted(cluster.read("orders", 3)) == expected
        assert sorted(cluster.read("made.by.znode", 2)) == expected
        assert cluster.read("clicks") == []
        assert cluster.stop() == 0
        assert "Traceback" not in cluster.log()
    wait_gone(tmp_path)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("started", [True, False])
def test_a_signal_leaves_no_process_and_no_temporary_folder(
    tmp_path: Path, number: signal.Signals, started: bool
) -> None:
    """While it serves, and while its ZooKeeper is still starting."""
    process = subprocess.Popen(
        tied_command(sys.executable, "-m", "consumerd", "broker"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        if started:
            assert process.stdout.readline().startswith("bootstrap 127.0.0.1:")
            assert process.stdout.readline().startswith("zookeeper 127.0.0.1:")
        else:
            wait_until(lambda: any(tmp_path.rglob("zookeeper.log")), "ZooKeeper is started", interval_s=0.001)
        process.send_signal(number)
        out, err = process.communicate()
    finally:
        process.kill()
        process.wait()

    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
    assert pids_in(tmp_path) == set()


def test_its_zookeeper_does_not_outlive_it(tmp_path: Path) -> None:
    """However it ends."""
    with EmbeddedProcess(tmp_path) as cluster:
        assert len(pids_in(tmp_path)) >= 2
        cluster.kill()
        wait_gone(tmp_path)


def test_it_registers_at_a_zookeeper_that_is_there_and_leaves_that_running(tmp_path: Path) -> None:
    """Below a chroot, as a team's own brokers are; and it leaves at once, not when its session expires."""
    with run_server() as server:
        arguments = ("--zookeeper", f"{server.connect_string}/kafka", "--topic", "orders:2")
        with EmbeddedProcess(tmp_path, *arguments) as cluster, closing(KazooClient(server.connect_string)) as client:
            client.start()
            assert cluster.zookeeper == f"{server.connect_string}/kafka"
            assert client.get_children("/kafka/brokers/ids") == ["0"]
            assert client.get_children("/kafka/brokers/topics") == ["orders"]
            assert cluster.stop() == 0
            assert client.get_children("/kafka/brokers/ids") == []
            client.stop()


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    """Which option to change, and no traceback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EmbeddedFailed, match="ended with 2"):
            EmbeddedProcess(tmp_path, "--port", str(taken.getsockname()[1])).__enter__()

    wait_gone(tmp_path)


def test_a_topic_that_cannot_be_is_told(tmp_path: Path) -> None:
    """A slip of the finger, not a failure of the broker."""
    with pytest.raises(EmbeddedFailed, match=r"(?s)ended with 2.*--topic: .*a b"):
        EmbeddedProcess(tmp_path, "--topic", "a b").__enter__()

    wait_gone(tmp_path)


def test_a_zookeeper_that_does_not_answer_is_told(tmp_path: Path) -> None:
    """The same exit code as of any command that reaches nothing."""
    with pytest.raises(EmbeddedFailed, match="ended with 3"):
        EmbeddedProcess(tmp_path, "--zookeeper", f"127.0.0.1:{free_port()}").__enter__()
