# SPDX-License-Identifier: Apache-2.0
"""Types of settings and sink options: sizes, durations, whole numbers, folders, files.

A number without a unit counts in the unit of the key's name (``_ms``, ``_bytes``). Also understood are ``60s``,
``5m``, ``1h30m`` and ``256MiB``, ``64 MB``, ``512Ki``. Sinks of other distributions may use these types in their
``Options``, too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator, ByteSize, Field, TypeAdapter

INT32_MAX: Final = 2**31 - 1
"""Largest size or duration that Kafka's and ZooKeeper's protocols can carry."""

_MS_BY_UNIT: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:ms|s|min|m|h|d)\s*)+", re.IGNORECASE)
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)", re.IGNORECASE)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[KMGT]B|[KMGT]iB?)", re.IGNORECASE)
_AMBIGUOUS_SIZE: Final = re.compile(r"\d+(?:\.\d+)?\s*[KMGT]", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\$\{?[A-Za-z_]")
_byte_size: Final = TypeAdapter(ByteSize)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_whole(value: object) -> object:
    """Return a value as given; refuse booleans, which Python counts as 1 and 0.

    Raises ValueError.
    """
    if isinstance(value, bool):
        # pydantic turns only ValueError into an error of the settings
        raise ValueError(f"expected a whole number, got {str(value).lower()}")  # noqa: TRY004
    return value


def _read_plain(value: object) -> object:
    """Return digits as a number, and other values as they are. Raises ValueError for booleans."""
    value = read_whole(value)
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if text.isascii() and text.isdigit() else value


def read_milliseconds(value: object) -> object:
    """Convert a text such as ``1h30m`` into ms; return other values as they are.

    Raises ValueError.
    """
    value = _read_plain(value)
    if not isinstance(value, str):
        return value
    if not _DURATION.fullmatch(value.strip()):
        raise ValueError(f"expected milliseconds, or a duration such as 500ms, 60s, 5m, 1h or 7d, got {_show(value)}")
    parts = _DURATION_PART.findall(value)
    milliseconds = sum(float(number) * _MS_BY_UNIT[unit.lower()] for number, unit in parts)
    if milliseconds != int(milliseconds):
        raise ValueError(f"{_show(value)} is no whole number of milliseconds")
    return int(milliseconds)


def read_bytes(value: object) -> object:
    """Convert a text such as ``64MiB`` into bytes; return other values as they are.

    Raises ValueError. pydantic's ByteSize does the arithmetic. ByteSize alone would also take ``64 MB or so`` and
    ``1m`` (10**6), which are refused here.
    """
    value = _read_plain(value)
    if not isinstance(value, str):
        return value
    text = value.strip()
    match = _SIZE.fullmatch(text)
    if match is None:
        if _AMBIGUOUS_SIZE.fullmatch(text):
            upper = text.upper()
            raise ValueError(
                f"{_show(value)} may mean two sizes: write {upper}iB (powers of 1024) or {upper}B (of 1000)"
            )
        raise ValueError(f"expected bytes, or a size such as 64KiB, 256MiB or 64MB, got {_show(value)}")
    number, unit = match[1], match[2].lower()
    return int(_byte_size.validate_python(f"{number}{unit}b" if unit.endswith("i") else f"{number}{unit}"))


def read_place(value: object) -> object:
    """Return a path as given; refuse ``~`` and variables, which only a shell expands.

    Raises ValueError.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text:
        raise ValueError("the path is empty: write one, or leave the key out")
    if text.startswith("~"):
        raise ValueError(f"{_show(value)}: ~ is not expanded here: write the whole path")
    if _VARIABLE.search(text):
        raise ValueError(f"{_show(value)}: variables are not expanded here: write the whole path")
    return value


def read_path(value: object) -> object:
    """Return a path as given; refuse URLs, ``~`` and variables, which only a shell expands.

    Raises ValueError.
    """
    if isinstance(value, str) and "://" in value:
        raise ValueError(f"{_show(value)}: expected a path of a mounted file system, not a URL")
    return read_place(value)


WholeNumber = Annotated[int, BeforeValidator(read_whole)]
Bytes = Annotated[int, BeforeValidator(read_bytes), Field(gt=0)]
Milliseconds = Annotated[int, BeforeValidator(read_milliseconds), Field(ge=0)]
PositiveMilliseconds = Annotated[int, BeforeValidator(read_milliseconds), Field(gt=0)]
FilePath = Annotated[Path, BeforeValidator(read_path)]
Folder = Annotated[Path, BeforeValidator(read_path)]
