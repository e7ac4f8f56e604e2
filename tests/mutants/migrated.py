# SPDX-License-Identifier: Apache-2.0
"""Mutants of the sink ``kafka`` and of ``consumerd migrate``: of what a mirror, and a group that is moved, rely on."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_SINK: Final = "tests/component/sinks/test_kafka_sink.py::"
_PROMISES: Final = "tests/component/sinks/test_kafka_sink_promises.py::"
_LOSSES: Final = "tests/component/sinks/test_kafka_sink_losses.py::"
_PLAIN: Final = "tests/component/sinks/test_plain_mirror.py::"
_POSITIONS: Final = "tests/component/mirror/test_positions.py::"
_TAIL: Final = "tests/unit/mirror/test_tail.py::"
_LOGS: Final = "tests/unit/mirror/test_partition_map.py::"
_MIRRORED: Final = "tests/unit/admin/migrate/test_mirrored.py::"
_DECISIONS: Final = "tests/unit/admin/migrate/test_decisions.py::"
_COMMANDS: Final = "tests/component/admin/test_migrate.py::"
_KILLED: Final = "tests/component/admin/test_migrate_killed.py::"
_SECURED: Final = "tests/e2e/test_mirror_targets.py::"
_WRITER: Final = "sinks/kafka/writer.py"

MIGRATED: Final = (
    Mutant(
        name="a-successor-reads-the-position-before-it-fences",
        promise=0,
        file=_WRITER,
        old="        await self._writer.init()\n",
        new="        self._states = await target.read_positions(self._source)\n        await self._writer.init()\n",
        also=(
            (
                (
                    '            failpoints.reach("after_mirror_init")\n'
                    "        self._states = await target.read_positions(self._source)\n"
                ),
                '            failpoints.reach("after_mirror_init")\n',
            ),
        ),
        tests=(_PROMISES + "test_a_successor_fences_its_predecessor_before_it_reads_the_position",),
    ),
    Mutant(
        name="records-are-committed-before-the-position",
        promise=0,
        file=_WRITER,
        old="        await self._thin()\n        stored, changes = self._plan_stored()\n",
        new=(
            "        await self._thin()\n        stored, changes = self._plan_stored()\n        await writer.commit()\n"
            "        writer.begin()\n        await writer.add_partitions(self._positions_partition)\n"
        ),
        tests=(_PROMISES + "test_a_claim_that_is_lost_before_the_commit_leaves_neither_records_nor_position",),
    ),
    Mutant(
        name="the-claim-is-not-looked-at-before-the-commit",
        promise=0,
        file=_WRITER,
        old='        await wait_claim(self._claim)\n        if failpoints.ENABLED:\n            failpoints.reach("before_mirror_commit")\n',
        new='        if failpoints.ENABLED:\n            failpoints.reach("before_mirror_commit")\n',
        tests=(_PROMISES + "test_a_claim_that_is_lost_before_the_commit_leaves_neither_records_nor_position",),
        dies_of="Failed: DID NOT RAISE",
    ),
    Mutant(
        name="a-mirror-starts-below-what-it-has-mirrored",
        promise=0,
        file=_WRITER,
        old="stored is not None and start.position < stored.source and not start.new_chain:",
        new="stored is not None and start.position < 0 and not start.new_chain:",
        tests=(_PROMISES + "test_nothing_is_mirrored_twice_or_left_out_by_a_wrong_start_or_batch",),
        dies_of="Failed: DID NOT RAISE",
    ),
    Mutant(
        name="a-batch-behind-a-hole-is-mirrored",
        promise=0,
        file=_WRITER,
        old="        if batch.next_offset < self._acknowledged or batch.start > self._next:\n",
        new="        if batch.next_offset < self._acknowledged:\n",
        tests=(_PROMISES + "test_nothing_is_mirrored_twice_or_left_out_by_a_wrong_start_or_batch",),
        dies_of="Failed: DID NOT RAISE",
    ),
    Mutant(
        name="a-mirror-goes-on-from-a-position-that-went-back",
        promise=0,
        file=_WRITER,
        old="        if known is not None and (self._stored is None or self._stored.source < known.source):\n",
        new="        if known is not None and self._stored is None:\n",
        tests=(_PROMISES + "test_a_mirror_whose_position_went_back_stops",),
    ),
    Mutant(
        name="the-position-of-a-deleted-topic-of-the-name-is-taken",
        promise=0,
        file=_WRITER,
        old="            if (incarnation := Incarnation.parse(state.log.incarnation)).is_same_topic(self._claim.incarnation)\n",
        new="            if (incarnation := Incarnation.parse(state.log.incarnation)) is not None\n",
        tests=(_SINK + "test_another_topic_of_the_name_is_another_log",),
    ),
    Mutant(
        name="a-map-goes-on-in-a-target-that-begins-anew",
        promise=0,
        file=_WRITER,
        old="                if start < self._target_end:\n",
        new="                if start < 0:\n",
        tests=(_LOSSES + "test_a_target_whose_log_begins_anew_is_mirrored_into_with_a_new_map",),
        dies_of="ValueError: each run must have records",
    ),
    Mutant(
        name="aborted-positions-are-read",
        promise=0,
        file="mirror/positions_partition.py",
        old="                read_committed=True,\n",
        new="                read_committed=False,\n",
        tests=(_POSITIONS + "test_committed_positions_are_read_and_aborted_ones_never",),
    ),
    Mutant(
        name="an-aborted-position-behind-the-last-stable-offset-counts",
        promise=0,
        file="mirror/positions_index.py",
        old="        if commits:\n            self._commit(changes)\n",
        new="        self._commit(changes)\n",
        tests=(
            "tests/unit/mirror/test_positions_index.py::test_tail_counts_only_what_has_committed_and_is_replaced_as_a_whole",
        ),
    ),
    Mutant(
        name="the-first-record-of-the-tail-is-taken-for-the-last",
        promise=0,
        file="mirror/tail.py",
        old="    for row in range(len(batch) - 1, -1, -1):\n",
        new="    for row in range(len(batch)):\n",
        tests=(_TAIL + "test_last_record_is_found_wherever_it_is",),
    ),
    Mutant(
        name="the-tail-is-searched-in-one-window",
        promise=0,
        file="mirror/tail.py",
        old="    while end > least:\n",
        new="    if end > least:\n",
        tests=(_TAIL + "test_records_of_other_mirrors_are_passed_over",),
    ),
    Mutant(
        name="at-least-once-a-part-counts-before-it-is-acknowledged",
        promise=0,
        file="sinks/kafka/plain_writer.py",
        old="        await wait_claim(self._claim)\n",
        new="        await wait_claim(self._claim)\n        self._last = batch.offsets[rows[-1]]\n",
        tests=(_PLAIN + "test_target_that_is_away_is_told",),
    ),
    Mutant(
        name="at-least-once-what-is-in-the-target-is-written-again",
        promise=0,
        file="sinks/kafka/plain_writer.py",
        old="        return bisect_right(batch.offsets, self._last)\n",
        new="        return bisect_right(batch.offsets, -1)\n",
        tests=(_PLAIN + "test_batch_that_is_written_again_is_passed_over",),
    ),
    Mutant(
        name="a-position-at-a-cut-is-translated-to-a-lost-record",
        promise=0,
        file="mirror/partition_map.py",
        old="log.offsets.translate_back(found.offset).offset < cut:\n",
        new="log.offsets.translate_back(found.offset).offset <= cut:\n",
        tests=(_LOGS + "test_a_position_is_translated_to_the_next_record_of_the_present_log",),
    ),
    Mutant(
        name="a-lost-record-of-the-target-is-translated-back",
        promise=0,
        file="mirror/partition_map.py",
        old="            if found.place is not MapPlace.END and found.offset < cut:\n",
        new="            if found.place is not MapPlace.END:\n",
        tests=(_LOGS + "test_the_example_of_the_module",),
    ),
    Mutant(
        name="migrate-takes-the-map-of-a-deleted-topic-of-the-name",
        promise=0,
        file="admin/migrate/mirrored.py",
        old="            if of_log.is_same_topic(incarnation) and (state := self._reader.find(log)) is not None:\n",
        new="            if (state := self._reader.find(log)) is not None:\n",
        tests=(_MIRRORED + "test_only_logs_of_the_present_topic_and_of_this_mirror_count",),
    ),
    Mutant(
        name="migrate-translates-a-position-of-a-deleted-topic-of-the-name",
        promise=0,
        file="admin/migrate/decisions.py",
        old="    if position.validity in {Validity.ABSENT, Validity.ANOTHER_INCARNATION} and not facts.problem:\n",
        new="    if position.validity is Validity.ABSENT and not facts.problem:\n",
        tests=(_COMMANDS + "test_a_position_of_a_deleted_topic_of_the_same_name_is_never_translated",),
    ),
    Mutant(
        name="migrate-sets-a-position-of-the-target-back",
        promise=0,
        file="admin/migrate/decisions.py",
        old="    if move.committed is None or move.committed < translated:\n",
        new="    if move.committed is None or move.committed != translated:\n",
        tests=(_DECISIONS + "test_a_position_goes_backwards_only_if_asked",),
    ),
    Mutant(
        name="migrate-sets-a-position-of-the-source-back",
        promise=0,
        file="admin/migrate/returning.py",
        old="        if allow_backwards:\n",
        new="        if returned >= 0:\n",
        tests=(_DECISIONS + "test_a_group_returns_backwards_only_if_asked",),
    ),
    Mutant(
        name="migrate-believes-a-target-that-was-created-again",
        promise=0,
        file="admin/migrate/decisions.py",
        old="    if found.offset > target.latest:\n",
        new="    if found.offset < 0:\n",
        tests=(_DECISIONS + "test_a_target_topic_that_was_created_again_is_noticed",),
    ),
    Mutant(
        name="a-gap-with-aborted-records-is-waited-for",
        promise=0,
        file="admin/migrate/reading.py",
        old="timeout_s=PATIENCE_S, read_committed=True\n",
        new="timeout_s=PATIENCE_S, read_committed=False\n",
        tests=(_COMMANDS + "test_a_group_behind_an_aborted_transaction_is_not_waited_for",),
    ),
    Mutant(
        name="aborted-records-are-compared",
        promise=0,
        file="admin/migrate/opening.py",
        old="max_message_bytes=LONGEST_RECORD_BYTES, read_committed=True)",
        new="max_message_bytes=LONGEST_RECORD_BYTES, read_committed=False)",
        tests=(_COMMANDS + "test_a_group_behind_an_aborted_transaction_is_not_waited_for",),
    ),
    Mutant(
        name="a-cutover-goes-over-live-members-of-the-target",
        promise=0,
        file="admin/migrate/cutover.py",
        old="    if group.target_members:\n",
        new="    if group.target_members < 0:\n",
        tests=(_DECISIONS + "test_the_next_step_follows_from_the_journal_and_from_both_clusters",),
    ),
    Mutant(
        name="translate-goes-over-live-members-of-the-target",
        promise=0,
        file="admin/migrate/decisions.py",
        old="        if self.target_members:\n            members =",
        new="        if self.target_members < 0:\n            members =",
        tests=(_DECISIONS + "test_live_members_of_the_target_refuse_and_those_of_the_source_do_not",),
    ),
    Mutant(
        name="positions-that-have-moved-are-not-noted-again",
        promise=0,
        file="admin/migrate/cutover.py",
        old="    if state is CutoverState.PLANNED or moved:\n",
        new="    if state is CutoverState.PLANNED:\n",
        tests=(
            _DECISIONS + "test_positions_that_have_moved_are_noted_again",
            _COMMANDS + "test_a_group_that_moves_on_after_it_was_noted_is_noted_again",
        ),
    ),
    Mutant(
        name="the-last-look-of-a-cutover-is-left-out",
        promise=0,
        file="admin/migrate/moving.py",
        old="            if last.members or find_moved(entry.positions, last):\n",
        new="            if last.members:\n",
        tests=(_COMMANDS + "test_a_group_that_moves_on_at_the_last_moment_is_not_done",),
    ),
    Mutant(
        name="different-records-do-not-stop-a-cutover",
        promise=0,
        file="admin/migrate/moving.py",
        old="            results.append(result)\n",
        new="            del result\n",
        tests=(_COMMANDS + "test_records_that_the_mirror_has_left_out_are_found",),
    ),
    Mutant(
        name="the-journal-is-ahead-of-what-is-done",
        promise=0,
        file="admin/migrate/moving.py",
        old="        if step is CutoverStep.TRANSLATE:\n            await write_group",
        new=(
            "        if step is CutoverStep.TRANSLATE:\n"
            "            await self._note(replace(entry, state=_DONE_BY[step]))\n            await write_group"
        ),
        tests=(_KILLED + "test_a_cutover_killed_before_its_commit_has_noted_nothing_of_it",),
    ),
    Mutant(
        name="the-first-entry-of-the-journal-counts",
        promise=0,
        file="admin/migrate/target.py",
        old="                if record_key == wanted:\n",
        new="                if record_key == wanted and found is None:\n",
        tests=(_KILLED + "test_a_cutover_killed_before_its_commit_has_noted_nothing_of_it",),
    ),
    Mutant(
        name="a-rollback-that-one-of-two-stores-has-is-complete",
        promise=0,
        file="admin/migrate/carrying_back.py",
        old="    return all(one is not None and one.believed == position for one in stored)\n",
        new="    return any(one is not None and one.believed == position for one in stored)\n",
        tests=(_KILLED + "test_a_rollback_killed_between_zookeeper_and_kafka_writes_both_again",),
    ),
    Mutant(
        name="a-rollback-returns-to-where-the-settings-say",
        promise=0,
        file="admin/migrate/carrying_back.py",
        old="    if entry is not None and entry.places:\n        return frozenset(map(Place, entry.places))\n",
        new="    if entry is not None and entry.places:\n        return frozenset(settings)\n",
        tests=(_COMMANDS + "test_a_group_with_positions_in_kafka_returns_to_kafka",),
    ),
    Mutant(
        name="a-mirror-whose-position-went-back-stops-once-only",
        promise=0,
        file=_WRITER,
        old="        known, acknowledged = self._known, self._acknowledged\n",
        new="        known, acknowledged = self._stored, self._acknowledged\n",
        tests=(_PROMISES + "test_a_mirror_whose_position_went_back_stops",),
    ),
    Mutant(
        name="positions-that-the-target-has-lost-are-believed",
        promise=0,
        file="admin/migrate/cutover.py",
        old="    if state is CutoverState.DONE and not has_lost_all(group):\n",
        new="    if state is CutoverState.DONE:\n",
        tests=(_DECISIONS + "test_the_next_step_follows_from_the_journal_and_from_both_clusters",),
    ),
    Mutant(
        name="hidden-groups-of-a-target-pass-for-none",
        promise=0,
        file="admin/group_facts.py",
        old='            return None, "; ".join(self._listed.problems.values())\n',
        new='            return None, ""\n',
        tests=(_SECURED + "test_a_group_moves_into_a_target_with_tls_and_scram_with_the_documented_rights",),
    ),
)
