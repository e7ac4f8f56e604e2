# SPDX-License-Identifier: Apache-2.0
"""Bytes and text."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from consumerd.spark.decoding.plain import RawDecoder, TextDecoder


def test_raw_is_what_came() -> None:
    """Every byte of it."""
    column = pa.array([b"\xff", None, b""], pa.binary())

    decoded = RawDecoder().decode(column)

    assert ([b"\xff", None, b""], {}) == (decoded.values.to_pylist(), decoded.reasons)


@given(st.lists(st.none() | st.binary() | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode)))
def test_text_is_what_python_says_it_is(values: list[bytes | None]) -> None:
    """Two ways lead there, one for whole columns and one for those with bad values; Python's codec is the measure."""
    decoded = TextDecoder().decode(pa.array(values, pa.binary()))

    assert [_text(value) for value in values] == decoded.values.to_pylist()
    assert {row for row, value in enumerate(values) if value is not None and _text(value) is None} == set(
        decoded.reasons
    )


def test_the_reason_names_the_byte() -> None:
    """The bytes themselves are in the quarantine."""
    assert {0: "not UTF-8 at byte 2: invalid start byte"} == TextDecoder().decode(pa.array([b"ab\xff"])).reasons


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
