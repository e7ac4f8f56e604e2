# SPDX-License-Identifier: Apache-2.0
"""What is in a quarantine, for people who look at it: units found, and their bytes read as far as they can be.

Read only; needs nothing but the folder.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from consumerd.errors import ConfigError, CorruptMessageError, NotFound
from consumerd.landing.chain import ROOT_RECORD
from consumerd.landing.record_fields import MalformedRecord
from consumerd.model import Incarnation, PartitionKey, TopicPartition
from consumerd.sinks.quarantine_record import KeptUnit, parse_topic_folder, parse_unit, parse_unit_name
from consumerd.telemetry.wording import format_time
from consumerd.wire.checksum import crc32, crc32c
from consumerd.wire.modern.entry import ENTRY_BYTES, MAGIC_AT
from consumerd.wire.modern.record_batch import CHECKED_FROM
from consumerd.wire.modern.record_set import decode_record_set, first_unit_size
from consumerd.wire.records import Record

_RECORD_BATCH_MAGIC: Final = 2
_BATCH_CHECKSUM_AT: Final = 17
_PLACE: Final = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[^/]+)@(?P<offset>[0-9]+)")
_CHECKSUM: Final = struct.Struct(">I")
_DEPTHS: Final = ("*", "*/*", "*/*/*", "*/*/*/*")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRow:
    """One quarantined unit; ``size`` is its own where known, ``kept`` how many bytes of it there are."""

    topic: str
    partition: str
    incarnation: str
    offset: int
    next_offset: int
    index: int
    cause: str
    size: int | None
    kept: int
    when: str
    reason: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundUnit:
    """A file that holds a unit, or that should and cannot be read (``problem``)."""

    path: Path
    kept: KeptUnit | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitReading:
    """The records of a unit as far as they can be read; ``note`` says what stands in the way."""

    records: tuple[Record, ...]
    note: str | None


def find_units(path: Path, *, topic: str | None = None, cause: str | None = None) -> list[FoundUnit]:
    """Return what is kept below a quarantine's path, in order, those that cannot be read included.

    Raises NotFound for a folder that cannot be read, or that is no quarantine.
    """
    try:
        if (stranger := _find_stranger(path)) is not None:
            raise NotFound(f"{path} is no quarantine, it holds {stranger}: give the folder that quarantine.path names")
        found = [_read(file) for file in _files(path, topic)]
    except OSError as error:
        raise NotFound(f"{path}: cannot be read: {error.strerror or error}") from error
    wanted = [one for one in found if one.kept is None or cause is None or one.kept.unit.cause == cause]
    return sorted(wanted, key=_order)


def find_unit(path: Path | None, target: str) -> list[FoundUnit]:
    """Return the unit in a file, or all that ``TOPIC/PARTITION@OFFSET`` lies in (of several incarnations, perhaps).

    Raises ConfigError where there is none, or the target is neither.
    """
    for file in (Path(target), *([path / target] if path is not None else [])):
        if file.is_file():
            return [_read(file)]
    partition, offset = _parse_place(target)
    if path is None:
        raise ConfigError(f"{target}: there is no such file; give --path or --config to look a place up")
    found = [
        one
        for one in find_units(path, topic=partition.topic)
        if one.kept is not None
        and one.kept.unit.partition == partition
        and one.kept.unit.offset <= offset < max(one.kept.unit.next_offset, one.kept.unit.offset + 1)
    ]
    if not found:
        raise ConfigError(f"nothing of {partition} is quarantined at offset {offset} below {path}")
    return found


def describe_unit(path: Path, found: FoundUnit) -> UnitRow:
    """Return a unit as a row. It must be one that can be read."""
    kept = found.kept
    assert kept is not None
    unit = kept.unit
    return UnitRow(
        topic=unit.partition.topic,
        partition=str(unit.partition.partition),
        incarnation=str(unit.incarnation),
        offset=unit.offset,
        next_offset=unit.next_offset,
        index=unit.index,
        cause=unit.cause,
        size=unit.size,
        kept=kept.payload_bytes,
        when=format_time(kept.when_ms),
        reason=unit.reason,
        file=str(found.path.relative_to(path) if found.path.is_relative_to(path) else found.path),
    )


def read_records(kept: KeptUnit) -> UnitReading:
    """Read a unit's records. Where only the checksum stands in the way, they are read in spite of it, and the note says
    so: whoever looks at them must not take them for what was written.
    """
    unit = kept.unit
    if unit.record is not None:
        return UnitReading(records=(unit.record,), note=None)
    size = first_unit_size(unit.raw)
    if size is not None and size > len(unit.raw):
        return UnitReading(records=(), note=f"cut off: {len(unit.raw)} of {size} bytes are here")
    try:
        return UnitReading(records=_decode(unit.raw, unit.partition), note=None)
    except CorruptMessageError as error:
        problem = str(error)
    try:
        records = _decode(_mend_checksum(unit.raw), unit.partition)
    except CorruptMessageError as error:
        return UnitReading(records=(), note=str(error))
    return UnitReading(records=records, note=f"{problem}. Read in spite of the checksum, not to be trusted")


def dump_bytes(data: bytes, limit: int) -> Iterator[str]:
    """Yield lines of sixteen bytes each: offset, hexadecimal, text."""
    for at in range(0, min(len(data), limit), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{at:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  |{text}|"
    if len(data) > limit:
        yield f"... {len(data) - limit} bytes more"


def _files(path: Path, topic: str | None) -> Iterator[Path]:
    for folder in sorted(path.iterdir()):
        name = parse_topic_folder(folder.name)
        if name is not None and folder.is_dir() and topic in (None, name):
            yield from (file for file in sorted(folder.glob("*/*/*.jsonl")) if parse_unit_name(file.name) is not None)


def _find_stranger(path: Path) -> Path | None:
    """Return what shows that a folder is no quarantine: files of which none is a unit's.

    One whose units have all been taken away holds no file but the record of whose it is.
    """
    if next(_files(path, None), None) is not None:
        return None
    files = (file for depth in _DEPTHS for file in path.glob(depth) if file.is_file())
    stranger = next((file for file in files if file.name[0] != "." and file.name != ROOT_RECORD), None)
    return None if stranger is None else stranger.relative_to(path)


def _read(file: Path) -> FoundUnit:
    try:
        return FoundUnit(path=file, kept=parse_unit(file.read_bytes()))
    except OSError as error:
        return FoundUnit(path=file, kept=None, problem=f"cannot be read: {error.strerror or error}")
    except MalformedRecord as error:
        return FoundUnit(path=file, kept=None, problem=str(error))


def _order(found: FoundUnit) -> tuple[bool, tuple[TopicPartition, Incarnation, int, int] | None, str]:
    if found.kept is None:
        return True, None, str(found.path)
    unit = found.kept.unit
    place = (unit.partition, unit.incarnation, unit.offset, unit.index)
    return False, place, str(found.path)


def _parse_place(target: str) -> tuple[TopicPartition, int]:
    match = _PLACE.fullmatch(target)
    try:
        if match is not None:
            return TopicPartition(match["topic"], PartitionKey.parse(match["partition"])), int(match["offset"])
    except ValueError:
        pass
    raise ConfigError(f"{target}: neither a file nor TOPIC/PARTITION@OFFSET")


def _decode(raw: bytes, partition: TopicPartition) -> tuple[Record, ...]:
    return tuple(decode_record_set(raw, partition=partition, start=0).records())


def _mend_checksum(raw: bytes) -> bytes:
    """Return the unit with the checksum that its bytes have. Raises CorruptMessageError where it is too short for one."""
    if len(raw) <= MAGIC_AT:
        raise CorruptMessageError(f"{len(raw)} bytes are no unit")
    if raw[MAGIC_AT] == _RECORD_BATCH_MAGIC:
        return _replace(raw, _BATCH_CHECKSUM_AT, crc32c(raw[CHECKED_FROM:]))
    return _replace(raw, ENTRY_BYTES, crc32(raw[MAGIC_AT:]))


def _replace(raw: bytes, at: int, checksum: int) -> bytes:
    return raw[:at] + _CHECKSUM.pack(checksum) + raw[at + _CHECKSUM.size :]


def problems_of(found: Sequence[FoundUnit]) -> list[str]:
    """Return what to say about the files that cannot be read."""
    return [f"{one.path}: {one.problem}" for one in found if one.problem is not None]
