# SPDX-License-Identifier: Apache-2.0
"""Benchmark of record decoding alone, in memory, on one thread.

    python -m bench.decode [--seconds 2]

It compares our decoder with the native kernel, our decoder without the kernel, and aiokafka's compiled parser, in
turns. All of them verify checksums.

Payloads: 100 bytes, repeated; 100 random bytes; JSON of varying length. A figure is the rate of the best round, in
millions of records per second of CPU time.

Our decoder makes columns, aiokafka makes one Python object per record. Two more columns of the table therefore show our
decoder (with the kernel) when each value is also made into ``bytes``, and when the result is also converted to an Arrow
record batch.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

from aiokafka.record.memory_records import MemoryRecords

from consumerd.model import TopicPartition
from consumerd.wire import kernel
from consumerd.wire.modern.record_set import decode_record_set
from tests.support.pure import without_kernel
from tests.support.record_sets import RecordSpec, batch, message, wrapper

PARTITION = TopicPartition.modern("bench", 0)
COUNT = 30_000
NOW_MS = 1_700_000_000_000
PER_BATCH = 150


def payloads() -> dict[str, list[bytes]]:
    """Return the values of each kind of payload, by kind."""
    rng = random.Random(7)
    texts = [
        json.dumps({"id": rng.getrandbits(40), "user": f"user-{rng.randrange(10**rng.randrange(1, 6))}",
                    "at": NOW_MS + n, "amount": round(rng.random() * 10 ** rng.randrange(4), 2)}).encode()
        for n in range(COUNT)
    ]  # fmt: skip
    return {
        "repeated": [b"x" * 100] * COUNT,
        "random": [rng.randbytes(100) for _ in range(COUNT)],
        "json": texts,
    }


def record_sets(values: list[bytes]) -> dict[str, bytes]:
    """Return the values as encoded record sets, by format and codec."""
    starts = range(0, COUNT, PER_BATCH)
    sets = {
        f"magic {magic}": b"".join(
            message(number, value, magic=magic, timestamp=NOW_MS + number // 50) for number, value in enumerate(values)
        )
        for magic in (0, 1)
    }

    def inner(start: int) -> bytes:
        return b"".join(
            message(row, value, timestamp=NOW_MS + row // 50)
            for row, value in enumerate(values[start : start + PER_BATCH])
        )

    def specs(start: int) -> list[RecordSpec]:
        return [
            RecordSpec(delta=row, value=value, timestamp_delta=row // 50)
            for row, value in enumerate(values[start : start + PER_BATCH])
        ]

    sets["magic 1, snappy"] = b"".join(wrapper(start + PER_BATCH - 1, inner(start), 2) for start in starts)
    for name, codec in (("magic 2", 0), ("magic 2, snappy", 2), ("magic 2, lz4", 3), ("magic 2, zstd", 4)):
        sets[name] = b"".join(batch(start, specs(start), codec=codec, base_timestamp=NOW_MS) for start in starts)
    return sets


def decode_ours(data: bytes) -> int:
    """Decode a record set into columns; return the number of records."""
    return len(decode_record_set(data, partition=PARTITION, start=0))


def decode_pure(data: bytes) -> int:
    """Decode a record set into columns without the native kernel."""
    with without_kernel():
        return decode_ours(data)


def decode_ours_values(data: bytes) -> int:
    """Decode a record set and make each value into ``bytes``."""
    return len(decode_record_set(data, partition=PARTITION, start=0).values())


def decode_ours_arrow(data: bytes) -> int:
    """Decode a record set and convert it to an Arrow record batch."""
    return int(decode_record_set(data, partition=PARTITION, start=0).to_arrow().num_rows)


def decode_peer(data: bytes) -> int:
    """Decode a record set with aiokafka's parser, in the same way as its fetcher.

    Raises ValueError if a CRC differs.
    """
    records = MemoryRecords(data)
    count = 0
    while records.has_next():
        batch = records.next_batch()
        if not batch.validate_crc():
            raise ValueError("CRC differs")
        for _ in batch:
            count += 1
    return count


CONTENDERS: dict[str, Callable[[bytes], int]] = {
    "kernel": decode_ours,
    "pure": decode_pure,
    "aiokafka": decode_peer,
    "values made": decode_ours_values,
    "into Arrow": decode_ours_arrow,
}


def measure(data: bytes, seconds: float) -> dict[str, float]:
    """Return the best rate of each contender, by name.

    Rates are in millions of records per second of CPU time. The contenders take turns for ``seconds``.

    Raises ValueError if one of them returns a wrong number of records.
    """
    best = dict.fromkeys(CONTENDERS, 0.0)
    for contender in CONTENDERS.values():
        contender(data)  # warm-up: imports and compilation happen once
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        for name, contender in CONTENDERS.items():
            begun = time.thread_time()
            count = contender(data)
            rate = count / (time.thread_time() - begun) / 1e6
            if count != COUNT:
                raise ValueError(f"{name} read {count} records, expected {COUNT}")
            best[name] = max(best[name], rate)
    return best


def main() -> None:
    """Measure all record sets and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each record set (2)")
    seconds = parser.parse_args().seconds
    print(f"kernel: {kernel.describe()}")
    ratios = ("kernel", "pure")
    print(f"{'':28}" + "".join(f"{name:>13}" for name in (*CONTENDERS, *(f"{name}/peer" for name in ratios))))
    for kind, values in payloads().items():
        for name, data in record_sets(values).items():
            rates = measure(data, seconds)
            figures = [*rates.values(), *(rates[one] / rates["aiokafka"] for one in ratios)]
            print(f"{kind + ', ' + name:28}" + "".join(f"{figure:13.2f}" for figure in figures))


if __name__ == "__main__":
    main()
