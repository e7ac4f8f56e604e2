# SPDX-License-Identifier: Apache-2.0
"""``consumerd tail`` on Kafka 0.7, where nothing but the records behind it tells if a length is true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.cli.main import main
from consumerd.wire.compression import Codec
from tests.support.embedded_legacy import LegacyThread
from tests.support.zookeeper import run_server

LIMIT_BYTES = 64 << 10
LARGE = b"x" * (LIMIT_BYTES + 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the broker's logs."""
    return tmp_path_factory.mktemp("legacy")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LegacyThread]:
    """One broker."""
    with run_server() as server, LegacyThread(folder, f"{server.connect_string}/tail", nodes=1) as brokers:
        yield brokers


def tail(
    cluster: LegacyThread, topic: str, capfd: pytest.CaptureFixture[str], code: int, *options: str
) -> tuple[list[int], str]:
    """Return the offsets that are shown, and what is told."""
    rows, told = tail_lines(cluster, topic, capfd, code, *options)
    return [row["offset"] for row in rows], told


def tail_lines(
    cluster: LegacyThread, topic: str, capfd: pytest.CaptureFixture[str], code: int, *options: str
) -> tuple[list[dict[str, Any]], str]:
    """Return the records that are shown, and what is told."""
    capfd.readouterr()
    limit = [f"--set=fetch.{key}={LIMIT_BYTES}" for key in ("max_partition_bytes", "max_message_bytes")]
    where = [*options, "-z", cluster.zookeeper]
    assert main(["tail", topic, "--from", "earliest", "--format", "json", *limit, *where]) == code
    out, err = capfd.readouterr()
    return [json.loads(line) for line in out.splitlines()], err


def test_a_message_above_the_limit_is_passed_over_if_records_follow_it(
    cluster: LegacyThread, capfd: pytest.CaptureFixture[str]
) -> None:
    """The records behind it are shown."""
    sent = cluster.send("large", [b"a", LARGE, LARGE, b"b", b"c"])
    offsets, told = tail(cluster, "large", capfd, 1)
    assert offsets == [sent[0].offset, sent[3].offset, sent[4].offset]
    assert "the limit is 65536" in told


def test_a_length_that_leads_into_another_message_is_not_believed(
    cluster: LegacyThread, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a damaged length claims is no range that was read: all up to the end is told as left out."""
    sent = cluster.send("damaged", [b"a", b"b" * 1000, *([b"c" * 1000] * 100)])
    (segment,) = folder.glob("*/damaged-0/*.kafka")
    data = bytearray(segment.read_bytes())
    at = sent[1].offset
    data[at : at + 4] = (LIMIT_BYTES + 5000).to_bytes(4)
    segment.write_bytes(data)
    offsets, told = tail(cluster, "damaged", capfd, 1)
    assert offsets == [0]
    assert f"{sent[1].offset} to {sent[-1].next_offset - 1}" in told


@pytest.mark.parametrize("count", [1, 3, 4, 7])
def test_the_requested_number_of_records_is_shown_though_they_share_an_offset(
    cluster: LegacyThread, capfd: pytest.CaptureFixture[str], count: int
) -> None:
    """Records of a compressed message are counted one by one."""
    topic = f"compressed-{count}"
    values = [b"%d" % number for number in range(10)]
    sent = [
        *cluster.send(topic, values[:2]),
        *cluster.send(topic, values[2:6], codec=Codec.GZIP),
        *cluster.send(topic, values[6:], codec=Codec.SNAPPY),
    ]
    rows, _ = tail_lines(cluster, topic, capfd, 0, f"--count={count}")
    assert [row["value"] for row in rows] == [one.value.decode() for one in sent[:count]]
