"""Decoding value by value, by way of Python objects.

A value's result never depends on its neighbours: what Arrow refuses in a batch is looked for by halves, down to the row.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from consumerd.spark.decoding.columns import BadValue, Decoded

_REFUSALS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError, TypeError, OverflowError)


def decode_rows(
    column: pa.Array, decode: Callable[[bytes], object], *, read_as: pa.DataType, returned_as: pa.DataType
) -> Decoded:
    """Return what ``decode``, which raises BadValue, makes of each value that is not null.

    ``read_as`` is the type that its objects mean, ``returned_as`` one of the same shape that Arrow can cast it to.
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
        pieces.append(array.cast(returned_as))
    except _REFUSALS as error:
        if len(objects) <= 1:
            reasons[first_row] = f"does not fit its column: {_describe(error)}"
            pieces.append(pa.nulls(len(objects), type=returned_as))
            return
        half = len(objects) // 2
        _convert(objects[:half], first_row, types, pieces, reasons)
        _convert(objects[half:], first_row + half, types, pieces, reasons)


def _describe(error: Exception) -> str:
    """Say what Arrow has refused, without the value that it repeats."""
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
