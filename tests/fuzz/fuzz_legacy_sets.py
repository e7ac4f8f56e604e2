# SPDX-License-Identifier: Apache-2.0
"""Invariant: the kernel and Python read any bytes alike as a message set of Kafka 0.7: records, or CorruptMessageError."""

from __future__ import annotations

import contextlib

from consumerd.errors import CorruptMessageError
from consumerd.wire.compression import Codec
from consumerd.wire.legacy.message_set import build_message_set
from tests.support.legacy_outcomes import mend_messages, read_either_way

_PAYLOADS = [b"value %d" % row * row for row in range(6)]
SEEDS = [b"\0" + build_message_set(_PAYLOADS, magic=0)]
SEEDS += [b"\x80" + build_message_set(_PAYLOADS, codec=codec) * 2 for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY)]


def fuzz_one(data: bytes) -> None:
    """Check one input; its first byte tells whether checksums are put right, so that what they cover is met."""
    message_set = bytearray(data[1:])
    if data[:1] > b"\x40":
        mend_messages(message_set)
    with contextlib.suppress(CorruptMessageError):
        read_either_way(bytes(message_set))
