# SPDX-License-Identifier: Apache-2.0
"""Mutants of a mirror: of the map between the offsets of both sides, and of what is stored of it."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_MAPS: Final = "tests/unit/mirror/test_offset_map.py::"
_RECORDS: Final = "tests/unit/mirror/test_records.py::"
_DECISIONS: Final = "tests/unit/admin/migrate/test_decisions.py::"
_REFUSALS: Final = "tests/component/sinks/test_kafka_sink_refusals.py::"
_ANY_MAP: Final = _MAPS + "test_any_map_agrees_with_a_look_at_every_record"

MIRRORED: Final = (
    Mutant(
        name="a-run-goes-on-over-a-hole-of-the-source",
        promise=0,
        file="mirror/runs.py",
        old="offsets[number] != expected",
        new="offsets[number] < expected",
        tests=(_ANY_MAP,),
        dies_of="ValueError",
    ),
    Mutant(
        name="records-of-a-compressed-message-are-runs-of-their-own",
        promise=0,
        file="mirror/runs.py",
        old="expected = offsets[first] if counts_bytes else offsets[number - 1] + 1",
        new="expected = offsets[number - 1] + 1",
        tests=(_MAPS + "test_records_of_a_compressed_message_share_its_offset",),
        dies_of="ValueError",
    ),
    Mutant(
        name="a-marker-does-not-end-a-run",
        promise=0,
        file="mirror/offset_map.py",
        old="return (builder.source_end, builder.target_end) == (run.source_start, run.target_start)",
        new="return builder.source_end == run.source_start",
        tests=(_ANY_MAP,),
    ),
    Mutant(
        name="positions-above-the-mirror-are-translated",
        promise=0,
        file="mirror/offset_map.py",
        old="if position > self._position.source:",
        new="if position > self._position.source + 1:",
        tests=(_MAPS + "test_the_example_of_the_module",),
        dies_of="Failed: DID NOT RAISE",
    ),
    Mutant(
        name="a-hole-between-segments-is-the-end",
        promise=0,
        file="mirror/offset_map.py",
        old="        found = self._segment(number).find_target(position)\n"
        "        if found is None and number + 1 < len(self._segments):\n",
        new="        found = self._segment(number).find_target(position)\n"
        "        if found is None and number + 2 < len(self._segments):\n",
        tests=(_ANY_MAP,),
    ),
    Mutant(
        name="going-back-a-hole-between-segments-is-the-end",
        promise=0,
        file="mirror/offset_map.py",
        old="        found = self._segment(number).find_source(offset)\n"
        "        if found is None and number + 1 < len(self._segments):\n",
        new="        found = self._segment(number).find_source(offset)\n"
        "        if found is None and number + 2 < len(self._segments):\n",
        tests=(_ANY_MAP,),
    ),
    Mutant(
        name="the-segment-that-the-mirror-goes-on-in-is-removed",
        promise=0,
        file="mirror/offset_map.py",
        old="return max(0, min(bisect_right(target_starts, log_start), len(target_starts)) - 1)",
        new="return bisect_right(target_starts, log_start)",
        tests=(_MAPS + "test_segments_whose_records_the_target_has_deleted_can_be_removed",),
    ),
    Mutant(
        name="a-segment-that-still-has-records-is-removed",
        promise=0,
        file="mirror/offset_map.py",
        old="min(bisect_right(target_starts, log_start), len(target_starts)) - 1)",
        new="min(bisect_right(target_starts, log_start), len(target_starts) - 1))",
        tests=(_MAPS + "test_segments_whose_records_the_target_has_deleted_can_be_removed",),
    ),
    Mutant(
        name="a-full-segment-is-forgotten",
        promise=0,
        file="mirror/offset_map.py",
        old="            changed = {**changed, self._number: self._builder.encode()}\n",
        new="            changed = {self._number: self._builder.encode()}\n",
        tests=(_ANY_MAP,),
    ),
    Mutant(
        name="a-restarted-writer-begins-a-segment-of-the-same-number",
        promise=0,
        file="mirror/offset_map.py",
        old="SegmentBuilder(counts_bytes=counts_bytes, data=last)",
        new="SegmentBuilder(counts_bytes=counts_bytes)",
        tests=(_MAPS + "test_a_writer_that_goes_on_after_a_restart_writes_what_one_writes_that_ran_on",),
    ),
    Mutant(
        name="the-begin-of-a-message-of-0-7-is-passed",
        promise=0,
        file="mirror/segment.py",
        old="if self._counts_bytes and inside:",
        new="if self._counts_bytes:",
        tests=(_ANY_MAP,),
    ),
    Mutant(
        name="decoded-segments-of-a-long-map-are-forgotten",
        promise=0,
        file="mirror/offset_map.py",
        old="_MOST_DECODED: Final = 1024\n",
        new="_MOST_DECODED: Final = 64\n",
        tests=("tests/unit/mirror/test_long_map.py::test_positions_in_any_order_decode_each_segment_once",),
    ),
    Mutant(
        name="maps-of-an-earlier-read-are-kept",
        promise=0,
        file="admin/migrate/mirrored.py",
        old="        self._maps.clear()\n",
        new="",
        tests=("tests/unit/admin/migrate/test_mirrored.py::test_groups_share_a_map_until_the_mirror_is_read_again",),
        dies_of="consumerd.mirror.offset_map.NotMirrored",
    ),
    Mutant(
        name="bytes-behind-a-segment-are-overlooked",
        promise=0,
        file="mirror/segment.py",
        old="    if at != len(data) or not count or counts_bytes > 1:\n",
        new="    if at < len(data) - 1 or not count or counts_bytes > 1:\n",
        tests=(_MAPS + "test_bytes_behind_a_segment_are_damage",),
        dies_of="Failed: DID NOT RAISE",
    ),
    Mutant(
        name="a-position-of-a-later-version-is-read",
        promise=0,
        file="mirror/records.py",
        old="    if version != _VERSION:\n",
        new="    if version is None:\n",
        tests=(_RECORDS + "test_other_positions_are_refused",),
        dies_of="Failed: DID NOT RAISE",
    ),
    Mutant(
        name="a-mirror-begins-again-below-what-was-committed",
        promise=0,
        file="sinks/kafka/writer.py",
        old="            self._next = max(position, stored.source)\n",
        new="            self._next = position\n",
        tests=("tests/component/spark/test_replay_tasks.py::test_lost_answers_repeat_nothing",),
        dies_of="ValueError: each run must have records",
    ),
    Mutant(
        name="a-group-at-the-end-does-not-wait-for-a-mirror-that-has-not-begun",
        promise=0,
        file="admin/migrate/decisions.py",
        old="            return (self.source.earliest, self.source.latest) if self.source.earliest < self.source.latest else None",
        new="            return (start, self.source.latest) if start < self.source.latest else None",
        tests=(
            "tests/unit/admin/migrate/test_decisions.py::test_a_group_at_the_end_waits_for_a_mirror_that_has_not_begun",
        ),
    ),
    Mutant(
        name="records-from-before-a-start-are-not-missed",
        promise=0,
        file="admin/migrate/decisions.py",
        old="    if present < offsets.source_start:",
        new="    if offsets.stored.last_segment >= 0 and present < offsets.source_start:",
        tests=(_DECISIONS + "test_the_start_of_a_mirror_answers_for_a_partition_without_records",),
    ),
)
