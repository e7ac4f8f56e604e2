# SPDX-License-Identifier: Apache-2.0
"""Names and contents of the files in quarantine, one for each undeliverable unit. Pure.

A unit is a record, message, compressed wrapper or batch. Its file is ``<topic>/<partition>/<incarnation>/<first
offset>-<index>.jsonl`` below the quarantine's path. It is one JSON object on one line, with everything known of the
unit, and its bytes in base64. If another unit has the name already, the file is ``<first offset>-<index>.<n>.jsonl``,
so no unit is dropped. Example: the second unit at offset 41, with other bytes, is ``00000000000000000041-0.1.jsonl``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from consumerd.landing.record_fields import (
    FORMAT_VERSION,
    MalformedRecord,
    decode_fields,
    encode_fields,
    encode_incarnation,
    encode_partition,
    find_number,
    get_incarnation,
    get_number,
    get_partition,
    get_text,
)
from consumerd.model import TimestampType, TopicPartition
from consumerd.sinks.base import QuarantinedUnit
from consumerd.wire.record_fields import Headers
from consumerd.wire.records import Record

_PIECE_BYTES: Final = 3 << 18  # a multiple of three, so that pieces of base64 join without padding
_RAW_MARK: Final = b',"raw_base64":'
_KEY_MARK: Final = b',"key_base64":'
_VALUE_MARK: Final = b',"value_base64":'
_UNIT_NAME: Final = re.compile(r"(?P<offset>[0-9]{20})-(?P<index>[0-9]+)(\.(?P<copy>[1-9][0-9]*))?\.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptUnit:
    """A record, message or batch in quarantine, with its cluster, group, and time.

    ``cluster`` is the cluster's id. ``when_ms`` is the time of storing, in ms since the epoch.
    """

    unit: QuarantinedUnit
    cluster: str
    group: str
    when_ms: int

    @property
    def payload_bytes(self) -> int:
        """Number of the record's or batch's own bytes that the file has."""
        record = self.unit.record
        if record is None:
            return len(self.unit.raw)
        values = [record.key, record.value, *(part for key, value in record.headers for part in (key.encode(), value))]
        return sum(len(value) for value in values if value is not None)

    @property
    def complete(self) -> bool | None:
        """True if all bytes of the unit are stored; None if its size is unknown.

        A unit is a record, message, compressed wrapper or batch.
        """
        if self.unit.record is not None:
            return True
        return None if self.unit.size is None else self.payload_bytes >= self.unit.size


# -- names


def unit_folders(unit: QuarantinedUnit) -> tuple[str, str, str]:
    """Return the folders for a quarantined record or batch: topic, partition, incarnation.

    All are percent-encoded. A leading dot or underscore is encoded, too, because such names are reserved for other
    files.
    """
    topic = quote(unit.partition.topic, safe="")
    if topic[:1] in "._":
        topic = f"%{ord(topic[0]):02X}{topic[1:]}"
    incarnation = str(unit.incarnation)
    if incarnation[:1] == "_":  # a topic id may begin with it
        incarnation = f"%5F{incarnation[1:]}"
    return topic, quote(str(unit.partition.partition), safe=""), incarnation


def parse_topic_folder(name: str) -> str | None:
    """Return the topic of a folder in the quarantine; None for other folders."""
    return None if not name or name[0] in "._" else unquote(name)


def unit_name(offset: int, index: int, copy: int = 0) -> str:
    """Return the file name of a quarantined record, message or batch.

    Args:
        offset: First offset in it.
        index: Number of a record among those with its offset, from 0.
        copy: Number of other quarantined units that have this offset and index already.
    """
    return f"{offset:020d}-{index}{f'.{copy}' if copy else ''}.jsonl"


def parse_unit_name(name: str) -> tuple[int, int] | None:
    """Return the offset and index in a quarantined unit's file name, None for other names.

    The index numbers the records with one offset, from 0.
    """
    match = _UNIT_NAME.fullmatch(name)
    return (int(match["offset"]), int(match["index"])) if match else None


# -- content


def encode_unit(kept: KeptUnit) -> Iterator[bytes]:
    """Yield the content of a quarantined unit's file, in parts.

    A unit is a record, message, compressed wrapper or batch.
    """
    unit, record = kept.unit, kept.unit.record
    fields: dict[str, object] = {
        "format": FORMAT_VERSION,
        "cluster": kept.cluster,
        "group": kept.group,
        "topic": unit.partition.topic,
        **encode_partition(unit.partition.partition),
        **encode_incarnation(unit.incarnation),
        **_identify(unit),
        "cause": unit.cause,
        "reason": unit.reason,
        "when": kept.when_ms,
        "size": unit.size if record is None else kept.payload_bytes,
        "complete": kept.complete,
    }
    yield encode_fields(fields)[:-1]
    if record is None:
        yield from _encode_long(_RAW_MARK, unit.raw)
    else:
        yield from _encode_record(record)
    yield b"}\n"


def _identify(unit: QuarantinedUnit) -> dict[str, object]:
    """Return the fields that identify a unit, besides its log and its bytes."""
    fields: dict[str, object] = {
        "offset": unit.offset,
        "next_offset": unit.next_offset,
        "index": unit.index,
    }
    if (record := unit.record) is not None:
        fields["timestamp"] = record.timestamp
        fields["timestamp_type"] = int(record.timestamp_type)
        fields["headers"] = [{"key": key, "value_base64": _encode_short(value)} for key, value in record.headers]
    return fields


def parse_unit(data: bytes) -> KeptUnit:
    """Parse the content of a file in the quarantine. Raises MalformedRecord."""
    fields = decode_fields(data)
    is_record = "raw_base64" not in fields
    unit = QuarantinedUnit(
        partition=TopicPartition(get_text(fields, "topic"), get_partition(fields)),
        incarnation=get_incarnation(fields),
        offset=get_number(fields, "offset"),
        next_offset=get_number(fields, "next_offset"),
        index=get_number(fields, "index"),
        cause=get_text(fields, "cause"),
        reason=get_text(fields, "reason"),
        raw=b"" if is_record else _get_bytes(fields, "raw_base64"),
        size=find_number(fields, "size"),
        record=_parse_record(fields) if is_record else None,
    )
    return KeptUnit(
        unit=unit,
        cluster=get_text(fields, "cluster"),
        group=get_text(fields, "group"),
        when_ms=get_number(fields, "when"),
    )


def holds_unit(data: bytes, unit: QuarantinedUnit) -> bool:
    """Return True if a file of the quarantine has this unit with all its bytes.

    ``data`` is the file's content. Its time and reason may differ. Bytes are compared in their encoded form, part by
    part, because a unit may be large. Raises MalformedRecord.
    """
    # quotation marks within strings are escaped, so this mark cannot be part of another field
    payload_at = max(data.find(mark) for mark in (_RAW_MARK, _KEY_MARK))
    if payload_at < 0:
        raise MalformedRecord("no bytes of a unit")
    found = decode_fields(data[:payload_at] + b"}")
    partition = TopicPartition(get_text(found, "topic"), get_partition(found))
    if (partition, get_incarnation(found)) != (unit.partition, unit.incarnation):
        return False
    if any(found.get(name) != value for name, value in _identify(unit).items()):
        return False
    payload = memoryview(data)[payload_at:]
    if unit.record is not None:
        return _begins_with(payload, _encode_record(unit.record))
    return data.startswith(_RAW_MARK, payload_at) and _holds_bytes(payload[len(_RAW_MARK) + 1 :], unit.raw)


def _holds_bytes(encoded: memoryview, value: bytes) -> bool:
    """Return True if base64 text begins with these bytes. Raises MalformedRecord."""
    whole = len(value) - len(value) % 3
    if not _begins_with(encoded, _encode_pieces(memoryview(value)[:whole])):
        return False
    if whole == len(value):
        return True
    try:
        return base64.b64decode(bytes(encoded[whole // 3 * 4 :][:4])).startswith(value[whole:])
    except ValueError as error:
        raise MalformedRecord(f"raw_base64 ends badly: {error}") from error


def _begins_with(data: memoryview, pieces: Iterable[bytes]) -> bool:
    at = 0
    for piece in pieces:
        if data[at : at + len(piece)] != piece:
            return False
        at += len(piece)
    return True


def _encode_short(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _encode_record(record: Record) -> Iterator[bytes]:
    yield from _encode_long(_KEY_MARK, record.key)
    yield from _encode_long(_VALUE_MARK, record.value)


def _encode_long(mark: bytes, value: bytes | None) -> Iterator[bytes]:
    yield mark
    if value is None:
        yield b"null"
        return
    yield b'"'
    yield from _encode_pieces(value)
    yield b'"'


def _encode_pieces(value: bytes | memoryview) -> Iterator[bytes]:
    with memoryview(value) as view:
        for start in range(0, len(view), _PIECE_BYTES):
            yield base64.b64encode(view[start : start + _PIECE_BYTES])


def _parse_record(fields: Mapping[str, object]) -> Record:
    try:
        timestamp_type = TimestampType(get_number(fields, "timestamp_type"))
    except ValueError as error:
        raise MalformedRecord(str(error)) from error
    return Record(
        offset=get_number(fields, "offset"),
        timestamp=get_number(fields, "timestamp"),
        timestamp_type=timestamp_type,
        key=_find_bytes(fields, "key_base64"),
        value=_find_bytes(fields, "value_base64"),
        headers=_parse_headers(fields.get("headers")),
        index=get_number(fields, "index"),
    )


def _parse_headers(entries: object) -> Headers:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise MalformedRecord("headers: expected a list of objects")
    return tuple((get_text(entry, "key"), _find_bytes(entry, "value_base64")) for entry in entries)


def _find_bytes(fields: Mapping[str, object], name: str) -> bytes | None:
    return None if fields.get(name) is None else _get_bytes(fields, name)


def _get_bytes(fields: Mapping[str, object], name: str) -> bytes:
    try:
        return base64.b64decode(get_text(fields, name), validate=True)
    except ValueError as error:
        raise MalformedRecord(f"{name}: {error}") from error
