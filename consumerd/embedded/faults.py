# SPDX-License-Identifier: Apache-2.0
"""Fault injection: errors and network faults that a broker can be told to produce.

A fault is armed for the next ``times`` requests of an API, and then over. :meth:`ArmedFault.remove` disarms one,
:meth:`BrokerFaults.clear` all; :attr:`ArmedFault.hits` counts the requests affected.

::

    broker.faults.error(ApiKey.PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2)
    broker.faults.close_at(ApiKey.FETCH, 100)          # after 100 bytes of the next response
    full = broker.faults.fill_disk()
    ...
    full.remove()

:meth:`BrokerFaults.error` affects requests that arrive from then on. Network faults affect responses, those of waiting
long polls included, and act on the response's frame, with its size prefix and independent of its content; several act
in the order in which they were armed. A Produce request with ``acks`` 0 has no response: an error closes its
connection, other faults do not affect it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from consumerd.embedded.full_disk import FillableFiles
from consumerd.embedded.reply import FramedReply, Piece, cut_pieces, read_piece
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode

T = TypeVar("T")

_INT32: Final = struct.Struct(">i")
_SIZE_AT: Final = 0
_CORRELATION_AT: Final = 4

_WRONG_CORRELATION_BY: Final = 1_000_003
"""Difference of a wrong correlation id, larger than the number of a client's pending requests."""


@dataclass(slots=True, eq=False)
class ArmedFault:
    """An armed fault; ``left`` None means until removed."""

    _remove: Callable[[ArmedFault], None]
    left: int | None = None
    hits: int = field(default=0, init=False)
    """Number of requests affected so far."""

    def hit(self) -> None:
        """Count a request; the last one disarms the fault."""
        self.hits += 1
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.remove()

    def remove(self) -> None:
        """Disarm the fault. Idempotent."""
        self._remove(self)


@dataclass(slots=True, frozen=True)
class _OnAnswer:
    """A fault of a response: a delay, or a changed frame."""

    delay_s: float = 0.0
    change: Callable[[FramedReply], FramedReply] | None = None


class BrokerFaults:
    """The faults of one broker. For use on the broker's event loop."""

    def __init__(self) -> None:
        self.files = FillableFiles()
        """The file system of the broker's logs."""
        self._on_answer: dict[ApiKey, dict[ArmedFault, _OnAnswer]] = {}
        self._errors: dict[ApiKey, dict[ArmedFault, ErrorCode]] = {}
        self._leaders: dict[ArmedFault, tuple[TopicPartition, BrokerId]] = {}
        self._full: dict[ArmedFault, None] = {}
        self._subscribers: list[Callable[[TopicPartition], None]] = []

    # -- answers

    def delay(self, api: ApiKey, seconds: float, *, times: int = 1) -> ArmedFault:
        """Delay the response by ``seconds``; later requests of the connection wait too."""
        return self._arm(api, times, _OnAnswer(delay_s=seconds))

    def close_at(self, api: ApiKey, byte: int, *, times: int = 1) -> ArmedFault:
        """Send the first ``byte`` bytes of the response's frame, and close the connection."""

        def cut(reply: FramedReply) -> FramedReply:
            return replace(reply, pieces=cut_pieces(reply.pieces, byte), then_close=True)

        return self._arm(api, times, _OnAnswer(change=cut))

    def wrong_correlation_id(self, api: ApiKey, *, times: int = 1) -> ArmedFault:
        """Respond with the correlation id of another request."""

        def renumber(reply: FramedReply) -> FramedReply:
            head = read_piece(reply.pieces[0])
            if len(head) < _CORRELATION_AT + _INT32.size:  # cut off by another fault
                return reply
            (right,) = _INT32.unpack_from(head, _CORRELATION_AT)
            return _overwrite(reply, _CORRELATION_AT, (right + _WRONG_CORRELATION_BY) & 0x7FFF_FFFF)

        return self._arm(api, times, _OnAnswer(change=renumber))

    def corrupt(self, api: ApiKey, byte: int = -1, *, times: int = 1) -> ArmedFault:
        """Invert one byte of the response's frame; -1 is the last one.

        In a Fetch response, the last byte belongs to a record, if there is one. A number beyond the frame is taken
        modulo its size.
        """

        def invert(reply: FramedReply) -> FramedReply:
            frame = bytearray(b"".join(map(read_piece, reply.pieces)))
            frame[byte % len(frame)] ^= 0xFF
            return replace(reply, pieces=[bytes(frame)])

        return self._arm(api, times, _OnAnswer(change=invert))

    def oversize(self, api: ApiKey, size: int = 0x7FFF_FFFF, *, times: int = 1) -> ArmedFault:
        """Replace the frame's size prefix by ``size``, a 32-bit number."""
        return self._arm(api, times, _OnAnswer(change=lambda reply: _overwrite(reply, _SIZE_AT, size)))

    # -- requests

    def error(self, api: ApiKey, code: ErrorCode, *, times: int = 1) -> ArmedFault:
        """Do nothing, and respond with ``code`` for all parts of the request."""
        armed = self._errors.setdefault(api, {})
        fault = ArmedFault(_disarm(armed), times)
        armed[fault] = code
        return fault

    # -- the cluster and the disk

    def pretend_leader(self, partition: TopicPartition, leader: BrokerId) -> ArmedFault:
        """Name another leader in Metadata, and refuse the partition's requests, until removed.

        They get NOT_LEADER_OR_FOLLOWER. Metadata does not list the other broker, so clients cannot find it.
        """

        def restore(fault: ArmedFault) -> None:
            if self._leaders.pop(fault, None) is not None:
                self._tell(partition)

        fault = ArmedFault(restore)
        self._leaders[fault] = (partition, leader)
        self._tell(partition)
        return fault

    def fill_disk(self) -> ArmedFault:
        """Make every log write fail as on a full disk, until removed."""

        def free(fault: ArmedFault) -> None:
            self._full.pop(fault, None)
            self.files.full = bool(self._full)

        fault = ArmedFault(free)
        self._full[fault] = None
        self.files.full = True
        return fault

    def clear(self) -> None:
        """Disarm all faults."""
        armed: list[ArmedFault] = [*self._leaders, *self._full]
        armed += [fault for faults in self._on_answer.values() for fault in faults]
        armed += [fault for faults in self._errors.values() for fault in faults]
        for fault in armed:
            fault.remove()

    # -- what the broker asks

    def find_leader(self, partition: TopicPartition) -> BrokerId | None:
        """Return the pretended leader of a partition, or None."""
        if not self._leaders:
            return None
        return next((leader for one, leader in reversed(self._leaders.values()) if one == partition), None)

    def subscribe(self, changed: Callable[[TopicPartition], None]) -> None:
        """Call ``changed`` when a partition's pretended leader is set or removed."""
        self._subscribers.append(changed)

    def take_error(self, api: ApiKey) -> ErrorCode | None:
        """Return the injected error of a new request, if any, and count it."""
        for fault, code in self._errors.get(api, {}).items():
            fault.hit()
            return code
        return None

    async def act(self, api: ApiKey, reply: FramedReply) -> FramedReply:
        """Return what to send instead of ``reply``, after injected delays."""
        armed = self._on_answer.get(api)
        if not armed:
            return reply
        for fault, what in list(armed.items()):
            fault.hit()
            if what.delay_s:
                await asyncio.sleep(what.delay_s)
            if what.change is not None and reply.pieces:
                reply = what.change(reply)
        return reply

    def _arm(self, api: ApiKey, times: int, what: _OnAnswer) -> ArmedFault:
        armed = self._on_answer.setdefault(api, {})
        fault = ArmedFault(_disarm(armed), times)
        armed[fault] = what
        return fault

    def _tell(self, partition: TopicPartition) -> None:
        for changed in self._subscribers:
            changed(partition)


def _disarm(armed: dict[ArmedFault, T]) -> Callable[[ArmedFault], None]:
    """Return a function that removes a fault from the armed ones."""

    def remove(fault: ArmedFault) -> None:
        armed.pop(fault, None)

    return remove


def _overwrite(reply: FramedReply, at: int, number: int) -> FramedReply:
    """Overwrite the number at ``at``, as far as the first piece reaches."""
    first = bytearray(read_piece(reply.pieces[0]))
    end = min(at + _INT32.size, len(first))
    first[at:end] = _INT32.pack(number)[: end - at]
    pieces: list[Piece] = [bytes(first), *reply.pieces[1:]]
    return replace(reply, pieces=pieces)
