# SPDX-License-Identifier: Apache-2.0
"""The daemon's process under a service manager: what it says on the socket that NOTIFY_SOCKET names."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import free_port
from tests.support.waiting import wait_until

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "consumerd.service"


def test_a_unit_is_active_without_zookeeper_says_what_it_waits_for_and_stops_in_order(tmp_path: Path) -> None:
    """A host whose ZooKeeper is away must boot, and its units must not be restarted for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(30)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        settings = settings_for(f"127.0.0.1:{free_port()}", "g", topics=("orders",))
        with Daemon(tmp_path, "d", settings, environment=environment) as daemon:
            first, beats = listener.recv(4096), [listener.recv(4096) for _ in range(3)]
            listens = bool(daemon.events("http_started"))
            daemon.process.terminate()
            rest = [listener.recv(4096)]
            while not rest[-1].startswith(b"STOPPING=1\n"):
                rest.append(listener.recv(4096))
            assert daemon.wait_end() == 0

    assert first == b"READY=1"
    assert listens
    assert all(one.startswith(b"WATCHDOG=1\nSTATUS=not ready: waiting for ZooKeeper at ") for one in beats)
    assert rest[-1].endswith(b"EXTEND_TIMEOUT_USEC=30000000")


def test_a_unit_says_that_it_has_joined_the_group(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """`systemctl status` shows it."""
    topic = unique("unit")
    cluster.create_topic(topic, 2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(30)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        settings = settings_for(cluster.zookeeper, topic, topics=(topic,))
        with Daemon(tmp_path, "d", settings, environment=environment) as daemon:
            daemon.wait(lambda: listener.recv(4096) == b"WATCHDOG=1\nSTATUS=ready, 2 partitions", "it says so")
            assert daemon.terminate() == 0


def test_other_users_can_read_what_a_process_with_the_units_umask_lands(
    cluster: EmbeddedThread, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Folders and files alike, whatever mode they are made with."""
    topic = unique("mask")
    cluster.create_topic(topic)
    cluster.produce(topic, b"a\tone\nb\ttwo\n")
    landing = tmp_path / "landing"
    (mask,) = re.findall(r"^UMask=(\d+)$", UNIT.read_text(), re.MULTILINE)
    settings = settings_for(
        cluster.zookeeper, topic, topics=(topic,), sink={"type": "jsonl", "path": str(landing), "roll_ms": 100}
    )
    ours = os.umask(int(mask, 8))
    try:
        daemon = Daemon(tmp_path, "d", settings)
    finally:
        os.umask(ours)
    with daemon:
        wait_until(lambda: bool([*landing.rglob("*.jsonl")]), "a file has landed")
        assert daemon.terminate() == 0
    made = [landing, *landing.rglob("*")]
    denied = [
        one
        for one in made
        if one.stat().st_mode & (0o055 if one.is_dir() else 0o044) != (0o055 if one.is_dir() else 0o044)
    ]

    assert any(stat.S_ISREG(one.stat().st_mode) for one in made)
    assert denied == []
