# SPDX-License-Identifier: Apache-2.0
"""Decoder of the format ``avro``: data of schemas in local files, by fastavro."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import pyarrow as pa
from fastavro import schemaless_reader
from fastavro.read import SchemaResolutionError
from fastavro.schema import fingerprint, to_parsing_canonical_form

from consumerd.spark.decoding.avro_schema import Schema, arrow_type, column_type
from consumerd.spark.decoding.columns import BadValue, Decoded
from consumerd.spark.decoding.rows import decode_rows

Framing = Literal["bare", "confluent", "single_object"]

_CONFLUENT_BYTES: Final = 5
_SINGLE_OBJECT_MARK: Final = b"\xc3\x01"
_SINGLE_OBJECT_BYTES: Final = 10
_NOT_A_DATUM: Final = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RecursionError,
    SchemaResolutionError,
    TypeError,
    ValueError,
    struct.error,
)
"""Exceptions of fastavro for bytes that are not a datum of the schema."""


@dataclass(frozen=True, slots=True)
class AvroDecoder:
    """Decoder of the format ``avro``: one datum per key or value.

    The result has the columns of ``schema``. With ``confluent`` framing a datum may be of another schema, the writer
    schema, which Avro's rules resolve to ``schema``.

    Attributes:
        schema: from ``avro_schema``.
        framing: bytes before the datum: ``bare`` has none; ``confluent`` has a zero byte and a schema id of 4 bytes
            (Confluent, "Wire format"); ``single_object`` has two marker bytes and a fingerprint of 8 bytes (Avro
            Specification, "Single-object encoding").
        writers: writer schemas by id, for ``confluent``.
    """

    schema: Schema
    framing: Framing = "bare"
    writers: Mapping[int, Schema] = field(default_factory=dict)
    _mark: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        mark = b""
        if self.framing == "single_object":
            # fastavro's hexadecimal fingerprint has the byte order of the encoding (little-endian)
            mark = _SINGLE_OBJECT_MARK + bytes.fromhex(
                fingerprint(to_parsing_canonical_form(self.schema), "CRC-64-AVRO")
            )
        object.__setattr__(self, "_mark", mark)

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the decoded column: a struct of the schema's fields."""
        return column_type(arrow_type(self.schema))

    def decode(self, column: pa.Array) -> Decoded:
        """Decode a ``binary`` column of Avro data; null stays null.

        An undecodable value becomes null, and the result has the reason.
        """
        read_as = arrow_type(self.schema)
        return decode_rows(column, self._decode_one, read_as=read_as, returned_as=column_type(read_as))

    def _decode_one(self, value: bytes) -> object:
        writer, at = self._find_writer(value)
        stream = io.BytesIO(value)
        stream.seek(at)
        try:
            datum = schemaless_reader(stream, writer, self.schema)
        except _NOT_A_DATUM as error:
            raise BadValue(f"no datum of the schema: {_describe(error)}") from None
        if stream.tell() != len(value):
            raise BadValue(f"no datum of the schema: {len(value) - stream.tell()} bytes follow it")
        return datum

    def _find_writer(self, value: bytes) -> tuple[Schema, int]:
        """Return the datum's writer schema, and the index of its first byte. Raises BadValue."""
        if self.framing == "bare":
            return self.schema, 0
        if self.framing == "single_object":
            if not value.startswith(self._mark):
                raise BadValue("does not begin with the marks and the fingerprint of the schema")
            return self.schema, _SINGLE_OBJECT_BYTES
        if len(value) < _CONFLUENT_BYTES or value[0] != 0:
            raise BadValue("does not begin with a zero byte and the id of a schema")
        schema_id = int.from_bytes(value[1:_CONFLUENT_BYTES], "big")
        writer = self.writers.get(schema_id)
        if writer is None:
            raise BadValue(f"schema id {schema_id} is not among writer_schemas")
        return writer, _CONFLUENT_BYTES


def _describe(error: BaseException) -> str:
    if isinstance(error, EOFError):
        return "it ends too early"
    if isinstance(error, UnicodeDecodeError):
        return f"a text is not UTF-8: {error.reason}"
    return type(error).__name__
