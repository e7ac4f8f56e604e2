# SPDX-License-Identifier: Apache-2.0
"""Everything that a broker of each release holds lands once: the installed command, against each that ours passes for.

librdkafka writes as the clients of that release did, and says where each record is.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from consumerd.embedded.releases import IMITATIONS
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import Sent
from tests.support.landing_check import Place
from tests.support.landing_job import LandingJob
from tests.support.ledger import Ledger

pytestmark = pytest.mark.records

CODECS: Final = ("none", "gzip", "snappy", "lz4")
"""In the order of their numbers in a set's attributes."""
PARTITIONS: Final = 3
PER_CODEC: Final = 200
TOLD: Final[Mapping[str, Mapping[str, str]]] = {
    release: {"api_version_request": "false", "broker_version_fallback": f"{release}.0"} for release in ("0.8.2", "0.9")
}
"""What librdkafka must be told of brokers that list no versions."""
MAGIC: Final = {"0.8.2": 0, "0.9": 0, "0.10": 1, "1.1": 2}


def records(topic: str, codec: str, *, headers: bool) -> Iterable[Sent]:
    """Yield keys, values and headers of all kinds: absent, empty, not UTF-8, and one larger than a first fetch."""
    noise = random.Random(codec)
    for number in range(PER_CODEC):
        key = None if number % 5 == 0 else b"key %d" % number
        value = None if number % 7 == 0 else b"v" * (number % 3) + noise.randbytes(number % 300)
        carried = (("trace", b"\xff%d" % number), ("trace", None)) if headers and number % 4 == 0 else ()
        yield Sent(topic, number % PARTITIONS, key, value, carried)
    yield Sent(topic, 0, b"large", noise.randbytes(200_000))


def stored_as(segments: Iterable[Path]) -> Iterator[tuple[int, int]]:
    """Yield magic and codec of each message, set or batch in log files, by Kafka's description of their heads."""
    for segment in segments:
        data, at = segment.read_bytes(), 0
        while at < len(data):
            magic = data[at + 16]
            yield magic, data[at + 22 if magic == 2 else at + 17] & 7
            at += 12 + struct.unpack_from(">i", data, at + 8)[0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("release", IMITATIONS)
def test_every_codec_lands_from_every_release(
    release: str, zookeeper: EmbeddedZooKeeper, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """From the first record to the last, as Parquet and as JSON lines, in that release's format and versions."""
    chroot = f"{zookeeper.connect_string}/{unique('release')}"
    with EmbeddedThread(tmp_path / "broker", chroot, as_release=release) as broker:
        job = LandingJob.make(broker, "releases", tmp_path, partitions=PARTITIONS)
        ledger: dict[Place, Sent] = {}
        for codec in CODECS:
            producer = Ledger(broker.bootstrap, codec, **TOLD.get(release, {}))
            for topic in job.topics:
                producer.send(records(topic, codec, headers=MAGIC[release] == 2))
            ledger |= producer.finish()
        segments = [path for topic in job.topics for one in range(PARTITIONS) for path in broker.segments(topic, one)]
        with job.daemon("member", fetch={"max_partition_bytes": 65_536}) as member:
            job.wait_landed(ledger)
            assert member.get("/readyz")[0] == 200
            assert member.terminate() == 0

    assert set(stored_as(segments)) == {(MAGIC[release], codec) for codec in range(len(CODECS))}
    assert len(ledger) == len(job.topics) * len(CODECS) * (PER_CODEC + 1)
    assert job.find_faults(ledger) == []
