# SPDX-License-Identifier: Apache-2.0
"""Records of positions and maps in the target."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import CorruptMessageError
from consumerd.mirror.records import (
    MARK,
    AssignmentKey,
    Key,
    PositionKey,
    SegmentKey,
    SourceLog,
    StoredAssignment,
    StoredPosition,
    decode_assignment,
    decode_key,
    decode_position,
    encode_assignment,
    encode_key,
    encode_position,
)

LOG = SourceLog("27-1700000000000", "mirror", "Bestellungen ä", "0-3", "17.1")
logs = st.builds(SourceLog, *[st.text(max_size=8)] * 5)
STORED = StoredPosition(source=1, target=2, target_topic="t", target_partition=3, last_segment=0)


def test_keys_can_be_read_by_people() -> None:
    assert encode_key(PositionKey(LOG)).decode() == (
        '["position","27-1700000000000","mirror","Bestellungen ä","0-3","17.1"]'
    )
    assert (
        encode_key(SegmentKey(LOG, 7)).decode() == '["map","27-1700000000000","mirror","Bestellungen ä","0-3","17.1",7]'
    )


@given(
    key=st.one_of(
        st.builds(PositionKey, logs),
        st.builds(SegmentKey, logs, st.integers(0, 2**40)),
        st.builds(AssignmentKey, logs.map(lambda log: log.source)),
    )
)
def test_keys_are_what_was_encoded_and_never_the_same_for_two(key: Key) -> None:
    assert decode_key(encode_key(key)) == key


@given(
    stored=st.builds(
        StoredPosition,
        source=st.integers(0, 2**63 - 1),
        target=st.integers(0, 2**63 - 1),
        target_topic=st.text(),
        target_partition=st.integers(0, 2**31 - 1),
        counts_bytes=st.booleans(),
        is_mapped=st.booleans(),
        request_id=st.none() | st.text(),
        first_segment=st.integers(0, 2**31),
        last_segment=st.integers(-1, 2**31),
    )
)
def test_positions_are_what_was_encoded(stored: StoredPosition) -> None:
    assert decode_position(encode_position(stored)) == stored


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b'["position","c","g","t","0"]', b'["map","c","g","t","0","1"]', b'["map","c","g","t","0","1",-1]',
     b'["map","c","g","t","0","1",true]', b'["assignment","c","g","t"]', b'["position","c","g","t",0,"1"]', b"\xff"],
)  # fmt: skip
def test_other_keys_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptMessageError, match="no key of a mirror"):
        decode_key(data)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "version 2; only 1 is known"),
        ({"source": "1"}, "another kind"),
        ({"source": -1}, "another kind"),
        ({"counts_bytes": 1}, "another kind"),
        ({"more": 1}, "no position"),
    ],
)
def test_other_positions_are_refused(changes: dict[str, object], said: str) -> None:
    fields = {**json.loads(encode_position(STORED)), **changes}
    with pytest.raises(CorruptMessageError, match=said):
        decode_position(json.dumps(fields).encode())


@pytest.mark.parametrize("data", [MARK, b'["cutover","g"]', b'["position of another kind",1,2]'])
def test_keys_of_other_kinds_are_passed_over(data: bytes) -> None:
    """Other parts of a mirror, and later releases, have their records in the same topic."""
    assert decode_key(data) is None


@pytest.mark.parametrize("value", [b"{}", b'{"version":1}', b'{"version":1,"target_topic":"t","target_partition":-1}'])
def test_other_assignments_are_refused(value: bytes) -> None:
    with pytest.raises(CorruptMessageError, match="no assignment of a mirror"):
        decode_assignment(value)


def test_assignments_are_what_was_encoded() -> None:
    stored = StoredAssignment(target_topic="t", target_partition=3)
    assert stored == decode_assignment(encode_assignment(stored))


@given(data=st.one_of(st.binary(max_size=40), st.text(max_size=40).map(str.encode)))
def test_any_bytes_give_a_named_error(data: bytes) -> None:
    for decode in (decode_position, decode_assignment):
        with pytest.raises(CorruptMessageError):
            decode(data)
    with contextlib.suppress(CorruptMessageError):
        assert decode_key(data) is None


def test_deep_nesting_gives_a_named_error() -> None:
    data = b"[" * 100_000
    for decode in (decode_position, decode_assignment):
        with pytest.raises(CorruptMessageError):
            decode(data)
    with contextlib.suppress(CorruptMessageError):
        assert decode_key(data) is None
