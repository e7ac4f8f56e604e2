# SPDX-License-Identifier: Apache-2.0
"""Size of a mirror's offset map, and the time of reading and translating.

Usage: ``python -m bench.offset_map [--transactions N] [--positions N]``.

For each generation, a partition is mirrored in N transactions (by default 1,000,000). That of Kafka 0.8 and later has
up to 2,000 records a transaction, and holes in the source; that of 0.6 and 0.7 has one message a transaction. No broker
takes part. Times are the processor's; ``by the clock`` stands where they are not.
"""

from __future__ import annotations

import argparse
import random
import tracemalloc
from time import perf_counter, process_time

from bench.machine import describe_machine
from consumerd.mirror.offset_map import OffsetMap
from consumerd.mirror.positions_index import PositionsIndex
from tests.support.long_map import LOG, LongMap


def read_map(written: dict[bytes, bytes], position: tuple[bytes, bytes]) -> OffsetMap:
    """Return the map as a reader of the positions topic makes it."""
    index = PositionsIndex()
    index.add(0, written.items())
    index.add(0, [position])
    state = index.find(LOG)
    assert state is not None
    return state.offset_map()


def measure(long: LongMap, transactions: int, count: int) -> None:
    """Print size, memory and times of a map."""
    written = dict(long.grow(transactions))
    size = sum(map(len, written.values()))
    print(
        f"  {transactions:,} transactions, {sum(long.counts):,} records: {size / 1e6:.2f} MB in {len(written):,} "
        f"segments, {size / transactions:.2f} bytes a transaction; the last segment has at most "
        f"{max(map(len, written.values())):,} bytes"
    )
    began = process_time()
    found = read_map(written, long.position())
    print(f"    read in {process_time() - began:.3f} s")
    dice = random.Random(1)
    positions = [dice.randrange(long.source_end + 1) for _ in range(count)]
    for what, ordered in (("first", positions), ("again", positions)):
        began, clock = process_time(), perf_counter()
        targets = [found.translate(position).offset for position in ordered]
        taken = f"{process_time() - began:.3f} s, {perf_counter() - clock:.3f} s by the clock"
        print(f"    {count:,} random positions translated, {what}: {taken}")
    began = process_time()
    for target in targets:
        found.translate_back(target)
    print(f"    and back: {process_time() - began:.3f} s")
    tracemalloc.start()
    again = read_map(written, long.position())
    for position in positions:
        again.translate(position)
    print(f"    memory of a decoded map: {tracemalloc.get_traced_memory()[1] / 1e6:.1f} MB beside its encoded segments")
    tracemalloc.stop()


def main() -> None:
    """Measure both generations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--positions", type=int, default=10_000)
    args = parser.parse_args()
    print(describe_machine())
    for counts_bytes, name in ((False, "Kafka 0.8 and later"), (True, "Kafka 0.6 and 0.7")):
        print(name)
        measure(LongMap(counts_bytes), args.transactions, args.positions)


if __name__ == "__main__":
    main()
