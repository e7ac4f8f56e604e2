# SPDX-License-Identifier: Apache-2.0
"""Benchmark of mirroring a topic into another cluster: the daemon beside MirrorMaker 1 or 2.

    python -m bench.mirror_peers 1 [--codecs none lz4] [--records 4000000] [--rounds 5]

- ``1``: from Kafka 1.1.1 into 1.1.1, beside MirrorMaker 1 of 1.1.1.
- ``2``: from Kafka 1.1.1 into 4.3.1, beside MirrorMaker 2 of 3.9.1.

Source and target are one broker each, on the cores of the mirrors. The topic has four partitions of values of 100
bytes; the mirrors write with the codec of the source. They take turns, and each begins with an empty topic in the
target (``bench.mirrors`` has all settings). A rate is the slope between two marks (see ``bench.slopes``), so starting
does not count. A ratio is the median of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.__main__ import BROKER_SETTINGS
from bench.cases import Filling
from bench.filling import fill
from bench.machine import describe_machine
from bench.measuring import read_once
from bench.mirrors import MAKER_2, PARTITIONS, consumerd, mirror_maker_1, mirror_maker_2
from bench.produce import in_turn
from bench.readers.running import Source, Starter
from bench.report import compare, millions, print_rows
from bench.results import Row
from bench.slopes import Marks
from tests.support.kafka import Cluster
from tests.support.kraft import make_cluster

_SOURCE: Final = "1.1.1"
_SPARE: Final = 1.25
"""Records in the topic, as a multiple of the upper mark."""
_OURS: Final = "consumerd mirror"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A mirror beside ours.

    Attributes:
        target: release of the cluster that gets the records.
        starter: returns the starter for a target and a codec.
        least: target: our rate divided by the peer's.
    """

    name: str
    target: str
    starter: Callable[[Cluster, str], Starter]
    least: float


PEERS: Final[Mapping[str, Peer]] = {
    "1": Peer(name=f"MirrorMaker 1 of {_SOURCE}", target="1.1.1", starter=mirror_maker_1, least=3.0),
    "2": Peer(name=f"MirrorMaker 2 of {MAKER_2}", target="4.3.1", starter=mirror_maker_2, least=2.0),
}
"""Peers by the argument of the command."""


def measure_beside_peer(peer: Peer, records: int, rounds: int, codecs: Sequence[str] = ("none", "lz4")) -> list[Row]:
    """Let both mirrors copy a topic of each codec in turns; return the rows.

    Raises ReaderFailed, TooFewRecords, KafkaUnavailable.

    Args:
        records: the upper mark.
    """
    marks = Marks(low=records // 4, high=records)
    rows = []
    with _serving(_SOURCE) as source_cluster, _serving(peer.target) as target:
        for codec in codecs:
            filling = Filling(release=_SOURCE, partitions=PARTITIONS, codec=codec)
            held = fill(source_cluster, filling, int(records * _SPARE))
            source = Source(cluster=source_cluster, topic=filling.topic, records=held)
            starters = {_OURS: consumerd(target, codec), peer.name: peer.starter(target, codec)}
            rates: dict[str, list[float]] = {name: [] for name in starters}
            for turn in range(rounds):
                for name in in_turn(list(starters), turn):
                    reading = read_once(starters[name], source, marks)
                    rates[name].append(reading.records_per_s)
                    print(f"  {codec:4} {name:24} {millions(reading.records_per_s)}", flush=True)
            shown = "uncompressed" if codec == "none" else codec
            work = f"{_SOURCE} to {peer.target}, {shown}, {filling.values}: {_OURS}"
            rows.append(compare(work, rates[_OURS], rates[peer.name], peer.name, peer.least))
    return rows


def _serving(release: str) -> Cluster:
    return make_cluster(release, heap="1g", properties=BROKER_SETTINGS, brisk=False)


def main() -> None:
    """Run the benchmark and print its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS, help="MirrorMaker 1, or 2")
    parser.add_argument("--codecs", nargs="+", default=["none", "lz4"], choices=["none", "gzip", "snappy", "lz4"])
    parser.add_argument("--records", type=int, default=4_000_000, help="the upper mark (4000000)")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"{describe_machine()}; records/s", flush=True)
    print_rows(measure_beside_peer(PEERS[args.peer], args.records, args.rounds, args.codecs))


if __name__ == "__main__":
    main()
