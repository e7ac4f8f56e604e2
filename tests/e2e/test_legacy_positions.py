# SPDX-License-Identifier: Apache-2.0
"""``consumerd offsets`` on Kafka 0.7 while a daemon runs, and what comes of it in the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from consumerd.wire.compression import Codec
from tests.e2e.test_legacy_groups import settings, wait_committed
from tests.support.daemon import Daemon
from tests.support.embedded_legacy import LegacyThread
from tests.support.landing_reader import LandedPartition, read_landing
from tests.support.offset_commands import offsets, rows

pytestmark = pytest.mark.records

TARGET = "events/0-0"


@pytest.fixture
def cluster(zookeeper: EmbeddedZooKeeper, unique: Callable[[str], str], tmp_path: Path) -> Iterator[LegacyThread]:
    """One broker with one partition of each topic."""
    at = f"{zookeeper.connect_string}/{unique('positions')}"
    with LegacyThread(tmp_path / "brokers", at, nodes=1, num_partitions=1) as brokers:
        yield brokers


def read_partition(folder: Path) -> LandedPartition:
    """Return what has landed, once it holds together."""
    landing = read_landing(folder)
    assert landing.problems == []
    return landing.partitions["events", "0-0"]


def test_a_daemon_goes_back_to_the_start_of_a_message_and_is_not_sent_into_one(
    cluster: LegacyThread, tmp_path: Path
) -> None:
    """The records from there on land again, in a chain of their own, with all records of a compressed message."""
    folder, zookeeper = tmp_path / "landed", cluster.zookeeper
    sent = cluster.send("events", [b"plain %d" % number for number in range(5)])
    packed = cluster.send("events", [b"packed %d" % number for number in range(5)], codec=Codec.GZIP)
    sent += packed
    begin, end = packed[0].offset, packed[0].next_offset
    file = tmp_path / "positions"
    with Daemon(tmp_path, "one", settings(cluster, folder)) as one:
        wait_committed([one], sent)
        refused = offsets(zookeeper, "lake", "set", f"{TARGET}={begin + 1}", "--yes")
        assert 2 == refused.returncode
        assert f"{begin + 1} is inside of the message at {begin}; the next one begins at {end}" in refused.stderr
        file.write_text(f"/consumers/lake/offsets/{TARGET}:{begin}\n")
        (back,) = rows(offsets(zookeeper, "lake", "import", str(file), "--yes", "--json"))
        one.wait(lambda: len(read_partition(folder).records) == len(sent + packed), "they are landed again")
        wait_committed([one], sent)
        (shifted,) = rows(offsets(zookeeper, "lake", "shift", TARGET, "--by", str(begin - end), "--yes", "--json"))
        one.wait(lambda: len(read_partition(folder).records) == len(sent + 2 * packed), "and once more")
        wait_committed([one], sent)
        assert one.terminate() == 0

    assert [(begin, "carried out")] * 2 == [(row["target"], row["outcome"]) for row in (back, shifted)]
    found = read_partition(folder)
    assert [0, begin, begin] == [chain.origin for chain in found.chains]
    assert [(one.offset, one.index, one.value) for one in found.records] == [
        (one.offset, one.index, one.value) for one in sent + 2 * packed
    ]
