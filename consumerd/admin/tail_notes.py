# SPDX-License-Identifier: Apache-2.0
"""Notes of ``consumerd tail``: gaps of a partition, and waiting. Pure.

Example: of a compacted log, the first three gaps are told one by one, and the others in one line at the end::

    orders/3: offsets 12 to 19: no record in the log: compacted, or never assigned
    orders/3: 250 more offsets: no record in the log: compacted, or never assigned
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from consumerd.model import Gap, GapReason, TopicPartition
from consumerd.telemetry.wording import counted

_TOLD_GAPS: Final = 3
"""Gaps of one kind in one partition that are told one by one; the others are summed up at the end."""
_NAMED_PARTITIONS: Final = 3
"""Partitions that are named of those that wait for the same reason."""

_REASONS: Final = {
    GapReason.COMPACTION: "no record in the log: compacted, or never assigned",
    GapReason.CONTROL: "transaction markers",
    GapReason.ABORTED: "records of aborted transactions",
    GapReason.CORRUPT: "damaged",
}


class WaitingNotes:
    """Prints notes about partitions from which no records come, and the reason.

    Often many partitions wait for the same reason, such as a broker that does not answer. The first three partitions of
    a reason are named; then one line says that there are more. ``tell`` prints a line.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._reasons: dict[TopicPartition, str] = {}
        self._named: set[TopicPartition] = set()

    def wait(self, partition: TopicPartition, reason: str) -> None:
        """Print why no records of this partition come, if the reason is a new one."""
        if self._reasons.get(partition) == reason:
            return
        others = sum(one == reason for one in self._reasons.values())
        self._reasons[partition] = reason
        if others < _NAMED_PARTITIONS:
            self._named.add(partition)
            self._tell(f"{partition}: waiting: {reason}")
        elif others == _NAMED_PARTITIONS:
            self._tell(f"more partitions are waited for: {reason}")

    def resume(self, partition: TopicPartition) -> None:
        """Note that records of this partition come again.

        This is printed if :meth:`wait` has named the partition.
        """
        if self._reasons.pop(partition, None) is not None and partition in self._named:
            self._named.remove(partition)
            self._tell(f"{partition}: goes on")


class PartitionNotes:
    """Prints notes about one partition: gaps in its offsets, unreadable records, waiting.

    The first few gaps of each kind are printed one by one. The remaining gaps are counted, and :meth:`tell_untold`
    prints their numbers of offsets. ``tell`` prints a line.
    """

    def __init__(self, partition: TopicPartition, tell: Callable[[str], None], waiting: WaitingNotes) -> None:
        self._partition = partition
        self._tell = tell
        self._waiting = waiting
        self._told: Counter[str] = Counter()
        self._untold: Counter[str] = Counter()

    def tell(self, text: str) -> None:
        """Print a line that begins with the partition's name."""
        self._tell(f"{self._partition}: {text}")

    def wait(self, reason: str) -> None:
        """Print why no records of the partition come, if the reason is a new one."""
        self._waiting.wait(self._partition, reason)

    def resume(self) -> None:
        """Note that records come again, after :meth:`wait`."""
        self._waiting.resume(self._partition)

    def note_gap(self, gap: Gap) -> None:
        """Print a gap in the partition's offsets, or count it for :meth:`tell_untold`."""
        kind = _REASONS.get(gap.reason, gap.reason.value)
        # every log with transactions has markers, one for each
        is_told = gap.reason is not GapReason.CONTROL and self._told[kind] < _TOLD_GAPS
        self._note(gap.start, gap.end, kind, kind, is_told=is_told)

    def note_left_out(self, start: int, end: int, kind: str, reason: str) -> None:
        """Print that records of these offsets cannot be read, or count them for :meth:`tell_untold`.

        Args:
            start: First offset.
            end: Offset after the last one.
            kind: Name under which such offsets are counted.
            reason: Explanation that is printed.
        """
        kind = f"left out: {kind}"
        self._note(start, end, kind, f"left out: {reason}", is_told=self._told[kind] < _TOLD_GAPS)

    def _note(self, start: int, end: int, kind: str, text: str, *, is_told: bool) -> None:
        if is_told:
            self._told[kind] += 1
            self.tell(f"{describe_offsets(start, end)}: {text}")
        else:
            self._untold[kind] += end - start

    def tell_untold(self) -> None:
        """Print, for each kind, the number of offsets that were not printed one by one."""
        for kind, size in self._untold.items():
            more = "more " if self._told[kind] else ""
            self.tell(f"{counted(size, f'{more}offset')}: {kind}")
        self._untold.clear()


def describe_offsets(start: int, end: int) -> str:
    """Return offsets from ``start`` to before ``end`` in words, such as ``offsets 12 to 19``."""
    return f"offset {start}" if end - start == 1 else f"offsets {start} to {end - 1}"
