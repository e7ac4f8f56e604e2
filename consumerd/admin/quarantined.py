# SPDX-License-Identifier: Apache-2.0
"""Messages and record batches in a quarantine folder, and their readable records, for commands.

Changes nothing, and needs nothing but the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from consumerd.client.stored_unit import UnitReading, read_unit
from consumerd.errors import ConfigError, NotFound
from consumerd.landing.chain import ROOT_RECORD
from consumerd.landing.record_fields import MalformedRecord
from consumerd.model import Incarnation, PartitionKey, TopicPartition
from consumerd.sinks.quarantine_record import KeptUnit, parse_topic_folder, parse_unit, parse_unit_name
from consumerd.telemetry.wording import format_time

_PLACE: Final = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[^/]+)@(?P<offset>[0-9]+)")
_DEPTHS: Final = ("*", "*/*", "*/*/*", "*/*/*/*")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRow:
    """One quarantined message or record batch, as ``consumerd quarantine`` lists it.

    Attributes:
        incarnation: Identity of the topic since its creation.
        offset: Its first offset.
        next_offset: Offset after it.
        index: Number of the entry among those with the same offset, from 0; 0 if it is the only one.
        cause: Kind of its fault, one word.
        size: Its full size in bytes; None if unknown.
        kept: Number of its bytes that are in the file.
        when: Time at which it was quarantined.
        reason: Explanation of the fault.
        file: Path below the quarantine folder.
    """

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
    """File with one quarantined message or record batch.

    Attributes:
        kept: Content of the file; None if it cannot be read.
        problem: Reason why the file cannot be read; None if it can.
    """

    path: Path
    kept: KeptUnit | None
    problem: str | None = None


def find_units(path: Path, *, topic: str | None = None, cause: str | None = None) -> list[FoundUnit]:
    """Return the quarantined messages and record batches below a folder, in order, unreadable files too.

    Args:
        topic: Topic to list; None for all.
        cause: Kind of fault to list; None for all.

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
    """Return the quarantined messages and record batches in a file, or at an offset.

    Several may hold the same offset if the topic was deleted and created again.

    Args:
        path: Quarantine folder; None if it is not given, so ``target`` must be a file.
        target: A file, or ``TOPIC/PARTITION@OFFSET``.

    Raises ConfigError if nothing is found, or the target has another form.
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
    """Return the output row of a quarantined message or record batch.

    Its file must be readable.

    Args:
        path: Quarantine folder, to which the row's file name is relative.
    """
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
    """Return the records of a quarantined message or record batch.

    If only the checksum is wrong, they are read nevertheless, with a note: their bytes may differ from those that were
    produced.
    """
    unit = kept.unit
    if unit.record is not None:
        return UnitReading(records=(unit.record,), note=None)
    return read_unit(unit.raw, unit.partition)


def dump_bytes(data: bytes, limit: int) -> Iterator[str]:
    """Yield a hex dump, in lines of sixteen bytes: offset, hexadecimal digits, text.

    Args:
        limit: Number of bytes to dump; a last line tells how many more there are.
    """
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
    """Return a file that shows that a folder is no quarantine, or None.

    Such a folder contains no unit, but other files. An emptied quarantine contains only the record of its owner.
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


def problems_of(found: Sequence[FoundUnit]) -> list[str]:
    """Return an error message for each quarantine file that cannot be read."""
    return [f"{one.path}: {one.problem}" for one in found if one.problem is not None]
