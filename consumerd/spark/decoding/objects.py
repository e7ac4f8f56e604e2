# SPDX-License-Identifier: Apache-2.0
"""Decoder of the format ``json``: objects with declared fields.

Strict, by msgspec: text is not taken for a number, nor a number for text; whole numbers must fit their type; timestamps
must have a zone, unless they are ``timestamp_ntz``; bytes are base64. A missing field is null, which makes a value bad
if the field is ``not null``. Undeclared fields are ignored.
"""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import dataclass, field
from typing import Annotated, Final, NotRequired, Required, TypedDict, cast

import msgspec
import pyarrow as pa

from consumerd.config.field_types import FieldType
from consumerd.spark.decoding.columns import BadValue, Decoded
from consumerd.spark.decoding.rows import decode_rows

_FIRST_S: Final = -62_135_596_800
_LAST_S: Final = 253_402_300_799
"""First and last second of the years 1 to 9999, which Python and Spark can show."""
_LARGEST_FLOAT: Final = 3.4028234663852886e38
"""Largest number that a 32-bit float can hold."""

_MOMENT: Final = pa.timestamp("us", "UTC")
_EPOCHS: Final = {"epoch_s": ("s", 1), "epoch_ms": ("ms", 1_000), "epoch_us": ("us", 1_000_000)}

_ARROW: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": _MOMENT,
    "timestamp_ntz": pa.timestamp("us"),
    "epoch_s": _MOMENT,
    "epoch_ms": _MOMENT,
    "epoch_us": _MOMENT,
}

_PYTHON: Final[dict[str, object]] = {
    "boolean": bool,
    "int": Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)],
    "bigint": Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    "float": Annotated[float, msgspec.Meta(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)],
    "double": float,
    "string": str,
    "binary": bytes,
    "decimal": decimal.Decimal,
    "date": dt.date,
    "timestamp": Annotated[dt.datetime, msgspec.Meta(tz=True)],
    "timestamp_ntz": Annotated[dt.datetime, msgspec.Meta(tz=False)],
    **{
        name: Annotated[int, msgspec.Meta(ge=_FIRST_S * factor, le=(_LAST_S + 1) * factor - 1)]
        for name, (_, factor) in _EPOCHS.items()
    },
}


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """Decoder of the format ``json``: an object with the declared fields, those of ``struct``."""

    struct: FieldType
    _decoder: msgspec.json.Decoder[object] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_decoder", msgspec.json.Decoder(cast("type[object]", _python_type(self.struct))))

    def __reduce__(self) -> tuple[type[JsonDecoder], tuple[FieldType]]:
        return JsonDecoder, (self.struct,)  # msgspec's part cannot be pickled

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the decoded column: a struct of the declared fields."""
        return arrow_type(self.struct)

    def decode(self, column: pa.Array) -> Decoded:
        """Decode a ``binary`` column of JSON objects; null stays null.

        An undecodable value becomes null, and the result has the reason.
        """
        return decode_rows(column, self._decode_one, read_as=arrow_type(self.struct, read=True), returned_as=self.type)

    def _decode_one(self, value: bytes) -> object:
        try:
            return self._decoder.decode(value)
        except RecursionError:
            raise BadValue("no JSON of these fields: nested too deeply") from None
        except ValueError as error:
            raise BadValue(f"no JSON of these fields: {error}") from None


def arrow_type(kind: FieldType, *, read: bool = False) -> pa.DataType:
    """Return the Arrow type of a field type that the settings declare.

    Args:
        read: True for the type in which JSON numbers are read: times since the epoch have the unit of the JSON numbers,
            such as seconds. False for the type of the column.
    """
    if kind.kind == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    if kind.kind == "struct":
        return pa.struct([pa.field(name, arrow_type(inner, read=read)) for name, inner in kind.fields])
    if kind.kind in ("array", "map"):
        assert kind.element is not None
        element = arrow_type(kind.element, read=read)
        return pa.list_(element) if kind.kind == "array" else pa.map_(pa.string(), element)
    if read and kind.kind in _EPOCHS:
        return pa.timestamp(_EPOCHS[kind.kind][0], "UTC")
    return _ARROW[kind.kind]


def _python_type(kind: FieldType) -> object:
    if kind.kind == "struct":
        fields = {
            name: Required[_python_type(inner)] if inner.required else NotRequired[_nullable(inner)]
            for name, inner in kind.fields
        }
        return TypedDict("Fields", fields)  # type: ignore[operator]  # types made at run time
    if kind.kind in ("array", "map"):
        assert kind.element is not None
        element = _python_type(kind.element) if kind.element.required else _nullable(kind.element)
        # types made at run time
        return list[element] if kind.kind == "array" else dict[str, element]  # type: ignore[valid-type]
    return _PYTHON[kind.kind]


def _nullable(kind: FieldType) -> object:
    return _python_type(kind) | None  # type: ignore[operator]  # a type, or a form of typing, made at run time
