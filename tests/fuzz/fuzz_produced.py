# SPDX-License-Identifier: Apache-2.0
"""Invariant: a set that is sent is refused with its place, or stored as whole as it came; stored bytes are converted or not.

The first byte of an input tells whether checksums are put right, so that what they cover is met.
"""

from __future__ import annotations

from consumerd.wire.modern.building import build_record_set
from consumerd.wire.records import NewRecord
from tests.property.test_produced_sets import FORMATS, check_any, check_stored
from tests.property.test_records_decoding import mend

RECORDS = [NewRecord(key=b"key", value=b"value %d" % row * row, timestamp=1000 + row) for row in range(9)]
SEEDS = [b"\0" + build_record_set(RECORDS, magic=magic, codec=codec) for magic, codec in FORMATS]


def fuzz_one(data: bytes) -> None:
    """Check one input."""
    record_set = bytearray(data[1:])
    if data[:1] > b"\x40":
        mend(record_set)
    check_any(bytes(record_set), 70)
    check_stored(bytes(record_set), 3)
