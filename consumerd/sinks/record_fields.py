"""The JSON objects that lie beside and among landed files: one object, a format version, fields of known types. Pure.

Keys that a reader does not know are passed over, so that a later release may add some; a change that an older release
would misread raises the format version, and older releases refuse the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from consumerd.model import Incarnation

FORMAT_VERSION: Final = 1


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
    """Read an object of this format version. Raises MalformedRecord."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedRecord(f"no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise MalformedRecord("no JSON object")
    version = fields.get("format")
    if version != FORMAT_VERSION:
        raise UnknownFormat(f"format {version!r}, this release reads {FORMAT_VERSION}")
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


def get_incarnation(fields: Mapping[str, object]) -> Incarnation:
    """Return the field ``incarnation``. Raises MalformedRecord."""
    text = get_text(fields, "incarnation")
    try:
        return Incarnation.parse(text)
    except ValueError as error:
        raise MalformedRecord(f"incarnation {text!r}, expected CZXID or CZXID.K") from error
