# SPDX-License-Identifier: Apache-2.0
"""Append rate of the embedded broker's partition log, on one thread.

    python -m bench.log [--seconds 2] [--directory DIR]

Record sets of 64 KiB, as producers send them, are appended to a log on this disk without fsync. Values have 100 bytes;
there are 50 records per millisecond of timestamps.

The table shows, for each format and codec, MB of values per second of CPU time and of wall time, million records per
second of CPU time, and the rate of ``prepare`` alone (CRC check and offsets), which is a part of each append. The last
line is for the same bytes written to a file without any processing.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from consumerd.embedded.log.files import OsLogFiles
from consumerd.embedded.log.partition_log import PartitionLog
from consumerd.embedded.log.preparation import prepare
from consumerd.embedded.log.settings import LogSettings
from consumerd.model import TopicPartition
from consumerd.wire.modern.building import build_record_set
from consumerd.wire.records import NewRecord

PARTITION = TopicPartition.modern("bench", 0)
SET_BYTES = 64 << 10
VALUE_BYTES = 100
NOW_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4")


def make_set(magic: int, codec: int) -> tuple[bytes, int]:
    """Return a record set of 64 KiB before compression, and its number of records."""
    count = SET_BYTES // (VALUE_BYTES + (26, 34, 8)[magic])
    rng = random.Random(7)
    records = [
        NewRecord(
            value=rng.randbytes(VALUE_BYTES // 2).hex().encode(), timestamp=NOW_MS + number // 50 if magic else -1
        )
        for number in range(count)
    ]
    return build_record_set(records, magic=magic, codec=codec), count


def rate(work: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Return the calls of ``work`` per second of CPU time and of wall time."""
    done = 0
    wall, processor = time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - wall) < seconds:
        for _ in range(16):
            work()
        done += 16
    return done / (time.process_time() - processor), done / elapsed


def measure(directory: Path, magic: int, codec: int, seconds: float) -> str:
    """Measure one format and codec; return its line of the table."""
    data, count = make_set(magic, codec)
    settings = LogSettings(message_format=magic, segment_bytes=256 << 20, retention_ms=None)
    log = PartitionLog.open(directory, PARTITION, settings=settings, files=OsLogFiles(), now_ms=lambda: NOW_MS)
    by_processor, by_clock = rate(lambda: log.append(data), seconds)
    log.discard()
    prepared, _ = rate(lambda: prepare(data, PARTITION, 0, settings, NOW_MS), seconds / 4)
    for path in log.folder.iterdir():
        path.unlink()
    log.folder.rmdir()
    megabytes = count * VALUE_BYTES / 1e6
    return (
        f"magic {magic} {CODECS[codec]:>6} {len(data):>6} {by_processor * megabytes:>10.0f} "
        f"{by_clock * megabytes:>10.0f} {by_processor * count / 1e6:>10.2f} {prepared * megabytes:>10.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--directory", type=Path, help="where the log is; a temporary folder by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.directory) as folder:
        print("format   codec  bytes  MB/s (cpu) MB/s (clock) M records/s  MB/s (prepare alone); MB of values")
        for magic, codecs in ((2, range(4)), (1, range(4)), (0, (0, 2))):
            for codec in codecs:
                print(measure(Path(folder), magic, codec, args.seconds), flush=True)
        data, count = make_set(2, 0)
        with (Path(folder) / "plain").open("wb", buffering=0) as file:
            plain, clock = rate(lambda: file.write(data), args.seconds / 4)
        print(f"write alone          {len(data):>6} {plain * count / 1e4:>10.0f} {clock * count / 1e4:>10.0f}")


if __name__ == "__main__":
    main()
