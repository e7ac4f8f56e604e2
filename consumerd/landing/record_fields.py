# SPDX-License-Identifier: Apache-2.0
"""The JSON objects that lie beside and among landed files: one object, a format version, fields of known types. Pure.

Keys that a reader does not know are passed over, so that a later release may add some; a change that an older release
would misread raises the format version, and older releases refuse the file.

Format 2, which this release writes, says everything apart that format 1 packed into one text:

=============  =========================  ============================================================================
key            format 1                   format 2
=============  =========================  ============================================================================
incarnation    ``"7"``, ``"7.2"``         ``"7"``: the topic's ``czxid`` as text, so that a topic id may stand there later
truncation     after the dot              ``0``, ``2``: a number, always there
partition      ``"3"``, ``"0-3"``         ``3``: a number
broker         before the dash            ``0``: a number, only where a partition lives on a broker (0.7)
cluster        not in ``_chain.json``     in every record, as text
=============  =========================  ============================================================================

Both are read. A chain that was begun in format 1 goes on in place: its record stays as it is, its new files are of format 2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from consumerd.model import BrokerId, Incarnation, PartitionKey

FORMAT_VERSION: Final = 2
"""What is written."""
_PACKED_VERSION: Final = 1
_READABLE: Final = (_PACKED_VERSION, FORMAT_VERSION)

_CZXID = re.compile(r"[0-9]{1,19}", re.ASCII)


class MalformedRecord(ValueError):
    """Bytes that are not the record they should be; the message names no path."""


class UnknownFormat(MalformedRecord):
    """A record whole in itself, of a format that this release does not read."""


def describe_malformed(place: str, error: MalformedRecord) -> str:
    """Return what is wrong with the record at ``place``, and what to do about it."""
    if isinstance(error, UnknownFormat):
        return f"{place} is of another release: {error}; run the release that wrote it, or a later one"
    return f"{place} is damaged: {error}; restore it from a copy"


def encode_fields(fields: Mapping[str, object]) -> bytes:
    """Return fields as one JSON object."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode_fields(data: bytes) -> Mapping[str, object]:
    """Read an object of a format version that is known. Raises MalformedRecord."""
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
    """Return a string. Raises MalformedRecord."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise MalformedRecord(f"{name} is {value!r}, expected a string")
    return value


def get_number(fields: Mapping[str, object], name: str) -> int:
    """Return a whole number. Raises MalformedRecord."""
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise MalformedRecord(f"{name} is {value!r}, expected a number")
    return value


def find_number(fields: Mapping[str, object], name: str) -> int | None:
    """Return a whole number, or None where there is none. Raises MalformedRecord."""
    return None if fields.get(name) is None else get_number(fields, name)


def encode_incarnation(incarnation: Incarnation) -> dict[str, object]:
    """Return the fields of a log's incarnation."""
    return {"incarnation": str(incarnation.czxid), "truncation": incarnation.truncation}


def get_incarnation(fields: Mapping[str, object]) -> Incarnation:
    """Read the fields of a log's incarnation, of either format. Raises MalformedRecord."""
    text = get_text(fields, "incarnation")
    if fields.get("format") == _PACKED_VERSION:
        try:
            return Incarnation.parse(text)
        except ValueError as error:
            raise MalformedRecord(f"incarnation {text!r}, expected CZXID or CZXID.K") from error
    truncation = get_number(fields, "truncation")
    if truncation < 0:
        raise MalformedRecord(f"truncation {truncation}, expected a count")
    if not _CZXID.fullmatch(text):
        # a topic id, say: 22 characters, where a czxid has 19 at most
        raise UnknownFormat(f"incarnation {text!r}, this release knows topics by czxid, a number")
    return Incarnation(int(text), truncation)


def encode_partition(partition: PartitionKey) -> dict[str, object]:
    """Return the fields of a partition's key."""
    fields: dict[str, object] = {"partition": partition.number}
    return fields if partition.broker is None else {**fields, "broker": partition.broker}


def get_partition(fields: Mapping[str, object]) -> PartitionKey:
    """Read the fields of a partition's key, of either format. Raises MalformedRecord."""
    if fields.get("format") == _PACKED_VERSION:
        try:
            return PartitionKey.parse(get_text(fields, "partition"))
        except ValueError as error:
            raise MalformedRecord(str(error)) from error
    number, broker = get_number(fields, "partition"), find_number(fields, "broker")
    if number < 0 or (broker is not None and broker < 0):
        raise MalformedRecord(f"partition {number}, broker {broker}: expected none below 0")
    return PartitionKey(number, None if broker is None else BrokerId(broker))
