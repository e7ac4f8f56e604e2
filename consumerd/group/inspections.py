# SPDX-License-Identifier: Apache-2.0
"""Schedule of reading owner nodes: when to read, which ones, and how thoroughly.

An owner node, ``/consumers/G/owners/T/P``, names the present owner of a partition. Pure: the member's state machine
reports changes to the schedule, asks which inspection is due, sends the reads, and evaluates the results. There is one
inspection at a time; changes during an inspection cause another one after it.

Example: another member joins at 10.0 s, which opens a handover window until 15.0 s. At 11.0 s owner nodes of topic T
change. This member waits for no partition of T, so the names of T's nodes are read at 11.25 s; a node that was deleted
and created again is expected then. At 16.0 s a change is unexpected: the names are read at 16.02 s, and so is the
content of nodes that were created again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from consumerd.group import events as ev
from consumerd.group.records import PartitionRecord
from consumerd.group.transitions import HELD, PartitionState
from consumerd.model import TopicPartition

_OWNER_DEBOUNCE_S: Final = 0.02
"""Debounce interval, in seconds, for owner-node changes, which arrive in bursts during a rebalance."""
_HANDOVER_DEBOUNCE_S: Final = 0.25
"""Debounce interval, in seconds, during a handover, in topics where we wait for no partition."""
_HANDOVER_WINDOW_S: Final = 5.0
"""Time, in seconds, after a group change in which other members may still hand over partitions.

Within it, a deleted and re-created owner node is normal; after it, the machine reads whose the node is.
"""
_MAX_HANDOVER_WINDOW_S: Final = 30.0
"""Longest handover window, in seconds, when the group keeps changing."""


class InspectionSchedule:
    """Schedule of reads of owner nodes.

    It says when the next read is due, of which topics, and how thorough it is.
    A thorough read includes the nodes' content, another one their names only. The schedule also keeps the reads that
    are not answered yet.
    """

    def __init__(self) -> None:
        self._pending: dict[int, Mapping[TopicPartition, int]] = {}
        """Inspections under way by serial: their partitions, with their claim numbers."""
        self._at: float | None = None
        self._depth = ev.Look.NAMES
        self._topics: set[str] = set()
        """Topics whose owner nodes are to be inspected next, unless all are."""
        self._all = False
        self._changing_since: float | None = None
        """Time of the first group change after the last close inspection."""
        self._handover_ends_at = 0.0
        """End of the handover window of the last group change."""

    @property
    def due_at(self) -> float | None:
        """Time of the next read of owner nodes, in seconds of the machine's clock.

        None if none is scheduled, or if one is under way.
        """
        return None if self._pending else self._at

    def clear(self) -> None:
        """Forget all scheduled and pending reads of owner nodes, because the session is over."""
        self._pending.clear()
        self._reset()

    def expect_handover(self, now: float) -> None:
        """Expect owner nodes to change hands for some seconds from now: the group has changed.

        A time that is running is extended, up to a maximum.

        Args:
            now: Present time, in seconds of the machine's clock.
        """
        if self._changing_since is None:
            self._changing_since = now
        self._handover_ends_at = min(now + _HANDOVER_WINDOW_S, self._changing_since + _MAX_HANDOVER_WINDOW_S)

    def note_owners_changed(self, topics: Collection[str], now: float, *, contested: bool) -> None:
        """Schedule a read of the topics' owner nodes, which have changed.

        The read comes 20 ms from now, or 250 ms from now in a handover without a contested partition.

        Args:
            now: Present time, in seconds of the machine's clock.
            contested: True if another member still owns a partition of these topics that is assigned to this member.
                Its owner node may be gone now.
        """
        urgent = now >= self._handover_ends_at or contested
        self._topics.update(topics)
        self._schedule(now + (_OWNER_DEBOUNCE_S if urgent else _HANDOVER_DEBOUNCE_S))

    def note_doubtful(self, topic: str, now: float) -> None:
        """Schedule another read of a topic's owner nodes, for the end of the handover.

        An owner node of the topic may have been deleted and created again, which is normal in a handover.

        Args:
            now: Present time, in seconds of the machine's clock.
        """
        self._topics.add(topic)
        self._schedule(max(now + _HANDOVER_DEBOUNCE_S, self._handover_ends_at))

    def schedule_all(self, look: ev.Look, at: float) -> None:
        """Schedule a read of owner nodes, for all partitions held or contested.

        A contested partition is assigned to this member, but its owner node could not be created yet. If a read is
        scheduled already, both become one, at the earlier time and with the greater thoroughness.

        Args:
            look: Thoroughness of the read.
            at: Time of the read, in seconds of the machine's clock.
        """
        self._depth = max(self._depth, look)
        self._all = True
        self._schedule(at)

    def plan_next(
        self, records: Mapping[TopicPartition, PartitionRecord], now: float
    ) -> tuple[Mapping[TopicPartition, int], ev.Look]:
        """Return the partitions whose owner nodes are to be read now, and how thoroughly.

        The first value has the number of the claim for each partition: the result of the read counts only while the
        partition has this claim. The second value says if only names of nodes are read, or their content too
        (:class:`~consumerd.group.events.Look`). The schedule is empty afterwards.

        Args:
            records: All partitions of this member. Those that are held or contested are read: all of them, or those of
                topics whose owner nodes have changed.
            now: Present time, in seconds of the machine's clock.
        """
        look, topics, everywhere = self._depth, self._topics, self._all
        self._reset()
        # after a suspension every claim has to be proved before it is used again
        if any(record.unproven for record in records.values()):
            look, everywhere = ev.Look.PROOF, True
        elif now >= self._handover_ends_at:
            # no rebalance is running, so a re-created node is unexpected: read its owner
            look = max(look, ev.Look.REMADE)
            self._changing_since = None
        asked = {
            partition: record.claim
            for partition, record in records.items()
            if (record.state in HELD or record.state is PartitionState.CONTESTED)
            and (everywhere or partition.topic in topics)
        }
        return asked, look

    def begin(self, serial: int, asked: Mapping[TopicPartition, int]) -> None:
        """Note that owner nodes are being read.

        Args:
            serial: Number of the :class:`~consumerd.group.events.Inspect` effect.
            asked: The partitions that are read, with the numbers of their claims.
        """
        self._pending[serial] = asked

    def end(self, serial: int) -> Mapping[TopicPartition, int] | None:
        """Return the partitions of the read with this serial, which has ended.

        Each partition has the number that its claim had when the read began. The value is None if the session has ended
        meanwhile; then the result of the read is to be ignored.
        """
        return self._pending.pop(serial, None)

    def _schedule(self, at: float) -> None:
        self._at = at if self._at is None else min(at, self._at)

    def _reset(self) -> None:
        self._at, self._depth = None, ev.Look.NAMES
        self._topics, self._all = set(), False
