# SPDX-License-Identifier: Apache-2.0
"""Decodes a column value by value, through Python objects.

A value's result never depends on its neighbours. If Arrow refuses the objects of a batch, the batch is halved until the
refused rows are found. Example: row 700 of 1,000 has a number that is too large. Arrow refuses rows 0-999, accepts
0-499, refuses 500-999, and so on; after about 20 attempts only row 700 is bad.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.decoding.columns import FIRST_US, LAST_US, BadValue, Decoded

_REFUSALS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError, TypeError, OverflowError)


def decode_rows(
    column: pa.Array, decode: Callable[[bytes], object], *, read_as: pa.DataType, returned_as: pa.DataType
) -> Decoded:
    """Decode each value of a column that is not null, by ``decode``.

    Values for which ``decode`` raises BadValue are null in the result, with the reason.

    Args:
        read_as: Arrow type of the decoded objects, with the units in which their numbers are.
        returned_as: Arrow type of the result, to which the objects' type is cast.
    """
    objects: list[object] = []
    reasons: dict[int, str] = {}
    for row, value in enumerate(column.to_pylist()):
        try:
            objects.append(None if value is None else decode(value))
        except BadValue as error:
            reasons[row] = str(error)
            objects.append(None)
    pieces: list[pa.Array] = []
    _convert(objects, 0, (read_as, returned_as), pieces, reasons)
    values = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
    return Decoded(values=values, reasons=reasons)


def _convert(
    objects: list[object],
    first_row: int,
    types: tuple[pa.DataType, pa.DataType],
    pieces: list[pa.Array],
    reasons: dict[int, str],
) -> None:
    read_as, returned_as = types
    try:
        array = pa.array(objects, type=read_as)
        if not isinstance(array, pa.Array):
            raise pa.ArrowInvalid("more than a column can hold")
        returned = array.cast(returned_as)
        _check_moments(returned)
        pieces.append(returned)
    except _REFUSALS as error:
        if len(objects) <= 1:
            reasons[first_row] = f"does not fit its column: {_describe(error)}"
            pieces.append(pa.nulls(len(objects), type=returned_as))
            return
        half = len(objects) // 2
        _convert(objects[:half], first_row, types, pieces, reasons)
        _convert(objects[half:], first_row + half, types, pieces, reasons)


def _check_moments(array: pa.Array) -> None:
    """Raise OverflowError for a moment that Python and Spark cannot show."""
    # a time in the year 9999 may be in the year 10000 in UTC
    kind = array.type
    if pa.types.is_timestamp(kind):
        extent = pc.min_max(array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()))
        if extent["min"].is_valid and not FIRST_US <= extent["min"].as_py() <= extent["max"].as_py() <= LAST_US:
            raise OverflowError("not within the years 1 to 9999")
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            _check_moments(array.field(number))
    elif pa.types.is_map(kind):
        _check_moments(array.items)
    elif pa.types.is_list(kind):
        _check_moments(array.values)


def _describe(error: Exception) -> str:
    """Return why Arrow refused a value, without the value, which Arrow's message has."""
    text = str(error)
    if "Rescaling" in text:
        return "a number with more decimal places than its column"
    if "precision" in text:
        return "a number with more digits than its column"
    if "decimal" in text.lower():
        return "a number that its decimal column cannot hold"
    if isinstance(error, OverflowError):
        return "a number or a date out of range"
    return f"{type(error).__name__}"
