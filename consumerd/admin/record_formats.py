# SPDX-License-Identifier: Apache-2.0
"""Formats in which ``consumerd tail`` prints records. Pure.

========== ==========================================================================================
json       the lines of the sinks ``stdout`` and ``jsonl`` (:mod:`consumerd.sinks.lines`)
value      the value's bytes
key-value  the key's bytes, a separator, the value's bytes
text       partition, offset, time, key, value and headers, separated by tabs, for people
========== ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from consumerd.sinks.lines import encode_lines
from consumerd.telemetry.text_tables import escape_unprintable
from consumerd.telemetry.wording import format_time_ms
from consumerd.wire.records import Record, RecordBatch

_PIECE_BYTES: Final = 1 << 18
"""Size of a piece of lines, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """Options of the output formats of ``consumerd tail`` other than ``json``.

    Args:
        separator: Bytes between key and value.
        null: Bytes printed for a null key or value.
        escape: True to escape control characters, and bytes that are not UTF-8: for terminals.
    """

    separator: bytes = b"\t"
    null: bytes = b""
    escape: bool = False


RecordFormat = Callable[[RecordBatch], Iterator[bytes]]
"""Function that encodes a batch's records as bytes, in chunks of whole lines.

Raises CorruptMessageError for unreadable headers, before the first chunk.
"""


def _values(options: FormatOptions, batch: RecordBatch) -> Iterator[bytes]:
    show = partial(_show, options)
    return _join(b"%b\n" % show(value) for value in batch.values())


def _keys_and_values(options: FormatOptions, batch: RecordBatch) -> Iterator[bytes]:
    show = partial(_show, options)
    pairs = zip(batch.keys(), batch.values(), strict=True)
    return _join(b"%b%b%b\n" % (show(key), options.separator, show(value)) for key, value in pairs)


def _texts(_options: FormatOptions, batch: RecordBatch) -> Iterator[bytes]:
    records = list(batch.records())  # all headers first, because written lines could not be taken back
    return _join(_text(f"{batch.partition}", record) for record in records)


def _text(partition: str, record: Record) -> bytes:
    time = format_time_ms(record.timestamp) if record.timestamp >= 0 else "-"
    fields = [partition, str(record.offset), time, _read(record.key), _read(record.value)]
    fields += [f"{escape_unprintable(name)}={_read(value)}" for name, value in record.headers]
    return ("\t".join(fields) + "\n").encode()


def _show(options: FormatOptions, data: bytes | None) -> bytes:
    if data is None:
        return options.null
    return _read(data).encode() if options.escape else data


def _read(data: bytes | None) -> str:
    return "-" if data is None else escape_unprintable(data.decode(errors="backslashreplace"))


def _join(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines in pieces of about ``_PIECE_BYTES``."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size >= _PIECE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


_FORMATS: Final[Mapping[str, Callable[[FormatOptions, RecordBatch], Iterator[bytes]]]] = {
    "json": lambda _options, batch: encode_lines(batch),
    "value": _values,
    "key-value": _keys_and_values,
    "text": _texts,
}

FORMAT_NAMES: Final = tuple(_FORMATS)


def make_format(name: str, options: FormatOptions) -> RecordFormat:
    """Return the function that encodes records in the format of this name, such as ``key-value``."""
    return partial(_FORMATS[name], options)
