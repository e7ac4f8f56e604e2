"""The mutants, by promise. A survivor is a missing test; one that does not apply any more is to be written anew."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import SIMULATION, Mutant

MUTANTS: Final = (
    Mutant(
        name="a-release-without-grace",
        promise=1,
        file="group/machine.py",
        old="            record.due = self._now + self._settings.release_grace_s\n",
        new="            record.due = self._now\n",
        tests=("tests/unit/group/test_machine.py::test_a_drained_partition_is_held_for_the_grace_and_then_released",),
    ),
    Mutant(
        name="a-watch-is-not-set-again",
        promise=1,
        file="zk/session.py",
        old="        self.watches.renew()\n",
        new="        self.watches.flush()\n",
        tests=("tests/component/zk/test_watches.py::test_watches_are_set_again_and_told_after_a_reconnect",),
    ),
    Mutant(
        name="a-fired-watch-is-not-set-again",
        promise=1,
        file="zk/watch.py",
        old=("            if watch.notes(change):\n                self._unarmed[watch] = None\n"),
        new="            if watch.notes(change):\n",
        tests=("tests/component/zk/test_watches.py::test_data_watch_tells_of_every_kind_of_change",),
    ),
    Mutant(
        name="a-conflict-is-given-up",
        promise=1,
        file="group/machine.py",
        old=(
            "                case PartitionState.CONTESTED if self._may_claim:\n"
            "                    times.append(record.due)\n"
        ),
        new=(
            "                case PartitionState.CONTESTED if self._may_claim and record.attempts <= self._settings.max_retries:\n"
            "                    times.append(record.due)\n"
        ),
        tests=("tests/unit/group/test_machine.py::test_a_starved_partition_leaves_a_timer",),
    ),
    Mutant(
        name="a-commit-into-a-topic-made-again",
        promise=1,
        file="offsets/zookeeper.py",
        old="            if stat is not None and stat.czxid == write.commit.claim.incarnation.czxid:\n",
        new="            if stat is None or stat is not None:\n",
        tests=("tests/unit/offsets/test_zookeeper.py::test_a_position_in_a_topic_that_was_made_again_is_dropped",),
    ),
    Mutant(
        name="a-member-that-comes-is-never-heard-of",
        promise=1,
        file="group/rebalancer.py",
        old='                self._watch(ids_path(self._identity.group), WatchKind.CHILDREN, self._on_change("members changed"))\n',
        new="",
        also=(
            (
                "        if unchanged:\n            await self._review",
                "        unchanged = True\n        if unchanged:\n            await self._review",
            ),
        ),
        tests=(SIMULATION,),
        stories=60,
    ),
    Mutant(
        name="offsets-read-before-the-claim",
        promise=1,
        file="offsets/zookeeper.py",
        old=("        found = await self._read_nodes(partitions)\n        for partition, stored in found.items():\n"),
        new=(
            "        known = self.__dict__.setdefault('_remembered', {})\n"
            "        known.update(await self._read_nodes([one for one in partitions if one not in known]))\n"
            "        found = {one: known[one] for one in partitions}\n"
            "        for partition, stored in found.items():\n"
        ),
        tests=(
            "tests/unit/offsets/test_zookeeper.py::test_a_claim_of_an_ended_session_commits_nothing_in_the_next_one",
            SIMULATION,
        ),
        stories=100,
    ),
    Mutant(
        name="delivered-is-committed",
        promise=1,
        file="offsets/tracker.py",
        old=("        return self._acknowledged\n\n    @property\n    def unacknowledged"),
        new=("        return self._delivered\n\n    @property\n    def unacknowledged"),
        tests=(
            "tests/property/test_offset_tracker.py::test_nothing_safe_goes_back_and_only_what_is_safe_is_offered",
            SIMULATION,
        ),
        stories=60,
    ),
    Mutant(
        name="acknowledged-goes-back",
        promise=1,
        file="offsets/tracker.py",
        old=("        if position <= self._acknowledged:\n            return False\n"),
        new=("        if position == self._acknowledged:\n            return False\n"),
        tests=("tests/unit/offsets/test_tracker.py::test_an_older_acknowledgement_changes_nothing",),
    ),
    Mutant(
        name="an-old-topics-position-counts",
        promise=1,
        file="delivery/policy.py",
        old="    return stored.mzxid > incarnation.czxid\n",
        new="    return stored.mzxid > 0 or incarnation.czxid > 0\n",
        tests=(
            "tests/unit/delivery/test_policy.py::test_an_offset_counts_from_the_transaction_after_the_one_that_made_the_topic",
            SIMULATION,
        ),
        stories=100,
    ),
    Mutant(
        name="the-end-of-the-log-is-above-it",
        promise=1,
        file="delivery/policy.py",
        old="    return log.earliest <= position <= log.latest\n",
        new="    return log.earliest <= position < log.latest\n",
        tests=("tests/unit/delivery/test_policy.py::test_an_offset_inside_the_log_or_at_its_end_is_valid",),
    ),
    Mutant(
        name="out-of-range-is-believed-at-once",
        promise=1,
        file="fetch/fetcher.py",
        old="(offset > found.latest and feed.doubted_offset == offset)",
        new="offset > found.latest",
        tests=("tests/component/fetch/test_fetcher.py::test_an_offset_above_the_log_gets_a_second_chance",),
    ),
    Mutant(
        name="a-commit-before-the-link",
        promise=1,
        file="sinks/chain_writer.py",
        old=("        self._next = batch.next_offset\n        self._charge()\n"),
        new=("        self._next = self._acknowledged = batch.next_offset\n        self._charge()\n"),
        tests=(
            "tests/unit/sinks/test_chain_writer.py::test_batch_that_cannot_be_encoded_leaves_the_chain_as_it_was",
            SIMULATION,
        ),
        stories=60,
    ),
    Mutant(
        name="acknowledged-before-fsync",
        promise=1,
        file="sinks/publish.py",
        old="        self._files.sync(descriptor)\n",
        new="        self._files.modified_ns(descriptor)\n",
        tests=(
            "tests/unit/sinks/test_sync_order.py::test_chain_is_sealed_durably_before_the_next_begins_and_begun_durably_before_it_is_written",
        ),
    ),
    Mutant(
        name="the-folder-is-not-synced",
        promise=1,
        file="sinks/publish.py",
        old="        self._files.sync_folder(self._target.parent)\n",
        new="        self._files.names(self._target.parent)\n",
        tests=(
            "tests/unit/sinks/test_sync_order.py::test_chain_is_sealed_durably_before_the_next_begins_and_begun_durably_before_it_is_written",
        ),
    ),
    Mutant(
        name="a-gap-is-not-recorded",
        promise=1,
        file="sinks/chain_writer.py",
        old="            self._summary.pass_over(Gap(chain.end, self._acknowledged, self._skipped))\n",
        new="            self._summary.next_offset = self._acknowledged\n",
        tests=("tests/unit/sinks/test_chain_writer.py::test_start_beyond_the_chains_end_is_recorded_in_the_next_file",),
    ),
    Mutant(
        name="messages-with-wrong-checksums-pass",
        promise=1,
        file="wire/modern/message_reader.py",
        old="            if crc32(data[at + 16 : stop]) != checksum:\n",
        new="            if crc32(data[at + 16 : stop]) < 0:\n",
        tests=("tests/unit/wire/test_message_set.py::test_a_fault_behind_messages_below_the_position_is_reported",),
    ),
    Mutant(
        name="batches-with-wrong-checksums-pass",
        promise=1,
        file="wire/modern/record_batch.py",
        old="    computed = span_crc32c(data, at + CHECKED_FROM, end)\n",
        new="    computed = checksum or span_crc32c(data, at + CHECKED_FROM, end)\n",
        tests=(
            "tests/unit/wire/test_record_batch.py::test_a_first_batch_that_cannot_be_read_is_an_error_with_its_coordinates",
        ),
    ),
    Mutant(
        name="kernel-messages-with-wrong-checksums-pass",
        promise=1,
        file="wire/_kernel/messages.h",
        part="messages",
        old="        if (crc32_of(message + MESSAGES_CHECKED_AT, checked) != messages_uint32(message + 12))\n",
        new="        if (checked == 0)\n",
        tests=("tests/unit/wire/test_message_set.py::test_every_damaged_byte_of_a_row_is_found",),
    ),
    Mutant(
        name="kernel-messages-may-go-back",
        promise=1,
        file="wire/_kernel/messages.h",
        part="messages",
        old="        if (offset < following || offset == INT64_MAX)",
        new="        if (offset == INT64_MAX)",
        tests=(
            "tests/unit/wire/test_contradictions.py::test_an_offset_that_was_damaged_upwards_costs_its_own_unit_alone",
        ),
    ),
    Mutant(
        name="kernel-batches-with-wrong-checksums-pass",
        promise=1,
        file="wire/_kernel/records.h",
        part="records",
        old="        if (crc32c_of(checked, (size_t)(data + head.stop - checked)) != head.checksum)\n",
        new="        if (crc32c_of(checked, 0) == 1)\n",
        tests=(
            "tests/unit/wire/test_record_batch.py::test_a_first_batch_that_cannot_be_read_is_an_error_with_its_coordinates",
        ),
    ),
    Mutant(
        name="kernel-passes-holes-by",
        promise=1,
        file="wire/_kernel/records.h",
        part="records",
        old="head->base_offset <= place->position && !overflows",
        new="!overflows",
        tests=("tests/property/test_kernel_records.py::test_they_agree_on_sets_of_every_shape",),
    ),
    Mutant(
        name="kernel-reads-over-the-end-of-a-value",
        promise=1,
        file="wire/_kernel/messages.h",
        part="messages",
        old="        if (value_length < MESSAGES_NULL || value_at + (value_length < 0 ? 0 : value_length) != stop)\n",
        new="        if (value_length < MESSAGES_NULL)\n",
        tests=(
            "tests/unit/wire/test_message_set.py::test_a_first_message_that_cannot_be_read_is_an_error_with_its_coordinates",
        ),
    ),
    Mutant(
        name="a-unit-is-passed-before-it-is-kept",
        promise=1,
        file="delivery/flow.py",
        old="            answer = await self._calls.insist(lambda: quarantine.put(kept, self._claim), heed_news=True)\n",
        new="            answer = kept\n",
        tests=("tests/unit/delivery/test_passing.py::test_the_unit_is_in_quarantine_before_the_position_moves",),
    ),
    Mutant(
        name="a-position-moves-back-past-what-is-not-safe",
        promise=1,
        file="delivery/flow.py",
        old="            if tracker.unacknowledged or tracker.delivered != error.offset:\n                return",
        new="            if False:\n                return",
        tests=(
            "tests/unit/delivery/test_new_beginnings.py::test_what_was_read_and_could_not_be_landed_is_read_again_where_it_is",
        ),
    ),
    Mutant(
        name="silence-is-damage",
        promise=1,
        file="delivery/flow.py",
        old="            raise _Unanswered\n",
        new="            return Look(at=offset)\n",
        tests=(
            "tests/unit/delivery/test_passing.py::test_a_broker_that_is_away_in_the_middle_of_the_search_costs_no_record",
        ),
    ),
    Mutant(
        name="doubt-survives-a-move",
        promise=1,
        file="fetch/cursor.py",
        old="        if self.state is CursorState.CONFIRMING:\n            self.activate()\n",
        new="",
        tests=(
            "tests/component/fetch/test_fetcher.py::test_a_leader_that_moves_during_the_confirmation_is_asked_itself",
        ),
    ),
    Mutant(
        name="metadata-names-topics",
        promise=1,
        file="cluster/from_brokers.py",
        old="    return MetadataRequest(topics=None)\n",
        new="    return MetadataRequest(topics=tuple(sorted(topics)))\n",
        tests=("tests/unit/cluster/test_from_brokers.py::test_topics_are_never_named_where_that_could_create_them",),
    ),
    Mutant(
        name="an-offset-is-believed-against-the-next",
        promise=1,
        file="wire/modern/record_set.py",
        old="        if first >= columns.end or at == begin:\n",
        new="        if first >= 0:\n",
        tests=(
            "tests/unit/wire/test_contradictions.py::test_an_offset_that_was_damaged_upwards_costs_its_own_unit_alone",
        ),
    ),
    Mutant(
        name="the-last-of-an-answer-is-believed",
        promise=1,
        file="wire/modern/record_set.py",
        old="due is not None and due > start and self.attested else batch",
        new="False else batch",
        tests=(
            "tests/unit/wire/test_contradictions.py::test_an_offset_that_was_damaged_upwards_costs_its_own_unit_alone",
        ),
    ),
    Mutant(
        name="a-piece-is-judged-alone",
        promise=1,
        file="wire/modern/record_set.py",
        old="raw=bytes(self.raw) + bytes(self.following), following",
        new="following",
        tests=("tests/unit/wire/test_contradictions.py::test_a_piece_of_an_answer_is_judged_by_what_came_behind_it",),
    ),
    Mutant(
        name="a-refused-folder-holds-up-all",
        promise=1,
        file="offsets/zookeeper.py",
        old="                refused.add(topic)\n",
        new="                raise\n",
        tests=(
            "tests/unit/offsets/test_zookeeper.py::test_a_folder_that_may_not_be_made_does_not_hold_up_other_topics",
        ),
    ),
    Mutant(
        name="a-request-leaves-out-what-was-dropped",
        promise=1,
        file="delivery/pipeline.py",
        old="if not await flow.secure_all():\n",
        new="if not await flow.secure():\n",
        tests=(
            "tests/unit/delivery/test_requests.py::test_what_the_sink_drops_when_a_request_comes_is_read_again_first",
        ),
    ),
    Mutant(
        name="a-request-is-seen-once",
        promise=1,
        file="delivery/pipeline.py",
        old="self._attention.doubt()  # it is not carried out yet",
        new="pass  # it is not carried out yet",
        tests=("tests/unit/delivery/test_requests.py::test_a_request_is_carried_out_though_what_was_dropped_is_gone",),
    ),
    Mutant(
        name="the-search-trusts-its-steps",
        promise=1,
        file="delivery/search.py",
        old="        if other.at - one.at <= 1 or one.meets_same(other):\n",
        new="        if other.at - one.at <= 1 or other.readable is None:\n",
        tests=("tests/unit/delivery/test_search.py::test_nothing_that_can_be_read_is_passed_over",),
    ),
    Mutant(
        name="an-oversized-unit-is-passed-as-corrupt",
        promise=1,
        file="delivery/flow.py",
        old="        return too_large or self._settings.on_corrupt != self._settings.on_oversized\n",
        new="        return False\n",
        tests=(
            "tests/unit/delivery/test_passing.py::test_a_unit_behind_a_damaged_one_is_dealt_with_by_its_own_policy",
        ),
    ),
    Mutant(
        name="an-oversized-unit-is-passed-under-stop",
        promise=1,
        file="delivery/flow.py",
        old='        if policy == "stop":\n            raise error\n        start = self',
        new='        if policy == "stop" and corrupt:\n            raise error\n        start = self',
        tests=(
            "tests/unit/delivery/test_failures.py::test_an_unreadable_record_stops_that_partition_and_what_came_before_is_flushed_at_once",
        ),
    ),
    Mutant(
        name="an-unreadable-member-raises",
        promise=1,
        file="group/registry.py",
        old="            return MemberView(consumer=consumer, session_id=stat.ephemeral_owner, registration=None, problem=str(error))\n",
        new="            raise\n",
        tests=(
            "tests/component/group/test_foreign_data.py::test_members_that_cannot_be_read_take_no_part_and_are_told",
        ),
    ),
    Mutant(
        name="the-chain-does-not-win",
        promise=2,
        file="delivery/policy.py",
        old="    return StartAt(position=resume, committed=committed, reason=StartReason.LANDED, behind=behind)\n",
        new=(
            "    return StartAt(\n"
            "        position=resume if committed is None else committed, committed=committed, reason=StartReason.LANDED, behind=behind\n"
            "    )\n"
        ),
        tests=("tests/unit/delivery/test_policy.py::test_the_landed_end_wins_over_a_committed_offset_behind_it",),
    ),
    Mutant(
        name="a-publish-without-the-incarnation",
        promise=2,
        file="group/claims.py",
        old="        if stat.czxid != self._incarnation.czxid:\n",
        new="        if stat.czxid < 0:\n",
        tests=(
            "tests/unit/group/test_rebalancer.py::test_a_topic_made_again_is_lost_and_claimed_with_its_new_incarnation",
            SIMULATION,
        ),
        stories=200,
    ),
    Mutant(
        name="a-truncated-log-in-the-same-incarnation",
        promise=2,
        file="delivery/start.py",
        old="        new_chain=True,\n        truncated=True,\n",
        new="        new_chain=True,\n        truncated=False,\n",
        tests=(
            "tests/unit/delivery/test_new_beginnings.py::test_what_stopped_a_partition_is_over_when_the_log_has_lost_it",
            SIMULATION,
        ),
        stories=100,
    ),
    Mutant(
        name="a-link-that-replaces",
        promise=2,
        file="sinks/filesystem.py",
        old="        os.link(source, target)\n",
        new="        os.replace(source, target)\n",
        tests=("tests/unit/sinks/test_chain_writer.py::test_name_taken_by_another_writer_moves_the_owner_behind_it",),
    ),
    Mutant(
        name="a-taken-name-counts-as-ours",
        promise=2,
        file="sinks/publish.py",
        old=(
            "            if not self._files.is_same(self._descriptor, self._target):\n"
            "                return Outcome.TAKEN\n"
        ),
        new=("            if self._descriptor is None:\n                return Outcome.TAKEN\n"),
        tests=("tests/unit/sinks/test_chain_writer.py::test_hidden_leftovers_are_removed_by_the_next_claim",),
    ),
    Mutant(
        name="an-unknown-link-is-not-looked-up",
        promise=2,
        file="sinks/chain_writer.py",
        old="            self._stale = True\n",
        new="            self._stale = False\n",
        tests=("tests/unit/sinks/test_chain_writer.py::test_chain_that_vanished_is_told_and_nothing_is_acknowledged",),
    ),
    Mutant(
        name="hidden-files-stay",
        promise=2,
        file="sinks/publish.py",
        old=("        remove_hidden(files, folder)\n        remove_hidden(files, folder / META_FOLDER)\n"),
        new="        remove_hidden(files, folder / META_FOLDER)\n",
        tests=("tests/unit/sinks/test_chain_writer.py::test_hidden_leftovers_are_removed_by_the_next_claim",),
    ),
    Mutant(
        name="records-below-the-position-stay",
        promise=2,
        file="wire/columns.py",
        old="        below = bisect_left(self.offsets, self.start)\n",
        new="        below = 0\n",
        tests=("tests/unit/wire/test_record_batch.py::test_a_batch_below_the_position_is_no_progress",),
    ),
    Mutant(
        name="a-chain-begins-behind-one-without-a-seal",
        promise=2,
        file="sinks/chain_succession.py",
        old="newest.sealed or await self._seal(newest)",
        new="True",
        tests=(
            "tests/unit/sinks/test_chain_succession.py::test_stalled_writer_never_adds_to_a_sealed_chain",
            SIMULATION,
        ),
        stories=100,
    ),
    Mutant(
        name="a-seal-is-taken-for-a-file",
        promise=2,
        file="sinks/chain_succession.py",
        old="        if found.number == known.number:\n            return\n",
        new="        return\n",
        tests=("tests/unit/sinks/test_chain_succession.py::test_stalled_writer_never_adds_to_a_sealed_chain",),
    ),
    Mutant(
        name="a-request-is-carried-out-twice",
        promise=2,
        file="sinks/chain_succession.py",
        old="    if start.request_id is not None:\n        return record.request_id == start.request_id\n",
        new="",
        tests=(
            "tests/unit/sinks/test_chain_succession.py::test_request_that_was_carried_out_is_not_carried_out_again",
        ),
    ),
    Mutant(
        name="a-file-on-another-volume",
        promise=2,
        file="sinks/chain_store.py",
        old="        self._root.require()\n        return file.publish()\n",
        new="        return file.publish()\n",
        tests=("tests/unit/sinks/test_sync_order.py::test_empty_file_takes_the_same_steps",),
    ),
    Mutant(
        name="an-unmounted-volume-is-a-new-path",
        promise=2,
        file="sinks/chain_root.py",
        old="if found is None and recorded is not None:",
        new="if False:",
        tests=(
            "tests/unit/sinks/test_chain_root.py::test_path_that_lacks_the_remembered_root_is_refused_until_it_is_mounted",
        ),
    ),
    Mutant(
        name="aborted-records-are-delivered",
        promise=2,
        file="wire/modern/record_batch.py",
        old="    if of_aborted and attributes & TRANSACTIONAL_FLAG:\n",
        new="    if of_aborted and attributes & CONTROL_FLAG:\n",
        tests=(
            "tests/unit/wire/test_record_batch.py::test_aborted_transactions_are_left_out_under_read_committed_alone",
        ),
    ),
    Mutant(
        name="kernel-delivers-control-records",
        promise=2,
        file="wire/_kernel/records.h",
        part="records",
        old="    if (attributes & (CODEC_MASK | CONTROL) ||",
        new="    if (attributes & CODEC_MASK ||",
        tests=("tests/unit/wire/test_record_batch.py::test_control_batches_are_gaps_and_never_records",),
    ),
    Mutant(
        name="kernel-delivers-aborted-records",
        promise=2,
        file="wire/_kernel/records.h",
        part="records",
        old=" || (attributes & TRANSACTIONAL && !place->transactional))\n",
        new=")\n",
        tests=(
            "tests/unit/wire/test_record_batch.py::test_aborted_transactions_are_left_out_under_read_committed_alone",
        ),
    ),
    Mutant(
        name="a-truncated-log-goes-on-in-its-chain",
        promise=2,
        file="sinks/chain_succession.py",
        old="        return not start.new_chain or _was_begun_for(chain, start)\n",
        new="        return not start.new_chain or start.truncated or _was_begun_for(chain, start)\n",
        tests=("tests/unit/sinks/test_chain_succession.py::test_truncated_log_begins_a_chain_of_the_next_truncation",),
    ),
    Mutant(
        name="a-lease-never-expires",
        promise=3,
        file="zk/lease.py",
        old=(
            "        age = self.age(now)\n"
            "        if age < _PAUSED_FROM * self.timeout_s:\n"
            "            return LeasePhase.FRESH\n"
            "        return"
        ),
        new=("        age = self.age(now)\n        if age >= 0:\n            return LeasePhase.FRESH\n        return"),
        tests=("tests/unit/zk/test_lease.py::test_next_change_is_when_the_phase_changes", SIMULATION),
        stories=60,
    ),
    Mutant(
        name="a-lease-runs-from-the-answer",
        promise=3,
        file="zk/lease.py",
        old="        self._sent_at = max(self._sent_at, sent_at)\n",
        new="        self._sent_at = max(self._sent_at, sent_at) + self.timeout_s / 4\n",
        tests=("tests/unit/zk/test_lease.py::test_answers_out_of_order_never_shorten_it",),
    ),
    Mutant(
        name="a-claim-outlives-its-lease",
        promise=3,
        file="group/claims.py",
        old="if state.phase is not LeasePhase.FRESH or self._held:",
        new="if self._held:",
        tests=("tests/unit/group/test_rebalancer.py::test_a_silence_short_of_the_session_repeats_nothing", SIMULATION),
        stories=60,
    ),
    Mutant(
        name="a-claim-outlives-its-session",
        promise=3,
        file="group/claims.py",
        old="        if state.epoch != self._epoch or state.phase is LeasePhase.NONE:\n",
        new="        if state.phase is LeasePhase.NONE:\n",
        tests=(
            "tests/unit/group/test_rebalancer.py::test_a_new_session_loses_all_and_registers_under_a_new_id",
            SIMULATION,
        ),
        stories=60,
    ),
    Mutant(
        name="a-claim-without-the-second-read",
        promise=3,
        file="group/rebalancer.py",
        old="            return await self._registry.is_current(effect.stamp, topics)\n",
        new=("            await self._registry.is_current(effect.stamp, topics)\n            return True\n"),
        also=(
            (
                '                self._watch(ids_path(self._identity.group), WatchKind.CHILDREN, self._on_change("members changed"))\n',
                "",
            ),
        ),
        tests=("tests/unit/group/test_rebalancer.py::test_what_was_claimed_by_an_old_view_is_never_begun_with",),
    ),
    Mutant(
        name="a-claim-told-by-its-data",
        promise=3,
        file="group/owners.py",
        old=("        if stat.ephemeral_owner != get_session_id(self._zk, epoch):\n            return Taken"),
        new=("        if data != encode_owner(thread):\n            return Taken"),
        tests=("tests/unit/group/test_nodes.py::test_a_node_of_our_session_with_another_thread_is_rewritten",),
    ),
    Mutant(
        name="a-release-of-somebody-elses-node",
        promise=3,
        file="group/owners.py",
        old=(
            "                if stat is None or stat.ephemeral_owner != get_session_id(self._zk, epoch):\n"
            "                    return True\n"
        ),
        new=("                if stat is None:\n                    return True\n"),
        tests=("tests/unit/group/test_nodes.py::test_only_what_is_ours_is_released",),
    ),
    Mutant(
        name="a-suspended-member-goes-on",
        promise=3,
        file="group/rebalancer.py",
        old="                self._hold(self._claims, held=True)\n",
        new="                self._hold((), held=True)\n",
        tests=(
            "tests/unit/group/test_rebalancer.py::test_after_a_suspension_nothing_is_used_before_its_owner_node_was_seen",
            SIMULATION,
        ),
        stories=120,
    ),
    Mutant(
        name="a-deleted-owner-node-is-not-noticed",
        promise=3,
        file="group/machine.py",
        old="            if record.state in HELD and (node is None or node.session_id != session_id):\n",
        new="            if record.state in HELD and node is not None and node.session_id == -1:\n",
        tests=("tests/unit/group/test_rebalancer.py::test_a_stray_owner_node_of_our_session_is_found_and_released",),
    ),
    Mutant(
        name="a-session-ends-and-claims-stay",
        promise=3,
        file="group/machine.py",
        old=("        if over and self._epoch != NO_SESSION:\n            self._end_session()\n"),
        new=(
            "        if over and self._epoch != NO_SESSION and epoch == NO_SESSION:\n            self._end_session()\n"
        ),
        tests=("tests/unit/group/test_machine.py::test_a_new_session_loses_everything_and_registers_anew",),
    ),
    Mutant(
        name="an-unconditional-commit",
        promise=3,
        file="offsets/zookeeper.py",
        old="SetData(self.path, data, version)",
        new="SetData(self.path, data, -1)",
        tests=(
            "tests/unit/offsets/test_zookeeper.py::test_a_commit_over_another_owners_write_is_dropped_and_the_rest_goes_out",
        ),
    ),
    Mutant(
        name="a-commit-in-any-session",
        promise=3,
        file="offsets/zookeeper.py",
        old="stats = await self._zk.multi([operation for _, operation in operations], epoch=epoch)",
        new="stats = await self._zk.multi([operation for _, operation in operations])",
        tests=(
            "tests/unit/offsets/test_zookeeper.py::test_a_claim_of_an_ended_session_commits_nothing_in_the_next_one",
            SIMULATION,
        ),
        stories=160,
    ),
    Mutant(
        name="a-commit-after-the-lease",
        promise=3,
        file="offsets/zookeeper.py",
        old="                write.commit.claim.check()\n",
        new="                write.commit.claim.usable  # noqa: B018\n",
        tests=("tests/unit/offsets/test_zookeeper.py::test_a_lease_that_pauses_or_ends_sends_nothing",),
    ),
    Mutant(
        name="a-commit-over-another-owners",
        promise=3,
        file="offsets/zookeeper.py",
        old="            if stat is not None and stat.ephemeral_owner == state.session_id\n",
        new="            if stat is None or stat is not None\n",
        tests=(
            "tests/unit/offsets/test_zookeeper.py::test_a_commit_over_another_owners_write_is_dropped_and_the_rest_goes_out",
        ),
    ),
    Mutant(
        name="a-bad-greeting-ends-the-session",
        promise=3,
        file="zk/session.py",
        old='        except ValueError as error:\n            raise _AttachFailed(f"no ZooKeeper server',
        new='        except ValueError as error:\n            self._end_session()\n            raise _AttachFailed(f"no ZooKeeper server',
        tests=("tests/component/zk/test_hostile_servers.py::test_a_session_outlives_what_greets_like_no_zookeeper",),
    ),
    Mutant(
        name="a-new-session-in-the-old-epoch",
        promise=3,
        file="zk/session.py",
        old="            self._epoch = SessionEpoch(self._epoch + 1)\n",
        new="            self._epoch = self._epoch or SessionEpoch(1)\n",
        tests=("tests/component/zk/test_hostile_servers.py::test_expiry_told_by_an_answer_begins_a_new_epoch",),
    ),
    Mutant(
        name="a-lease-stops-while-the-machine-sleeps",
        promise=3,
        file="daemon/access.py",
        old="        now=boottime,\n",
        new="        now=monotonic,\n",
        tests=("tests/component/daemon/test_access.py::test_the_lease_runs_on_a_clock_that_counts_suspension",),
    ),
    Mutant(
        name="memory-is-not-charged",
        promise=4,
        file="fetch/buffer.py",
        old=("        self._held += size\n        self._kinds[_RESERVED_AS[lane]] += size\n        return Hold"),
        new=("        self._kinds[_RESERVED_AS[lane]] += size\n        return Hold"),
        tests=("tests/unit/fetch/test_buffer.py::test_a_part_larger_than_the_rest_is_charged_in_full",),
    ),
    Mutant(
        name="decompression-has-no-limit",
        promise=4,
        file="wire/compression.py",
        old="    member = zlib.decompressobj(wbits=31)\n    try:\n        piece = member.decompress(data, left + 1)\n",
        new="    member = zlib.decompressobj(wbits=31)\n    try:\n        piece = member.decompress(data)[:left]\n",
        tests=("tests/unit/wire/test_compression.py::test_a_bomb_costs_no_more_memory_than_the_limit_allows",),
    ),
    Mutant(
        name="a-full-partition-is-asked-for",
        promise=4,
        file="fetch/buffer.py",
        old=(
            "        self._full = self.held_bytes > (marks.low if self._full else marks.high)\n"
            "        return self._full\n"
        ),
        new=(
            "        self._full = self.held_bytes > (marks.low if self._full else marks.high)\n        return False\n"
        ),
        tests=(
            "tests/unit/fetch/test_buffer.py::test_a_partition_is_full_above_the_high_mark_until_it_falls_to_the_low_one",
        ),
    ),
    Mutant(
        name="what-sinks-hold-is-not-charged",
        promise=4,
        file="sinks/chain_store.py",
        old="            self._context.charge(difference)\n",
        new="            self._context.charge(0)\n",
        tests=("tests/unit/sinks/test_parquet.py::test_row_groups_are_written_when_there_is_enough",),
    ),
    Mutant(
        name="a-failing-sink-is-silent",
        promise=5,
        file="delivery/condition.py",
        old='            self._log.warning("delivery_failing", error=str(error))\n',
        new="",
        tests=(
            "tests/unit/delivery/test_failures.py::test_a_write_that_fails_for_a_while_is_made_again_and_only_its_partition_waits",
        ),
    ),
    Mutant(
        name="a-sinks-failure-is-not-counted",
        promise=5,
        file="delivery/condition.py",
        old="        self._hooks.sink_failed(self._partition, self._sink, retriable=retriable)\n",
        new="        del retriable\n",
        tests=(
            "tests/unit/delivery/test_failures.py::test_a_write_that_fails_for_a_while_is_made_again_and_only_its_partition_waits",
        ),
    ),
    Mutant(
        name="a-stopped-partition-is-silent",
        promise=5,
        file="delivery/condition.py",
        old="        self._hooks.partition_stopped(self._partition, stop.cause.value)\n",
        new="",
        tests=(
            "tests/unit/delivery/test_starts.py::test_a_sink_that_refuses_to_open_stops_the_partition_until_it_does_not",
        ),
    ),
    Mutant(
        name="a-gap-is-not-counted",
        promise=5,
        file="delivery/condition.py",
        old="        self._hooks.gap_recorded(self._partition, gap)\n",
        new="        del gap\n",
        tests=("tests/unit/delivery/test_failures.py::test_below_the_log_the_policy_skips_and_the_gap_is_delivered",),
    ),
    Mutant(
        name="a-lost-partition-is-silent",
        promise=5,
        file="group/rebalancer.py",
        old="            self._hooks.ownership_lost(partition, effect.reason)\n",
        new="",
        tests=("tests/unit/group/test_rebalancer.py::test_a_lost_partition_is_told_to_the_log_and_to_the_hooks",),
    ),
    Mutant(
        name="a-failed-commit-is-not-counted",
        promise=5,
        file="delivery/committer.py",
        old=("            self._hooks.commit_failed(partition, outcome.value)\n            return\n"),
        new="            return\n",
        tests=("tests/unit/delivery/test_committer.py::test_a_failed_commit_is_tried_again_with_the_newest_position",),
    ),
    Mutant(
        name="only-the-log-hears-of-a-flush-that-failed",
        promise=5,
        file="delivery/flow.py",
        old="            self._hooks.trouble(Trouble.STOP_FLUSH_FAILED, str(error), self._partition)\n",
        new="",
        tests=(
            "tests/architecture/test_failures_are_shown.py::test_whoever_logs_a_trouble_tells_it_in_the_same_function",
        ),
    ),
    Mutant(
        name="a-warning-that-only-the-log-knows",
        promise=5,
        file="zk/session.py",
        old='            log.warning("zookeeper_history_forgotten", last_zxid=self._last_zxid)\n',
        new='            log.warning("zookeeper_history_lost", last_zxid=self._last_zxid)\n',
        tests=(
            "tests/architecture/test_failures_are_shown.py::test_every_warning_and_error_is_also_counted_and_on_the_page",
        ),
    ),
    Mutant(
        name="a-hook-that-counts-nothing",
        promise=5,
        file="telemetry/metrics.py",
        old="        self._troubles.labels(kind.value).inc()\n",
        new="        self._troubles.labels(kind.value)\n",
        tests=("tests/architecture/test_failures_are_shown.py::test_each_hook_moves_a_series_and_leaves_a_line",),
    ),
    Mutant(
        name="a-page-without-the-last-events",
        promise=5,
        file="daemon/page.py",
        old="    yield _table(_EVENTS, _event_rows(status))\n",
        new="    yield _table(_EVENTS, ())\n",
        tests=("tests/architecture/test_failures_are_shown.py::test_each_hook_moves_a_series_and_leaves_a_line",),
    ),
    Mutant(
        name="a-page-that-does-not-say-why-it-is-not-ready",
        promise=5,
        file="daemon/page.py",
        old='        ("Not ready", status.not_ready),\n',
        new='        ("Not ready", ()),\n',
        tests=(
            "tests/architecture/test_failures_are_shown.py::test_what_the_status_shows_has_a_gauge_and_a_place_on_the_page",
        ),
    ),
    Mutant(
        name="a-part-that-is-given-no-hooks",
        promise=5,
        file="daemon/assemble.py",
        old="        requests = ZooKeeperOffsetRequests(access.zk, settings.group.id, hooks=self._hooks)\n",
        new="        requests = ZooKeeperOffsetRequests(access.zk, settings.group.id)\n",
        tests=(
            "tests/architecture/test_failures_are_shown.py::test_the_daemon_gives_its_hooks_to_everybody_who_takes_some",
        ),
    ),
    Mutant(
        name="a-hook-that-is-not-called",
        promise=5,
        file="delivery/committer.py",
        old="            self._hooks.foreign_commit(partition, commit.position)\n",
        new="            pass\n",
        tests=(
            "tests/architecture/test_failures_are_shown.py::test_the_hook_that_is_said_to_tell_of_an_event_is_called",
        ),
    ),
    Mutant(
        name="everything-is-drained-at-each-change",
        promise=6,
        file="group/machine.py",
        old=(
            "    def _on_changed(self, cause: str) -> None:\n"
            "        match self._state:\n"
            "            case MemberState.FOLLOWING:\n"
        ),
        new=(
            "    def _on_changed(self, cause: str) -> None:\n"
            "        match self._state:\n"
            "            case MemberState.FOLLOWING:\n"
            "                self._grants = {}\n"
        ),
        tests=(
            "tests/unit/group/test_machine.py::test_only_what_moves_is_drained",
            SIMULATION,
        ),
        stories=100,
    ),
    Mutant(
        name="a-drain-holds-every-claim",
        promise=6,
        file="group/rebalancer.py",
        old="                self._start(self._drain(effect))\n",
        new=("                self._hold(self._claims, held=True)\n                self._start(self._drain(effect))\n"),
        tests=(
            "tests/unit/group/test_rebalancer.py::test_only_what_moves_stops_when_a_member_joins",
            SIMULATION,
        ),
        stories=60,
    ),
    Mutant(
        name="a-drain-ends-whatever-runs",
        promise=6,
        file="delivery/deliveries.py",
        old="            for running in ending.values():\n                if not running.pipeline.drain():\n",
        new="            for running in self._running.values():\n                if not running.pipeline.drain():\n",
        tests=("tests/unit/delivery/test_claims.py::test_a_drain_flushes_commits_and_ends_at_once",),
    ),
    Mutant(
        name="another-thread-of-ours-is-a-new-claim",
        promise=6,
        file="group/machine.py",
        old=(
            "                if not record.op and record.due <= self._now and self._can_ask:\n"
            "                    self._batch.threads[partition] = grant.thread\n"
        ),
        new=(
            "                self._step(partition, record, PartitionTrigger.DENY)\n"
            "                self._batch.drains.add(partition)\n"
        ),
        tests=("tests/unit/group/test_machine.py::test_another_thread_of_ours_takes_over_without_a_pause",),
    ),
    Mutant(
        name="a-member-that-is-not-listed-lets-everything-go",
        promise=6,
        file="group/machine.py",
        old=('            self._open_pass("our registration is gone")\n            self._consumer = None\n'),
        new=(
            '            self._open_pass("our registration is gone")\n'
            "            for partition, record in list(self._records.items()):\n"
            '                self._drop(partition, record, PartitionTrigger.RENEW, "we are not listed")\n'
            "            self._consumer = None\n"
        ),
        tests=("tests/unit/group/test_machine.py::test_our_missing_registration_is_made_again_while_partitions_flow",),
    ),
    Mutant(
        name="a-log-is-recovered-without-its-checksums",
        promise=7,
        file="embedded/log/segment.py",
        old="                if header.last_offset >= checked_from and not walker.is_intact(header):\n                    return\n",
        new="",
        tests=("tests/property/test_log_crashes.py::test_power_may_go_at_every_write[2]",),
    ),
    Mutant(
        name="offsets-of-a-recovered-log-need-not-rise",
        promise=7,
        file="embedded/log/segment.py",
        old="not self.next_offset <= header.offset <= header.last_offset <= most",
        new="not header.last_offset <= most",
        tests=("tests/unit/embedded/log/test_log_directory.py::test_a_stale_block_that_holds_whole_units_is_cut_off",),
    ),
    Mutant(
        name="a-segment-begins-before-the-last-one-is-durable",
        promise=7,
        file="embedded/log/partition_log.py",
        old="        self._sync(active)\n        segment = Segment(",
        new="        segment = Segment(",
        tests=("tests/property/test_log_crashes.py::test_power_may_go_at_every_write[2]",),
    ),
    Mutant(
        name="half-of-a-failed-write-stays",
        promise=7,
        file="embedded/log/partition_log.py",
        old="                active.cut()\n",
        new="                pass\n",
        tests=("tests/property/test_log_crashes.py::TestCrashingLog",),
    ),
    Mutant(
        name="a-failed-fsync-is-forgiven",
        promise=7,
        file="embedded/log/partition_log.py",
        old='            self._fail(f"fsync failed, so that nobody knows what is durable: {error}", error)\n',
        new='            self._refuse(error, "fsync failed")\n',
        tests=("tests/property/test_log_crashes.py::TestCrashingLog",),
    ),
    Mutant(
        name="the-next-fsync-is-believed",
        promise=7,
        file="embedded/log/recovery.py",
        old="            _write_again(segment, files, known)\n",
        new="            pass\n",
        tests=(
            "tests/unit/embedded/log/test_log_directory.py::test_an_offline_log_is_opened_anew_in_the_same_directory",
        ),
    ),
    Mutant(
        name="a-compacted-segment-takes-its-place-before-it-is-durable",
        promise=7,
        file="embedded/log/compaction.py",
        old="        target.sync()\n",
        new="",
        tests=("tests/property/test_log_crashes.py::test_power_may_go_at_every_write_of_a_compaction[2]",),
    ),
    Mutant(
        name="a-bad-index-is-believed",
        promise=7,
        file="embedded/log/index.py",
        old="    return all(before < after for before, after in pairwise(numbers))\n",
        new="    return True\n",
        tests=("tests/unit/embedded/log/test_log_directory.py::test_an_index_that_is_missing_or_bad_is_made_anew",),
    ),
    Mutant(
        name="retention-closes-what-is-being-sent",
        promise=7,
        file="embedded/log/slices.py",
        old="            if self._users:\n                return\n",
        new="            pass\n",
        tests=("tests/unit/embedded/log/test_log_reading.py::test_a_slice_outlives_its_segment",),
    ),
    Mutant(
        name="segments-are-deleted-without-an-order",
        promise=7,
        file="embedded/log/partition_log.py",
        old="                    oldest.remove()\n                    self._files.sync_folder(self.folder)\n",
        new="                    oldest.remove()\n",
        tests=("tests/unit/embedded/log/test_log_cleaning.py::test_segments_go_one_at_a_time_and_oldest_first",),
    ),
    Mutant(
        name="a-failed-batch-goes-behind-the-next",
        promise=8,
        file="client/accumulator.py",
        old="        batch.last_failure = failure\n",
        new="        batch.last_failure = failure\n        batch.queue.batches.rotate(-1)\n",
        tests=("tests/unit/client/test_producer.py::test_a_failed_batch_goes_again_before_any_later_one",),
    ),
    Mutant(
        name="two-batches-of-a-partition-in-flight",
        promise=8,
        file="client/accumulator.py",
        old="            if not queue.in_flight:\n",
        new="            if True:\n",
        tests=("tests/property/test_producer.py::test_the_accumulator_keeps_its_bound_and_its_order",),
    ),
    Mutant(
        name="halves-change-places",
        promise=8,
        file="client/accumulator.py",
        old="extendleft((right, left))",
        new="extendleft((left, right))",
        tests=("tests/unit/client/test_producer.py::test_hooks_and_cut_batches_go_together",),
    ),
    Mutant(
        name="room-of-halves-is-never-given-back",
        promise=8,
        file="client/accumulator.py",
        old="        right.charged_bytes = batch.charged_bytes\n",
        new="",
        tests=("tests/unit/client/test_producer.py::test_a_batch_that_is_too_large_is_cut_down_to_the_record_that_is",),
    ),
    Mutant(
        name="room-of-who-is-cancelled-is-lost",
        promise=8,
        file="client/room.py",
        old="                self._accumulator.give_back(size)\n            elif",
        new="                pass\n            elif",
        tests=(
            "tests/unit/client/test_producer.py::test_a_call_cancelled_in_the_moment_it_is_let_in_gives_its_room_back",
        ),
    ),
    Mutant(
        name="a-lost-answer-counts-as-a-refusal",
        promise=8,
        file="client/sender.py",
        old="isinstance(failure, (ConnectionLost, RemoteProtocolError)) or (",
        new="isinstance(failure, RemoteProtocolError) or (",
        tests=("tests/unit/client/test_producer.py::test_a_lost_answer_repeats_records_and_reorders_none",),
    ),
    Mutant(
        name="the-newest-request-is-answered-first",
        promise=9,
        file="embedded/connection.py",
        old="self._frames.popleft()",
        new="self._frames.pop()",
        tests=("tests/component/embedded/test_broker_server.py::test_many_pipelined_requests_leave_others_their_turn",),
    ),
    Mutant(
        name="an-answer-that-was-not-asked-for",
        promise=9,
        file="embedded/dispatch.py",
        old="        if not request.expects_response:\n            return None\n",
        new="",
        tests=("tests/component/embedded/test_broker_server.py::test_produce_without_acks_is_not_answered",),
    ),
    Mutant(
        name="an-append-wakes-one-poll-of-many",
        promise=9,
        file="embedded/long_polls.py",
        old="        for poll in self._waiting.get(partition, ()):\n            poll.count",
        new="        for poll in list(self._waiting.get(partition, ()))[:1]:\n            poll.count",
        tests=("tests/unit/embedded/test_long_polls.py::test_every_poll_hears_of_an_append_and_of_no_other_partition",),
    ),
    Mutant(
        name="growth-is-what-was-sent",
        promise=9,
        file="embedded/appending.py",
        old="lambda appended: appended.size_bytes",
        new="lambda _: len(record_set)",
        tests=("tests/unit/embedded/test_appending.py::test_growth_is_what_was_written_not_what_was_sent",),
    ),
    Mutant(
        name="a-fetch-waits-at-the-end-of-an-older-segment",
        promise=9,
        file="embedded/handlers/fetch.py",
        old="found.size > 0 and offset < log.newest_segment_offset",
        new="False",
        tests=("tests/unit/embedded/test_fetch_handler.py::test_does_not_wait_at_the_end_of_an_older_segment",),
    ),
    Mutant(
        name="slices-stay-open-behind-a-fault",
        promise=9,
        file="embedded/handlers/fetch.py",
        old="            self._read_into(reading, request, version)\n        except BaseException:\n            reading.close()\n",
        new="            self._read_into(reading, request, version)\n        except BaseException:\n",
        tests=("tests/unit/embedded/test_fetch_handler.py::test_nothing_stays_open_behind_a_fault_of_our_own",),
    ),
    Mutant(
        name="a-reply-that-is-cut-off-keeps-its-file",
        promise=9,
        file="embedded/connection.py",
        old="        finally:\n            reply.close()\n",
        new="        finally:\n            pass\n",
        tests=("tests/component/embedded/test_broker_server.py::test_end_of_service_waits_for_no_poll_and_no_reader",),
    ),
    Mutant(
        name="a-failed-disk-in-words-of-a-later-time",
        promise=9,
        file="embedded/handlers/produce.py",
        old="refused_produce(number, old_code_of(error))",
        new="refused_produce(number, ErrorCode.KAFKA_STORAGE_ERROR)",
        tests=("tests/component/embedded/test_broker_faults.py::test_full_disk_refuses_records_until_there_is_room",),
    ),
    Mutant(
        name="an-error-without-acks-goes-unsaid",
        promise=9,
        file="embedded/handlers/produce.py",
        old="        if request.acks == ACKS_NONE:\n            _check_no_error(response)\n",
        new="",
        tests=(
            "tests/component/embedded/test_broker_faults.py::test_full_disk_costs_a_producer_without_acks_its_connection",
        ),
    ),
    Mutant(
        name="requests-of-all-connections-are-unbounded",
        promise=9,
        file="embedded/request_memory.py",
        old="return not self.taken_bytes or self.taken_bytes + size <= self._limit_bytes",
        new="return True",
        tests=(
            "tests/component/embedded/test_broker_server.py::test_what_all_connections_have_sent_is_bounded_together",
        ),
    ),
    Mutant(
        name="a-connection-that-is-worked-for-counts-as-idle",
        promise=9,
        file="embedded/connection.py",
        old="waits_for_us = self._arrival is None or self._waits_for_room",
        new="waits_for_us = False",
        tests=(
            "tests/component/embedded/test_broker_server.py::test_connection_that_says_nothing_is_given_up_unless_it_waits_for_us",
        ),
    ),
)
