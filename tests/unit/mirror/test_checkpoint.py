# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of MirrorMaker 2; tests/interop/test_migrate.py compares them with the real classes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.errors import CorruptMessageError
from consumerd.mirror.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint, name_checkpoints_topic

CHECKPOINT = Checkpoint(group="g", topic="t", partition=3, source=258, target=7, metadata="ä")
texts = st.text(max_size=40)


def test_the_bytes_are_those_of_java() -> None:
    key, value = encode_checkpoint(CHECKPOINT)

    assert key == b"\0\1g\0\1t\0\0\0\3"
    assert value == b"\0\0" + b"\0\0\0\0\0\0\1\2" + b"\0\0\0\0\0\0\0\7" + b"\0\2\xc3\xa4"
    assert name_checkpoints_topic("old") == "old.checkpoints.internal"


@given(
    checkpoint=st.builds(
        Checkpoint,
        group=texts,
        topic=texts,
        partition=st.integers(0, 2**31 - 1),
        source=st.integers(-(2**63), 2**63 - 1),
        target=st.integers(-(2**63), 2**63 - 1),
        metadata=texts,
    )
)
def test_a_checkpoint_is_what_was_encoded(checkpoint: Checkpoint) -> None:
    assert decode_checkpoint(*encode_checkpoint(checkpoint)) == checkpoint


def test_a_text_that_no_java_program_could_read_is_refused() -> None:
    """Its length has two bytes, with a sign."""
    encode_checkpoint(Checkpoint(group="x" * 32767, topic="t", partition=0, source=0, target=0))
    with pytest.raises(ValueError, match="at most 32767 bytes, got 32768"):
        encode_checkpoint(Checkpoint(group="x" * 32768, topic="t", partition=0, source=0, target=0))


def test_damaged_bytes_are_no_checkpoint() -> None:
    """Of the key and of the value no part is enough, and none may be left over."""
    key, value = encode_checkpoint(CHECKPOINT)
    damaged = [(key[:at], value) for at in range(len(key))]
    damaged += [(key, value[:at]) for at in range(len(value))]
    damaged += [(key + b"\0", value), (key, value + b"\0"), (key, b"\0\1" + value[2:]), (b"\xff\xff" + key[2:], value)]
    for one in damaged:
        with pytest.raises(CorruptMessageError, match="checkpoint"):
            decode_checkpoint(*one)
