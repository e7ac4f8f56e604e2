# SPDX-License-Identifier: Apache-2.0
"""Invariant: any bytes are read by the decoder as by the naive one: the same records, or one CorruptMessageError."""

from __future__ import annotations

import json
from pathlib import Path

from tests.property.test_records_decoding import check, mend

VECTORS = Path(__file__).parents[1] / "vectors" / "records"
SEEDS = [
    b"\0" + bytes.fromhex(case["record_set_hex"])[:4000]
    for path in sorted(VECTORS.glob("kafka-*.json"))
    for case in json.loads(path.read_text())["cases"]
]


def fuzz_one(data: bytes) -> None:
    """Check one input; its first byte tells whether checksums are put right, so that what they cover is met."""
    record_set = bytearray(data[1:])
    if data[:1] > b"\x40":
        mend(record_set)
    check(bytes(record_set), data[0] & 3 if data else 0)
