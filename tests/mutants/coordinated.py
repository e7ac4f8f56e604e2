# SPDX-License-Identifier: Apache-2.0
"""Mutants of the membership that brokers coordinate."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import COORDINATED_STORIES, Mutant

_MACHINE: Final = "tests/unit/group/classic/test_classic_machine.py::"
_ASSIGNMENT: Final = "tests/unit/group/classic/test_classic_assignment.py::"
_FILE: Final = "group/classic/machine.py"

COORDINATED: Final = (
    Mutant(
        name="a-coordinated-member-joins-again-without-a-drain",
        promise=2,
        file=_FILE,
        old="        self._stop_identifying()\n        self._begin_drain()\n",
        new="        self._stop_identifying()\n        self._end_drain()\n",
        tests=(_MACHINE + "test_a_rebalance_drains_everything_and_joins_again",),
    ),
    Mutant(
        name="a-fenced-member-keeps-its-claims",
        promise=3,
        file=_FILE,
        old="        self._owned = self._owned - partitions\n",
        new="        partitions -= partitions\n",
        tests=(_MACHINE + "test_a_fenced_member_drops_everything_at_once_and_joins_again",),
    ),
    Mutant(
        name="a-removed-member-joins-with-the-id-that-nobody-knows",
        promise=1,
        file=_FILE,
        old="        self._request, self._joined = 0, None\n",
        new="        self._request, self._joined = 0, None\n        refusal = Refusal.FENCED\n",
        tests=(_MACHINE + "test_failed_joins_are_tried_again",),
    ),
    Mutant(
        name="a-member-forgets-its-id-at-each-join",
        promise=1,
        file=_FILE,
        old="            self._effects.append(JoinGroup(self._request, self._member_id))\n",
        new='            self._effects.append(JoinGroup(self._request, ""))\n',
        tests=(_MACHINE + "test_first_join_has_no_member_id_and_later_ones_keep_it",),
    ),
    Mutant(
        name="the-lease-of-a-generation-runs-from-the-answer",
        promise=3,
        file=_FILE,
        old="            self._lease.renew(ended.sent_at)\n",
        new="            self._lease.renew(self._now)\n",
        tests=(_MACHINE + "test_the_lease_runs_from_the_sending_of_what_was_answered",),
    ),
    Mutant(
        name="a-drain-that-hangs-keeps-its-lease",
        promise=3,
        file=_FILE,
        old="        if ended.refusal is None:\n            self._rebalance_lease",
        new="        if ended.refusal is not Refusal.REFUSED:\n            self._rebalance_lease",
        tests=(_MACHINE + "test_a_drain_that_hangs_loses_its_lease_although_heartbeats_are_answered",),
    ),
    Mutant(
        name="the-rebalance-timeout-ends-no-claim",
        promise=3,
        file=_FILE,
        old="        phases = {self._lease.phase(now), self._rebalance_lease.phase(now)}\n",
        new="        phases = {self._lease.phase(now)}\n",
        tests=(_MACHINE + "test_a_silence_longer_than_the_rebalance_timeout_suspends_claims", COORDINATED_STORIES),
    ),
    Mutant(
        name="a-drain-stops-the-heartbeats",
        promise=3,
        file=_FILE,
        old="        if self._lease is not None and not self._heartbeat and self._now >= self._heartbeat_at:\n",
        new=(
            "        if self._lease is not None and not self._heartbeat and self._now >= self._heartbeat_at and (\n"
            "            self._state is ClassicState.STABLE\n"
            "        ):\n"
        ),
        tests=(_MACHINE + "test_heartbeats_go_on_during_a_drain",),
    ),
    Mutant(
        name="a-late-heartbeat-fences-the-next-generation",
        promise=3,
        file=_FILE,
        old="        if ended.serial != self._heartbeat:\n            return\n",
        new="        if self._lease is None:\n            return\n",
        tests=(_MACHINE + "test_a_heartbeat_under_way_at_the_join_does_not_fence_the_next_generation",),
    ),
    Mutant(
        name="a-refused-commit-of-an-older-generation-fences",
        promise=3,
        file=_FILE,
        old="                if generation == self.generation and self._lease is not None:\n",
        new="                if generation <= self.generation and self._lease is not None:\n",
        tests=(_MACHINE + "test_refused_commits_of_an_older_generation_change_nothing",),
    ),
    Mutant(
        name="a-partition-starts-beside-its-own-drop",
        promise=3,
        file=_FILE,
        old="        return self._assigned - self._owned - _NONE.union(*self._dropping.values())\n",
        new="        return self._assigned - self._owned\n",
        tests=(_MACHINE + "test_a_partition_is_not_started_before_its_drop_has_ended",),
    ),
    Mutant(
        name="a-member-stops-beside-its-drops",
        promise=3,
        file=_FILE,
        old="not (self._drain or self._request or self._dropping):\n",
        new="not (self._drain or self._request):\n",
        tests=(_MACHINE + "test_a_member_stops_only_after_its_drops_have_ended",),
    ),
    Mutant(
        name="a-member-that-joins-leaves-without-its-id",
        promise=3,
        file=_FILE,
        old="        if before is ClassicState.JOINING and not self._member_id:\n",
        new="        if before is ClassicState.JOINING and self._member_id is None:\n",
        tests=(_MACHINE + "test_a_first_join_is_awaited_for_its_id_before_leaving",),
    ),
    Mutant(
        name="joins-are-repeated-without-a-pause",
        promise=5,
        file=_FILE,
        old="            self._join_at = self._now + self._rejoin_backoff.next()\n",
        new="            self._join_at = self._now\n",
        tests=(_MACHINE + "test_failed_joins_are_tried_again", _MACHINE + "test_pauses_grow_to_a_limit"),
    ),
    Mutant(
        name="a-heartbeat-hides-an-unreadable-topic",
        promise=5,
        file=_FILE,
        old="        return self._problem or self._unidentified\n",
        new="        return self._problem\n",
        tests=(_MACHINE + "test_a_heartbeat_does_not_hide_that_a_partition_cannot_start",),
    ),
    Mutant(
        name="a-change-during-a-join-is-forgotten",
        promise=1,
        file=_FILE,
        old="            self._changed = cause  # what was sent with JoinGroup is out of date\n",
        new="            pass\n",
        tests=(_MACHINE + "test_a_subscription_that_changes_during_a_join_leads_to_another_join",),
    ),
    Mutant(
        name="range-gives-extras-to-the-last",
        promise=1,
        file="group/classic/assignment.py",
        old="            start = share * position + min(position, extra)\n",
        new="            start = share * position + max(0, position - len(members) + extra)\n",
        also=(
            (
                "start + share + (position < extra))",
                "start + share + (position >= len(members) - extra))",
            ),
        ),
        tests=(_ASSIGNMENT + "test_range_gives_contiguous_chunks_and_extras_to_the_first",),
    ),
    Mutant(
        name="roundrobin-begins-anew-with-each-topic",
        promise=1,
        file="group/classic/assignment.py",
        old="        for number in range(counts[topic]):\n            member = next",
        new=(
            "        turn = itertools.cycle(sorted(subscriptions, key=java_order))\n"
            "        for number in range(counts[topic]):\n            member = next"
        ),
        tests=(_ASSIGNMENT + "test_roundrobin_deals_out_all_topics_as_one",),
    ),
)
