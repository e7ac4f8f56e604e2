# SPDX-License-Identifier: Apache-2.0
"""``consumerd tail`` beside ``kcat -C`` on real brokers: the same bytes for the same range."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Final

import pytest

from tests.interop.conftest import ClusterFactory
from tests.interop.test_data_faults import Transactions
from tests.support.kafka import CODECS, Cluster, Sent, has_headers, parse_release
from tests.support.tools import require_tool

PARTITIONS: Final = 2
EACH: Final = 60
FORMS: Final = {"value": "%s\\n", "key-value": "%k\\t%s\\n"}
"""Formats of ours, and kcat's for the same."""

RELEASES: Final = (
    pytest.param("0.8.2.2", marks=pytest.mark.full),
    "1.1.1",
    pytest.param("2.8.2", marks=pytest.mark.full),
)


def run(*command: str) -> bytes:
    done = subprocess.run(command, capture_output=True, timeout=90, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode()}"
    return done.stdout


def run_command(cluster: Cluster, topic: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "consumerd", "tail", topic, "-z", cluster.zookeeper, "--timeout", "60", *words]
    return subprocess.run(command, capture_output=True, timeout=90, check=False, stdin=subprocess.DEVNULL)


def tail(cluster: Cluster, topic: str, *words: str) -> bytes:
    done = run_command(cluster, topic, *words)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def kcat(cluster: Cluster, topic: str, *words: str) -> bytes:
    command = [require_tool("kcat", "kcat"), "-F", "/dev/null", "-C", "-q", "-e", "-b", cluster.bootstrap, "-t", topic]
    if parse_release(cluster.release) < (0, 10):
        command += ["-X", f"broker.version.fallback={cluster.release}", "-X", "api.version.request=false"]
    return run(*command, *words)


def fill(cluster: Cluster, topic: str) -> None:
    """Write records with each codec, with and without keys; some are no text, some null."""
    cluster.create_topic(topic, PARTITIONS)
    cluster.wait_topic(topic, PARTITIONS)
    for codec in CODECS[cluster.release]:
        producer = cluster.ledger_producer(codec)
        producer.send(
            Sent(
                topic,
                partition,
                b"key %d" % number if number % 3 else None,
                None
                if number % 20 == 19
                else b"\xff%d" % number
                if number % 7 == 0
                else b"%s %d" % (codec.encode(), number),
            )
            for number in range(EACH)
            for partition in range(PARTITIONS)
        )
        producer.finish()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kafka", RELEASES)
def test_the_same_bytes_as_kcat(kafka: str, shared_clusters: ClusterFactory, unique: Callable[[str], str]) -> None:
    """The last records, a range of offsets, everything; and an hour, where brokers know the times of records."""
    cluster = shared_clusters(kafka)
    topic = unique("tail")
    fill(cluster, topic)
    written = EACH * len(CODECS[kafka])
    for form, kcats in FORMS.items():
        one = ("--format", form, "--partition", "1")
        assert tail(cluster, topic, *one, "--from", "EARLIEST") == kcat(
            cluster, topic, "-p", "1", "-o", "beginning", "-f", kcats
        )
        assert tail(cluster, topic, *one) == kcat(cluster, topic, "-p", "1", "-o", "-10", "-f", kcats)
        assert tail(cluster, topic, *one, "--from", "57", "--count", "9") == kcat(
            cluster, topic, "-p", "1", "-o", "57", "-c", "9", "-f", kcats
        )
    rows = [json.loads(line) for line in tail(cluster, topic, "--from", "EARLIEST").splitlines()]
    theirs = [
        line.split(b" ") for line in kcat(cluster, topic, "-o", "beginning", "-f", "%p %o %T %K %S\\n").splitlines()
    ]
    assert sorted([row["partition"], row["offset"], row["timestamp"] or -1] for row in rows) == sorted(
        [int(partition), int(offset), int(time) if int(time) > 0 else -1] for partition, offset, time, _, _ in theirs
    )
    assert len(rows) == PARTITIONS * written
    if parse_release(kafka) >= (0, 10, 1):
        middle = sorted(row["timestamp"] for row in rows)[len(rows) // 2]
        at = tail(cluster, topic, "--at", str(middle), "--partition", "0", "--format", "value")
        assert at == kcat(cluster, topic, "-p", "0", "-o", f"s@{middle}", "-f", "%s\\n")
        assert at
    else:
        done = run_command(cluster, topic, "--at", "2024-05-01")
        assert (done.returncode, done.stdout.count(b"\n")) == (0, PARTITIONS * written)
        assert done.stderr.count(b"a broker before 0.10.1 knows one time for each log segment") == 1


@pytest.mark.timeout(120)
def test_transactions_are_shown_as_kcat_shows_them(
    release: str, shared_clusters: ClusterFactory, unique: Callable[[str], str]
) -> None:
    """Committed, aborted and open ones, under both levels of isolation; the last records are those that are visible."""
    if not has_headers(release):
        pytest.skip(f"{release} has no transactions; they came with headers, in 0.11")
    cluster = shared_clusters(release)
    topic = unique("transactions")
    cluster.create_topic(topic)
    with Transactions(cluster, topic) as producer:
        for number, end in enumerate(["commit", "abort", "commit", "abort"]):
            producer.do("begin")
            producer.send(*(f"{end}-{number}-{at}" for at in range(3)))
            producer.do(end)
        producer.do("begin")
        producer.send("open")
        for level in ("read_committed", "read_uncommitted"):
            ours = tail(cluster, topic, "--isolation", level, "--from", "EARLIEST", "--format", "value")
            isolation = ("-X", f"isolation.level={level}", "-f", "%s\\n")
            assert ours == kcat(cluster, topic, "-p", "0", "-o", "beginning", *isolation)
            assert ours.count(b"\n") == (6 if level == "read_committed" else 13)
        last = tail(cluster, topic, "--isolation", "read_committed", "--from", "-4", "--format", "value")
        assert last == b"commit-0-2\ncommit-2-0\ncommit-2-1\ncommit-2-2\n"
        producer.do("abort")
