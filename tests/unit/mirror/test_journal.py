# SPDX-License-Identifier: Apache-2.0
"""Journal of cut-overs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import CorruptMessageError
from consumerd.mirror.journal import (
    CutoverEntry,
    CutoverState,
    JournalKey,
    MovedPosition,
    decode_entry,
    encode_entry,
    encode_journal_key,
    find_journal_key,
)
from consumerd.mirror.records import PositionKey, SegmentKey, SourceLog, encode_key

KEY = JournalKey("27-1700000000000", "mirror", "Lager ä")
MOVED = MovedPosition("orders", "0-3", 5, "orders", 3, None)
ENTRY = CutoverEntry(state=CutoverState.STOPPED, written_ms=1700000000000, places=("zookeeper",), positions=(MOVED,))
offsets = st.integers(0, 2**63 - 1)


def test_a_key_can_be_read_by_people() -> None:
    assert encode_journal_key(KEY).decode() == '["cutover","27-1700000000000","mirror","Lager ä"]'


@given(key=st.builds(JournalKey, st.text(), st.text(), st.text()))
def test_a_key_is_what_was_encoded(key: JournalKey) -> None:
    assert find_journal_key(encode_journal_key(key)) == key


def test_records_of_other_kinds_are_passed_over() -> None:
    """The topic has the mirror's own records, and perhaps those of a later release."""
    log = SourceLog("c", "m", "t", "0", "7")
    others = [encode_key(PositionKey(log)), encode_key(SegmentKey(log, 0)), b"\xff", b"{}", b'["cutover","c"]', b""]
    assert [find_journal_key(one) for one in others] == [None] * len(others)


@given(
    entry=st.builds(
        CutoverEntry,
        state=st.sampled_from(CutoverState),
        written_ms=offsets,
        places=st.lists(st.sampled_from(["zookeeper", "kafka"])).map(tuple),
        positions=st.lists(
            st.builds(MovedPosition, st.text(), st.text(), offsets, st.text(), offsets, st.none() | offsets)
        ).map(tuple),
    )
)
def test_an_entry_is_what_was_encoded(entry: CutoverEntry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"state": "gone"},
        {"written_ms": True},
        {"places": [1]},
        {"positions": [["orders", "0", -1, "orders", 0, None]]},
        {"positions": [["orders", "0", 1, "orders", 0]]},
        {"positions": 1},
    ],
)
def test_any_other_value_is_refused(change: dict[str, object]) -> None:
    """A cut-over that goes on from a misread journal could leave records out."""
    fields = json.loads(encode_entry(ENTRY)) | change
    with pytest.raises(CorruptMessageError, match="cut-over"):
        decode_entry(json.dumps(fields).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff", b"{}"])
def test_bytes_that_are_no_entry_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptMessageError, match="cut-over"):
        decode_entry(data)
