# SPDX-License-Identifier: Apache-2.0
"""JSON records beside landed files: one object, a format version, fields of known types. Pure.

Readers skip keys that they do not know, so a later release may add some. A change that an older release would misread
raises the format version, and older releases refuse the file.

This release writes format 2, which has keys of their own for values that format 1 packed into one text:

=============  =========================  =====================================================================
key            format 1                   format 2
=============  =========================  =====================================================================
incarnation    ``"7"``, ``"7.2"``         ``"7"``: the topic's ``czxid`` as text, or its topic id
truncation     after the dot              ``0``, ``2``: a number, always there
partition      ``"3"``, ``"0-3"``         ``3``: a number
broker         before the dash            ``0``: a number, only if a partition lives on a broker (0.7)
cluster        not in ``_chain.json``     in every record, as text
=============  =========================  =====================================================================

Both are read. A chain that was begun in format 1 goes on in place: its record stays as it is, and its new files are of
format 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from consumerd.model import BrokerId, Incarnation, PartitionKey

FORMAT_VERSION: Final = 2
"""Format version in which this release writes records."""
_PACKED_VERSION: Final = 1
_READABLE: Final = (_PACKED_VERSION, FORMAT_VERSION)


class MalformedRecord(ValueError):
    """Bytes that cannot be parsed as the expected record; the message names no path."""


class UnknownFormat(MalformedRecord):
    """A well-formed record in a format version that this release does not read."""


def describe_malformed(place: str, error: MalformedRecord) -> str:
    """Return an error text about the malformed record at path ``place``, with a remedy."""
    if isinstance(error, UnknownFormat):
        return f"{place} is of another release: {error}; run the release that wrote it, or a later one"
    return f"{place} is damaged: {error}; restore it from a copy"


def encode_fields(fields: Mapping[str, object]) -> bytes:
    """Return the fields as the bytes of one JSON object."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode_fields(data: bytes) -> Mapping[str, object]:
    """Parse the bytes of a JSON object with a known ``format`` version.

    Raises MalformedRecord, or its subclass UnknownFormat for a newer version.
    """
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedRecord(f"no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise MalformedRecord("no JSON object")
    version = fields.get("format")
    if version not in _READABLE or isinstance(version, bool):
        raise UnknownFormat(f"format {version!r}, this release reads {' and '.join(map(str, _READABLE))}")
    return fields


def get_text(fields: Mapping[str, object], name: str) -> str:
    """Return the string in a record's field. Raises MalformedRecord without one."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise MalformedRecord(f"{name} is {value!r}, expected a string")
    return value


def get_number(fields: Mapping[str, object], name: str) -> int:
    """Return the whole number in a record's field. Raises MalformedRecord without one."""
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise MalformedRecord(f"{name} is {value!r}, expected a number")
    return value


def find_number(fields: Mapping[str, object], name: str) -> int | None:
    """Return the whole number in a record's field; None if the field is absent.

    Raises MalformedRecord for another type.
    """
    return None if fields.get(name) is None else get_number(fields, name)


def encode_incarnation(incarnation: Incarnation) -> dict[str, object]:
    """Return the JSON fields that identify a log's incarnation: ``incarnation`` and ``truncation``."""
    return {"incarnation": incarnation.topic_text, "truncation": incarnation.truncation}


def get_incarnation(fields: Mapping[str, object]) -> Incarnation:
    """Return a log's incarnation from a record's fields, in format 1 or 2. Raises MalformedRecord."""
    text = get_text(fields, "incarnation")
    if fields.get("format") == _PACKED_VERSION:
        try:
            return Incarnation.parse(text)  # releases that wrote format 1 knew czxids only
        except ValueError as error:
            raise MalformedRecord(f"incarnation {text!r}, expected CZXID or CZXID.K") from error
    truncation = get_number(fields, "truncation")
    if truncation < 0:
        raise MalformedRecord(f"truncation {truncation}, expected a count")
    try:
        return Incarnation.parse_topic(text).truncated(truncation)
    except ValueError as error:
        raise UnknownFormat(f"incarnation {text!r}, this release knows topics by czxid and topic id") from error


def encode_partition(partition: PartitionKey) -> dict[str, object]:
    """Return the JSON fields of a partition: ``partition``, and for Kafka 0.7 ``broker``."""
    fields: dict[str, object] = {"partition": partition.number}
    return fields if partition.broker is None else {**fields, "broker": partition.broker}


def get_partition(fields: Mapping[str, object]) -> PartitionKey:
    """Return a partition from a record's fields, in format 1 or 2. Raises MalformedRecord."""
    if fields.get("format") == _PACKED_VERSION:
        try:
            return PartitionKey.parse(get_text(fields, "partition"))
        except ValueError as error:
            raise MalformedRecord(str(error)) from error
    number, broker = get_number(fields, "partition"), find_number(fields, "broker")
    if number < 0 or (broker is not None and broker < 0):
        raise MalformedRecord(f"partition {number}, broker {broker}: expected none below 0")
    return PartitionKey(number, None if broker is None else BrokerId(broker))
