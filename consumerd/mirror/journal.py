# SPDX-License-Identifier: Apache-2.0
"""Journal of cut-overs: how far each group is on its way to the target cluster.

A cut-over is a list of steps. Each may be run again, and the journal has the last one that is complete:

| state | what is true |
|---|---|
| planned | the command has begun |
| stopped | the group has no members in the source, and its final positions are noted |
| mirrored | the mirror has passed the final positions |
| translated | the group's positions are committed in the target |
| verified | each committed position names the record that the group would have read next in the source |
| done | members may start in the target |
| returned | the group went back to the source: a later cut-over begins anew |

There is one record a group, in the compacted topic of the mirror's positions. Its key is a JSON list
``["cutover", cluster, mirror, group]``, with the id of the source cluster and the group that mirrors. Its value is
JSON.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Final, NamedTuple

from consumerd.errors import CorruptMessageError

_KIND: Final = "cutover"
_VERSION: Final = 1


class CutoverState(enum.StrEnum):
    """Last complete step of a cut-over, in their order."""

    PLANNED = "planned"
    STOPPED = "stopped"
    MIRRORED = "mirrored"
    TRANSLATED = "translated"
    VERIFIED = "verified"
    DONE = "done"
    RETURNED = "returned"


class JournalKey(NamedTuple):
    """Key of a group's record.

    ``mirror`` is the group that mirrors, ``group`` the one that is moved.
    """

    cluster: str
    mirror: str
    group: str


class MovedPosition(NamedTuple):
    """Final position of a group in one partition, and its translation.

    ``partition`` is ``3`` or, for Kafka 0.6 and 0.7, ``0-3``. ``target`` is None before it was translated.
    """

    topic: str
    partition: str
    source: int
    target_topic: str
    target_partition: int
    target: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CutoverEntry:
    """State of a group's cut-over.

    Attributes:
        written_ms: when the entry was written, in ms since the epoch.
        places: where the source keeps the group's positions: ``zookeeper``, ``kafka``, or both.
        positions: final positions, from the state ``stopped`` on.
    """

    state: CutoverState
    written_ms: int
    places: tuple[str, ...] = ()
    positions: tuple[MovedPosition, ...] = ()


def encode_journal_key(key: JournalKey) -> bytes:
    """Return the encoded key."""
    return json.dumps([_KIND, *key], ensure_ascii=False, separators=(",", ":")).encode()


def find_journal_key(data: bytes) -> JournalKey | None:
    """Return the key of a record; None for records of another kind.

    The mirror's positions are of another kind.
    """
    try:
        parts = json.loads(data)
    except (ValueError, RecursionError):
        return None
    match parts:
        case [str(kind), str(cluster), str(mirror), str(group)] if kind == _KIND:
            return JournalKey(cluster, mirror, group)
    return None


def encode_entry(entry: CutoverEntry) -> bytes:
    """Return the encoded value."""
    fields = {
        "version": _VERSION,
        "state": entry.state.value,
        "written_ms": entry.written_ms,
        "places": entry.places,
        "positions": entry.positions,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode_entry(data: bytes) -> CutoverEntry:
    """Return the entry in a value.

    Raises CorruptMessageError for any other bytes, also for a value of a later version.
    """
    try:
        fields = json.loads(data)
        version = fields["version"]
        if version == _VERSION:
            return CutoverEntry(
                state=CutoverState(fields["state"]),
                written_ms=_read_number(fields["written_ms"]),
                places=tuple(map(_read_text, fields["places"])),
                positions=tuple(map(_read_position, fields["positions"])),
            )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptMessageError(f"no journal of a cut-over: {data[:200]!r}") from error
    raise CorruptMessageError(f"a cut-over's journal has version {version!r}; only {_VERSION} is known")


def _read_position(found: object) -> MovedPosition:
    match found:
        case [str(topic), str(partition), source, str(target_topic), target_partition, target]:
            return MovedPosition(
                topic,
                partition,
                _read_number(source),
                target_topic,
                _read_number(target_partition),
                None if target is None else _read_number(target),
            )
    raise ValueError("expected topic, partition, position, and the same in the target")


def _read_number(found: object) -> int:
    if type(found) is not int or found < 0:
        raise ValueError(f"expected a number from 0 on, got {found!r:.40}")
    return found


def _read_text(found: object) -> str:
    if type(found) is not str:
        raise ValueError(f"expected a text, got {found!r:.40}")
    return found
