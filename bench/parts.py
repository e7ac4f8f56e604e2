# SPDX-License-Identifier: Apache-2.0
"""Measurements that need no topic of a case.

They are decoding, latency, idling, rebalancing, draining a broker of Kafka 0.7, mirroring, and producing. Each
returns its rows of the report.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench import decode
from bench.cases import Part
from bench.report import millions
from bench.results import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Number of rounds; ``quick`` only checks that everything runs."""

    rounds: int
    quick: bool


Measure = Callable[[Effort], list[Row]]

_KERNEL_TARGETS: Final = {"magic 0": 10e6, "magic 1": 10e6, "magic 2": 30e6}


def measure_kernel(effort: Effort) -> list[Row]:
    """Measure decoding in memory on one core, with CRCs verified."""
    sets = decode.record_sets(decode.payloads()["repeated"])
    rows = []
    for name, target in _KERNEL_TARGETS.items():
        decode.decode_ours(sets[name])  # warm-up: imports and compilation happen once
        rates = [_decode_rate(sets[name], 0.1 if effort.quick else 1.0) for _ in range(effort.rounds)]
        median = statistics.median(rates)
        rows.append(
            Row(
                work=f"decoding alone, {name}, CRC checked, 100 bytes, repeated; one core",
                target=f"{millions(target)} records/s",
                figure=f"**{millions(median)}** ({millions(min(rates))} to {millions(max(rates))})",
                met=median >= target,
            )
        )
    return rows


def _decode_rate(data: bytes, seconds: float) -> float:
    """Return the rate in records per second of this thread's CPU time."""
    sets, began = 0, time.thread_time()
    while (taken := time.thread_time() - began) < seconds:
        decode.decode_ours(data)
        sets += 1
    return sets * decode.COUNT / taken


def measure_idle(effort: Effort) -> list[Row]:
    """Measure a daemon that owns ten thousand idle partitions."""
    from bench import idle

    rows = []
    for release in ("1.1.1",) if effort.quick else ("1.1.1", "0.10.2.2"):
        topics, partitions = (10, 10) if effort.quick else (100, 100)
        with idle.crowded_cluster(release, topics, partitions) as cluster:
            seconds = 5.0 if effort.quick else 20.0
            rounds = [
                idle.measure_idle(cluster, topics, partitions, seconds=seconds, profile=None)
                for _ in range(effort.rounds)
            ]
        aimed_at = release == "1.1.1"
        shares = [100 * one.core_share for one in rounds]
        resident = [one.resident_mib for one in rounds]
        claimed = [one.claimed_s for one in rounds]
        rows.append(
            Row(
                work=f"{release}, {topics * partitions} idle partitions of {topics} topics in one daemon",
                target="5 % of a core, 300 MiB" if aimed_at else "",
                figure=f"**{statistics.median(shares):.1f} %** ({min(shares):.1f} to {max(shares):.1f}), "
                f"**{statistics.median(resident):.0f} MiB** ({min(resident):.0f} to {max(resident):.0f}) resident, "
                f"claimed after {statistics.median(claimed):.1f} s",
                met=(statistics.median(shares) < 5 and statistics.median(resident) < 300) if aimed_at else None,
            )
        )
    return rows


def measure_latencies(effort: Effort) -> list[Row]:
    """Measure the latency from the producer to each reader, at 1,000 values/s."""
    from bench import latency
    from tests.support.kafka import Cluster

    rows = []
    with Cluster("1.1.1", heap="1g", brisk=False) as cluster:
        for partitions in (1,) if effort.quick else (1, 8):
            found = latency.measure_latency(
                cluster, partitions, rate=1000.0, rounds=effort.rounds, seconds=3.0 if effort.quick else 10.0
            )
            figures = {
                "median": {name: [one.median_ms for one in rounds] for name, rounds in found.items()},
                "99th percentile": {name: [one.p99_ms for one in rounds] for name, rounds in found.items()},
            }
            place = f"1.1.1, {partitions} partition{'s' if partitions > 1 else ''}"
            rows += [
                latency_row(f"{place}, 1,000 records/s, produce to sink, {what}", of_reader)
                for what, of_reader in figures.items()
            ]
    return rows


def latency_row(work: str, milliseconds: Mapping[str, Sequence[float]]) -> Row:
    """Return the row that compares our latency with that of the peers.

    The target is met if no peer has a lower median than ours.

    Args:
        work: text of the row.
        milliseconds: latency of each round, by reader.
    """
    medians = {name: statistics.median(rounds) for name, rounds in milliseconds.items()}
    ours = medians.pop("consumerd")
    own_rounds = milliseconds["consumerd"]
    return Row(
        work=work,
        target=" and ".join(f"{name}: {median:.2f} ms" for name, median in medians.items()),
        figure=f"**{ours:.2f} ms** ({min(own_rounds):.2f} to {max(own_rounds):.2f})",
        met=all(ours <= median for median in medians.values()),
    )


_CLAIMED: Final = re.compile(
    r"^(?P<who>[^,:]+)(, round \d+)?: all claimed (?P<seconds>[\d.]+) s after the join; *"
    r"(?P<moved>\d+) partitions moved, (?P<stayed>\d+) stayed, (?P<untouched>\d+) of them untouched$",
    re.MULTILINE,
)
_REQUESTS: Final = re.compile(r"^ +(\d+) requests \(", re.MULTILINE)
_GAPS: Final = re.compile(r"^ +gaps .* (?P<when>before|during) .*: longest (?P<ms>\d+) ms", re.MULTILINE)


def measure_rebalance(effort: Effort) -> list[Row]:
    """Measure groups that grow from four processes to five: ours, then Java's.

    There are a thousand partitions, or 40 with ``quick``.
    """
    command = [sys.executable, "-m", "bench.rebalance", "processes", "--java", "--rounds", str(effort.rounds)]
    command += ["--topics", "2", "--partitions", "20"] if effort.quick else []
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, end="", flush=True)
    return rebalance_rows(done.stdout, 40 if effort.quick else 1000)


def rebalance_rows(printed: str, partitions: int) -> list[Row]:
    """Return the rows for the text that ``bench.rebalance processes --java`` has printed."""
    claims = list(_CLAIMED.finditer(printed))
    ends = [claim.start() for claim in claims[1:]] + [len(printed)]
    seconds: list[float] = []
    requests: dict[str, list[int]] = {"ours": [], "Java": []}
    pauses: dict[str, list[int]] = {"before": [], "during": []}
    untouched = True
    for claim, end in zip(claims, ends, strict=True):
        rest = printed[claim.end() : end]
        ours = claim["who"] == "consumerd"
        counted = _REQUESTS.search(rest)
        requests["ours" if ours else "Java"] += [int(counted[1])] if counted else []
        if ours:
            seconds.append(float(claim["seconds"]))
            untouched &= claim["untouched"] == claim["stayed"]
            for gap in _GAPS.finditer(rest):
                pauses[gap["when"]].append(int(gap["ms"]))
    ours, java = (statistics.median(requests[who]) for who in ("ours", "Java"))
    work = f"{partitions} partitions, 4 members to 5"
    claimed = statistics.median(seconds)
    return [
        Row(
            work=f"{work}: all claimed after the join",
            target="3 s",
            figure=f"**{claimed:.2f} s** ({min(seconds):.2f} to {max(seconds):.2f})",
            met=claimed <= 3.0,
        ),
        Row(
            work=f"{work}: owner nodes of partitions that stay; longest time without a batch of theirs, before and "
            "meanwhile",
            target="all untouched",
            figure=f"**{'all' if untouched else 'not all'} untouched**; "
            f"{max(pauses['before'], default=0)} ms, {max(pauses['during'], default=0)} ms",
            met=untouched,
        ),
        Row(
            work=f"{work}: ZooKeeper requests until 10 s after the last claim",
            target=f"Java high-level consumer: {java:.0f}",
            figure=f"**{ours:.0f}**",
            met=ours < java,
        ),
    ]


def measure_legacy(effort: Effort) -> list[Row]:
    """Measure draining a broker of Kafka 0.7, uncompressed and gzip."""
    from bench import legacy

    return legacy.measure_drain(2_000_000 if effort.quick else 8_000_000, effort.rounds)


def measure_legacy_java(effort: Effort) -> list[Row]:
    """Measure draining a real broker of the 0.7 generation beside that generation's Java consumer."""
    from bench import legacy_java

    return legacy_java.measure_beside_java(2_000_000 if effort.quick else 8_000_000, effort.rounds)


def measure_mirror(peer: str, codec: str, effort: Effort) -> list[Row]:
    """Measure the daemon beside MirrorMaker 1 or 2, for one codec."""
    from bench import mirror_peers

    records = 500_000 if effort.quick else 4_000_000
    return mirror_peers.measure_beside_peer(mirror_peers.PEERS[peer], records, effort.rounds, (codec,))


def measure_transactions(effort: Effort) -> list[Row]:
    """Measure the sink kafka beside writes without transactions."""
    from bench import mirror

    return mirror.measure_transactions(1.0 if effort.quick else 6.0, effort.rounds)


def measure_mirror_start(effort: Effort) -> list[Row]:
    """Measure how long the sink kafka takes to begin partitions: 1,000, or 20 with ``quick``."""
    from bench import mirror

    partitions, seconds = (20, 2.0) if effort.quick else (1000, 10.0)
    return mirror.measure_start(partitions, seconds, effort.rounds)


def measure_producer(effort: Effort) -> list[Row]:
    """Measure our producer beside those of librdkafka, Java and aiokafka."""
    from bench import produce
    from bench.producers import JAVA_WARM_UP

    records, java_warm_up = (50_000, 50_000) if effort.quick else (500_000, JAVA_WARM_UP)
    return produce.measure_beside_peers(records, effort.rounds, java_warm_up=java_warm_up)


PARTS: Final[Mapping[Part, Measure]] = {
    Part.KERNEL: measure_kernel,
    Part.LATENCY: measure_latencies,
    Part.IDLE: measure_idle,
    Part.REBALANCE: measure_rebalance,
    Part.LEGACY: measure_legacy,
    Part.LEGACY_JAVA: measure_legacy_java,
    Part.MIRROR_1: partial(measure_mirror, "1", "none"),
    Part.MIRROR_1_LZ4: partial(measure_mirror, "1", "lz4"),
    Part.MIRROR_2: partial(measure_mirror, "2", "none"),
    Part.MIRROR_2_LZ4: partial(measure_mirror, "2", "lz4"),
    Part.TRANSACTIONS: measure_transactions,
    Part.MIRROR_START: measure_mirror_start,
    Part.PRODUCER: measure_producer,
}
