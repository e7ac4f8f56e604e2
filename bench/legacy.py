# SPDX-License-Identifier: Apache-2.0
"""Benchmark of draining a broker of Kafka 0.7: the daemon's fetcher beside a raw socket.

    python -m bench.legacy [--records 8000000] [--rounds 5] [--codecs none gzip]

The broker is the embedded one. Its topics hold values of 100 bytes, which compress about as well as text: uncompressed,
or 200 of them in each compressed message, as the producer of Kafka 0.7 sends by default.

The readers take turns, and send the same requests. The raw socket receives the bytes and looks at none of them; the
fetcher also cuts, verifies, decompresses and decodes them. A rate is the slope between two marks, as in ``python -m
bench`` (see ``bench.slopes``); a figure is the median of the rounds.

Two more readers show what limits the others. A socket that pipelines its requests has the most that the broker serves
to one connection. One that decompresses gzip, and does nothing else, has the most that one core can do.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.produce import in_turn, payloads
from bench.readers.telling import parse_told
from bench.report import millions, print_rows
from bench.results import Row
from bench.slopes import Marks, slope_between
from consumerd.wire import kernel
from consumerd.wire.compression import Codec
from consumerd.wire.legacy.message_set import build_message_set
from consumerd.wire.legacy.messages import LegacyMultiFetchRequest, LegacyProduceRequest
from consumerd.wire.legacy.session import encode_legacy_request
from tests.support.embedded import EmbeddedProcess

FETCHER: Final = "consumerd, fetcher"
PURE: Final = "consumerd, fetcher (pure Python)"
SOCKET: Final = "raw socket"
PIPELINED: Final = "raw socket, pipelined"
INFLATING: Final = "raw socket, decompressing"
CODECS: Final = (Codec.NONE, Codec.GZIP)
LEAST_RATIO: Final = 0.5
"""Target of the fetcher: its rate divided by that of the raw socket."""

_MODULES: Final = {
    FETCHER: "legacy_fetcher",
    PURE: "legacy_fetcher",
    SOCKET: "legacy_socket",
    PIPELINED: "legacy_pipelined",
    INFLATING: "legacy_inflating",
}
_SPARE: Final = 1.25
"""Records in a topic, as a multiple of the upper mark."""
_PER_MESSAGE: Final = 200
"""Records in a compressed message: the default of ``batch.size`` of the producer of Kafka 0.7."""
_BLOCK_RECORDS: Final = 20_000
_ROOT: Final = Path(__file__).resolve().parents[1]

Rates = Mapping[str, Sequence[float]]
"""Records per second of each round, by reader."""


def build_block(codec: Codec) -> bytes:
    """Return the message set that topics repeat, of :data:`_BLOCK_RECORDS` records."""
    values = payloads(_BLOCK_RECORDS)
    if codec == Codec.NONE:
        return build_message_set(values)
    groups = (values[first : first + _PER_MESSAGE] for first in range(0, len(values), _PER_MESSAGE))
    return b"".join(build_message_set(group, codec=codec) for group in groups)


def fill(bootstrap: str, topic: str, codec: Codec, records: int) -> int:
    """Produce at least ``records`` records to partition 0; return how many there are."""
    block = build_block(codec)
    frame = encode_legacy_request(LegacyProduceRequest(topic=topic, partition=0, messages=block))
    host, _, port = bootstrap.rpartition(":")
    times = -(-records // _BLOCK_RECORDS)
    with socket.create_connection((host, int(port)), 60) as connection:
        for _ in range(times):
            connection.sendall(frame)
        # PRODUCE has no response; requests are served in order
        connection.sendall(encode_legacy_request(LegacyMultiFetchRequest(requests=())))
        assert connection.recv(1), "the broker closed the connection"
    return times * _BLOCK_RECORDS


def read_once(reader: str, bootstrap: str, topic: str, records: int, marks: Marks) -> float:
    """Drain a topic with a reader process; return its rate in records/s."""
    command = [sys.executable, "-m", f"bench.readers.{_MODULES[reader]}", bootstrap, topic, str(records)]
    environment = {**os.environ, kernel.SWITCH: "off"} if reader == PURE else None
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=environment, check=True
    )
    series = [sample for line in done.stdout.splitlines() if (sample := parse_told(line))]
    return slope_between(series, marks).records_per_s


def choose_readers(codec: Codec, *, pure: bool = False) -> list[str]:
    """Return the readers of a topic, by its codec.

    Args:
        pure: True to include the fetcher without the native kernel.
    """
    chosen = [FETCHER, SOCKET, PIPELINED]
    return chosen + [INFLATING] * (codec == Codec.GZIP) + [PURE] * pure


def measure_codec(bootstrap: str, codec: Codec, records: int, rounds: int, readers: Sequence[str]) -> Rates:
    """Fill a topic, and let each reader drain it once in each round."""
    topic, marks = f"bench-{codec.name.lower()}", Marks(low=records // 4, high=records)
    held = fill(bootstrap, topic, codec, int(records * _SPARE))
    rates: dict[str, list[float]] = {reader: [] for reader in readers}
    for turn in range(rounds):
        for reader in in_turn(readers, turn):
            rates[reader].append(read_once(reader, bootstrap, topic, held, marks))
    return rates


def ratio_of(rates: Rates, peer: str) -> float:
    """Return the fetcher's rate divided by a peer's: the median of the rounds."""
    return statistics.median(ours / theirs for ours, theirs in zip(rates[FETCHER], rates[peer], strict=True))


def row_of(codec: Codec, rates: Rates) -> Row:
    """Return the row of the report for one codec."""
    ours, ratio = rates[FETCHER], ratio_of(rates, SOCKET)
    kind = "uncompressed" if codec == Codec.NONE else codec.name.lower()
    others = "".join(f"; {ratio_of(rates, one):.2f} times a {one}" for one in (PIPELINED, INFLATING) if one in rates)
    return Row(
        work=f"0.7, embedded broker, 100 bytes, {kind}: the daemon's fetcher",
        target=f"{LEAST_RATIO:g} times a raw socket, {millions(statistics.median(rates[SOCKET]))} records/s",
        figure=f"**{ratio:.2f} times**, {millions(statistics.median(ours))} records/s "
        f"({millions(min(ours))} to {millions(max(ours))}){others}",
        met=ratio >= LEAST_RATIO,
    )


def measure_drain(records: int, rounds: int, codecs: Sequence[Codec] = CODECS, *, pure: bool = False) -> list[Row]:
    """Measure all codecs on one broker; print each reader's rates, and return the rows.

    Args:
        pure: True to measure the fetcher without the native kernel, too.
    """
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="consumerd-bench-") as folder,
        EmbeddedProcess(Path(folder), "--generation", "legacy") as broker,
    ):
        for codec in codecs:
            rates = measure_codec(broker.bootstrap, codec, records, rounds, choose_readers(codec, pure=pure))
            for reader, of_rounds in rates.items():
                each = " ".join(millions(rate) for rate in of_rounds)
                print(f"  {codec.name.lower():8} {reader:34} {each}", flush=True)
            rows.append(row_of(codec, rates))
    return rows


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=8_000_000, help="the upper mark (8000000)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--codecs", nargs="+", default=["none", "gzip"], choices=["none", "gzip", "snappy"])
    parser.add_argument("--pure", action="store_true", help="measure the fetcher without the native kernel, too")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; {kernel.describe()}; records/s", flush=True)
    codecs = [Codec[name.upper()] for name in args.codecs]
    print_rows(measure_drain(args.records, args.rounds, codecs, pure=args.pure))


if __name__ == "__main__":
    main()
