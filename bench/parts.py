"""What is measured without a topic that everybody reads: decoding alone, latency, idling, rebalancing. Rows for the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bench import decode
from bench.cases import Part
from bench.report import millions
from bench.results import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is put into it; ``quick`` only shows that it runs."""

    rounds: int
    quick: bool


Measure = Callable[[Effort], list[Row]]

_KERNEL_TARGETS: Final = {"magic 0": 10e6, "magic 1": 10e6, "magic 2": 30e6}


def measure_kernel(effort: Effort) -> list[Row]:
    """Decode in memory on one core, CRCs checked."""
    sets = decode.record_sets(decode.payloads()["repeated"])
    rows = []
    for name, target in _KERNEL_TARGETS.items():
        rate = 1e6 * decode.measure(sets[name], 0.5 if effort.quick else 2.0 * effort.rounds)["consumerd"]
        rows.append(
            Row(
                work=f"decoding alone, {name}, CRC checked, 100 bytes, repeated; one core",
                target=f"{millions(target)} records/s",
                figure=f"**{millions(rate)}**",
                met=rate >= target,
            )
        )
    return rows


def measure_idle(effort: Effort) -> list[Row]:
    """Own ten thousand partitions of which nothing comes."""
    from bench import idle

    rows = []
    for release in ("1.1.1",) if effort.quick else ("1.1.1", "0.10.2.2"):
        topics, partitions = (10, 10) if effort.quick else (100, 100)
        with idle.crowded_cluster(release, topics, partitions) as cluster:
            seconds = 5.0 if effort.quick else 60.0
            found = idle.measure_idle(cluster, topics, partitions, seconds=seconds, profile=None)
        aimed_at = release == "1.1.1"
        rows.append(
            Row(
                work=f"{release}, {found.partitions} idle partitions of {topics} topics in one daemon",
                target="5 % of a core, 300 MiB" if aimed_at else "",
                figure=f"**{100 * found.core_share:.1f} %**, **{found.resident_mib:.0f} MiB** resident, "
                f"claimed after {found.claimed_s:.1f} s",
                met=(found.core_share < 0.05 and found.resident_mib < 300) if aimed_at else None,
            )
        )
    return rows


PARTS: Final[Mapping[Part, Measure]] = {Part.KERNEL: measure_kernel, Part.IDLE: measure_idle}
