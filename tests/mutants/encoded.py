# SPDX-License-Identifier: Apache-2.0
"""Mutants of the encoding of records: of new ones, and of decoded ones for another partition."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_GROWN: Final = "tests/unit/wire/test_producer_batch.py::"
_KERNEL: Final = "tests/property/test_kernel_building.py::"

ENCODED: Final = (
    Mutant(
        name="kernel-copies-what-is-behind-the-buffer",
        promise=0,
        file="wire/_kernel/building.h",
        part="building",
        old="start <= end && end <= rows->size && end - start",
        new="start <= end && end <= rows->size + 1 && end - start",
        tests=(_KERNEL + "test_nothing_outside_of_the_buffer_is_read",),
    ),
    Mutant(
        name="kernel-takes-any-headers-for-readable",
        promise=0,
        file="wire/_kernel/records.pyx",
        part="records",
        old="start <= end <= view.len and are_headers(head, head + start, head + end)",
        new="start < end <= view.len",
        tests=(
            _GROWN + "test_unreadable_headers_are_told[native-header_ends--1]",
            _KERNEL + "test_damaged_headers_are_found_in_the_same_row",
        ),
        dies_of="Failed: DID NOT RAISE",
    ),
    Mutant(
        name="kernel-puts-any-times-into-one-batch",
        promise=0,
        file="wire/_kernel/building.h",
        part="building",
        old="    return other < 0 ? one > INT64_MAX + other : one < INT64_MIN + other;\n",
        new="    return other < 0 && one > INT64_MAX + other;\n",
        tests=(_KERNEL + "test_new_records_are_the_same",),
    ),
    Mutant(
        name="kernel-fills-a-batch-beyond-its-limit",
        promise=0,
        file="wire/_kernel/building.h",
        part="building",
        old="row > rows->base_row && whole > most - *size",
        new="row > rows->base_row && *size > most",
        tests=(_KERNEL + "test_nothing_outside_of_the_buffer_is_read",),
    ),
    Mutant(
        name="kernel-takes-the-last-time-for-the-greatest",
        promise=0,
        file="wire/_kernel/building.h",
        part="building",
        old="        if (rows->timestamps[row] > *max_timestamp)\n",
        new="",
        tests=(_KERNEL + "test_rows_are_the_same_wherever_they_are_cut",),
    ),
    Mutant(
        name="kernel-encodes-null-as-empty",
        promise=0,
        file="wire/_kernel/building.pyx",
        part="building",
        old="        size[0] = -1\n",
        new="        size[0] = 0\n",
        tests=(_KERNEL + "test_new_records_are_the_same",),
    ),
    Mutant(
        name="kernel-numbers-each-part-of-a-batch-from-0",
        promise=0,
        file="wire/_kernel/building.pyx",
        part="building",
        old="    rows.base_row = row - first_delta\n",
        new="    rows.base_row = row\n",
        tests=(_GROWN + "test_a_batch_is_what_a_producer_sends_for_the_same_records[native]",),
    ),
    Mutant(
        name="kernel-adds-a-record-where-there-is-no-room",
        promise=0,
        file="wire/_kernel/building.h",
        part="building",
        old="row > rows->base_row && whole",
        new="row > first && whole",
        tests=(_GROWN + "test_nothing_is_added_without_room[native]",),
    ),
    Mutant(
        name="a-record-is-added-where-there-is-no-room",
        promise=0,
        file="wire/modern/building.py",
        old="                if size > room and self.count + at > begin:\n",
        new="                if size > room and at > begin:\n",
        tests=(_GROWN + "test_nothing_is_added_without_room[pure]",),
    ),
    Mutant(
        name="the-greatest-time-is-that-of-the-first-part",
        promise=0,
        file="wire/modern/building.py",
        old="        self._max_timestamp = max(self._max_timestamp, max_timestamp)\n",
        new="",
        tests=(_GROWN + "test_the_greatest_time_is_that_of_all_records",),
    ),
    Mutant(
        name="sequences-end-after-the-greatest",
        promise=0,
        file="wire/record_fields.py",
        old="    return (sequence + count) & MAX_INT32\n",
        new="    return min(sequence + count, MAX_INT32)\n",
        tests=("tests/unit/embedded/log/test_producers.py::test_sequences_wrap_around",),
    ),
    Mutant(
        name="unreadable-headers-are-sent-on",
        promise=0,
        file="wire/records.py",
        old="                    header_spans(self.buffer, start, end)\n",
        new="                    header_spans(b'\\0', 0, 1)\n",
        tests=(_GROWN + "test_unreadable_headers_are_told[pure-header_ends--1]",),
        dies_of="Failed: DID NOT RAISE",
    ),
    Mutant(
        name="times-that-fit-no-batch-are-written",
        promise=0,
        file="wire/modern/building.py",
        old="    return -_DELTA_END <= timestamp - base_timestamp < _DELTA_END\n",
        new="    return -2 * _DELTA_END <= timestamp - base_timestamp < 2 * _DELTA_END\n",
        tests=(
            _GROWN + "test_times_too_far_apart_for_one_batch_are_in_two[pure]",
            _GROWN + "test_a_new_record_too_far_away_is_an_error",
        ),
        dies_of="Failed: DID NOT RAISE",
    ),
)
