# SPDX-License-Identifier: Apache-2.0
"""Fault injection: errors and network faults that a broker can be told to produce.

A fault is armed for the next ``times`` requests of an API; then it ends. :meth:`ArmedFault.remove` disarms one,
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
import errno
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from consumerd.embedded.log.files import OsLogFiles
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


class FillableFiles(OsLogFiles):
    """The real file system, on which a test can let the disk be full.

    While ``full`` is True, writes fail.
    """

    def __init__(self) -> None:
        self.full = False

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a file for reading and writing. Raises FileNotFoundError, or OSError for a full disk.

        With ``create``, a missing file is created.
        """
        if create and not path.exists():
            self._check_space()
        return super().open(path, create=create)

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write ``data`` at ``position``. Raises OSError while the disk counts as full."""
        self._check_space()
        super().write(descriptor, position, data)

    def make_folder(self, path: Path) -> None:
        """Create a folder and its missing parents. Raises OSError while the disk counts as full."""
        if not path.is_dir():
            self._check_space()
        super().make_folder(path)

    def _check_space(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass(slots=True, eq=False)
class ArmedFault:
    """A fault that a test has injected into a broker.

    ``left`` is the number of requests that the fault will still affect; None if it lasts until :meth:`remove`.
    """

    _remove: Callable[[ArmedFault], None]
    left: int | None = None
    hits: int = field(default=0, init=False)
    """Number of requests affected so far."""

    def hit(self) -> None:
        """Count a request that the fault affects; when none is left, the fault ends."""
        self.hits += 1
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.remove()

    def remove(self) -> None:
        """End the fault: later requests are not affected. Idempotent."""
        self._remove(self)


@dataclass(slots=True, frozen=True)
class _OnResponse:
    """A fault of a response: a delay, or a changed frame."""

    delay_s: float = 0.0
    change: Callable[[FramedReply], FramedReply] | None = None


class BrokerFaults:
    """The faults of one broker. For use on the broker's event loop.

    Args:
        files: The file system of the broker's logs, if it shares them with other brokers.
    """

    def __init__(self, files: FillableFiles | None = None) -> None:
        self.files = FillableFiles() if files is None else files
        """The file system of the broker's logs."""
        self._on_response: dict[ApiKey, dict[ArmedFault, _OnResponse]] = {}
        self._errors: dict[ApiKey, dict[ArmedFault, ErrorCode]] = {}
        self._leaders: dict[ArmedFault, tuple[TopicPartition, BrokerId]] = {}
        self._full: dict[ArmedFault, None] = {}
        self._subscribers: list[Callable[[TopicPartition], None]] = []

    # -- responses

    def delay(self, api: ApiKey, seconds: float, *, times: int = 1) -> ArmedFault:
        """Delay the responses to the next ``times`` requests of an API by ``seconds``.

        Later requests of the connection wait, too.
        """
        return _arm(self._on_response, api, times, _OnResponse(delay_s=seconds))

    def close_at(self, api: ApiKey, byte: int, *, times: int = 1) -> ArmedFault:
        """Cut the next ``times`` responses of an API after ``byte`` bytes, and close the connection.

        The size at the start of the response counts as 4 bytes.
        """

        def cut(reply: FramedReply) -> FramedReply:
            return replace(reply, pieces=cut_pieces(reply.pieces, byte), then_close=True)

        return _arm(self._on_response, api, times, _OnResponse(change=cut))

    def drop(self, api: ApiKey, *, times: int = 1) -> ArmedFault:
        """Do not send the next ``times`` responses of an API; the connection stays open."""

        def leave_out(reply: FramedReply) -> FramedReply:
            return replace(reply, pieces=[])

        return _arm(self._on_response, api, times, _OnResponse(change=leave_out))

    def wrong_correlation_id(self, api: ApiKey, *, times: int = 1) -> ArmedFault:
        """Give the next ``times`` responses of an API a correlation id that no request has."""

        def renumber(reply: FramedReply) -> FramedReply:
            head = read_piece(reply.pieces[0])
            if len(head) < _CORRELATION_AT + _INT32.size:  # cut off by another fault
                return reply
            (right,) = _INT32.unpack_from(head, _CORRELATION_AT)
            return _overwrite(reply, _CORRELATION_AT, (right + _WRONG_CORRELATION_BY) & 0x7FFF_FFFF)

        return _arm(self._on_response, api, times, _OnResponse(change=renumber))

    def corrupt(self, api: ApiKey, byte: int = -1, *, times: int = 1) -> ArmedFault:
        """Invert one byte of a response; -1 is the last one.

        In a Fetch response, the last byte belongs to a record, if there is one. A number beyond the response is taken
        modulo its size.
        """

        def invert(reply: FramedReply) -> FramedReply:
            frame = bytearray(b"".join(map(read_piece, reply.pieces)))
            frame[byte % len(frame)] ^= 0xFF
            return replace(reply, pieces=[bytes(frame)])

        return _arm(self._on_response, api, times, _OnResponse(change=invert))

    def oversize(self, api: ApiKey, size: int = 0x7FFF_FFFF, *, times: int = 1) -> ArmedFault:
        """Replace the size at the start of a response by ``size``, a 32-bit number."""
        return _arm(self._on_response, api, times, _OnResponse(change=lambda reply: _overwrite(reply, _SIZE_AT, size)))

    # -- requests

    def error(self, api: ApiKey, code: ErrorCode, *, times: int = 1) -> ArmedFault:
        """Refuse the next ``times`` requests of an API: respond with ``code`` alone.

        All parts of the response have the code; the requests are not executed.
        """
        return _arm(self._errors, api, times, code)

    # -- the cluster and the disk

    def pretend_leader(self, partition: TopicPartition, leader: BrokerId) -> ArmedFault:
        """Name another leader of a partition in Metadata, and refuse the partition's requests.

        They get NOT_LEADER_OR_FOLLOWER, until the fault is removed. Metadata does not list the other broker, so clients
        cannot find it.
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
        """End all faults."""
        armed: list[ArmedFault] = [*self._leaders, *self._full]
        armed += [fault for faults in self._on_response.values() for fault in faults]
        armed += [fault for faults in self._errors.values() for fault in faults]
        for fault in armed:
            fault.remove()

    # -- used by the broker

    def find_leader(self, partition: TopicPartition) -> BrokerId | None:
        """Return the leader that :meth:`pretend_leader` has set for a partition, or None."""
        if not self._leaders:
            return None
        return next((leader for one, leader in reversed(self._leaders.values()) if one == partition), None)

    def subscribe(self, changed: Callable[[TopicPartition], None]) -> None:
        """Call ``changed`` when a partition's pretended leader is set or removed.

        :meth:`pretend_leader` makes the broker name another leader to clients.
        """
        self._subscribers.append(changed)

    def take_error(self, api: ApiKey) -> ErrorCode | None:
        """Return the error code that a new request must be refused with; None without one.

        The request is counted as affected by the fault.
        """
        for fault, code in self._errors.get(api, {}).items():
            fault.hit()
            return code
        return None

    async def act(self, api: ApiKey, reply: FramedReply) -> FramedReply:
        """Apply the armed faults to ``reply``: wait for the delays, and return the changed response.

        Without faults for the API, ``reply`` is returned unchanged.
        """
        armed = self._on_response.get(api)
        if not armed:
            return reply
        for fault, what in list(armed.items()):
            fault.hit()
            if what.delay_s:
                await asyncio.sleep(what.delay_s)
            if what.change is not None and reply.pieces:
                reply = what.change(reply)
        return reply

    def _tell(self, partition: TopicPartition) -> None:
        for changed in self._subscribers:
            changed(partition)


def _arm(by_api: dict[ApiKey, dict[ArmedFault, T]], api: ApiKey, times: int, what: T) -> ArmedFault:
    armed = by_api.setdefault(api, {})

    def remove(fault: ArmedFault) -> None:
        armed.pop(fault, None)

    fault = ArmedFault(remove, times)
    armed[fault] = what
    return fault


def _overwrite(reply: FramedReply, at: int, number: int) -> FramedReply:
    """Overwrite the number at ``at``; bytes after the first piece stay as they are."""
    first = bytearray(read_piece(reply.pieces[0]))
    end = min(at + _INT32.size, len(first))
    first[at:end] = _INT32.pack(number)[: end - at]
    pieces: list[Piece] = [bytes(first), *reply.pieces[1:]]
    return replace(reply, pieces=pieces)
