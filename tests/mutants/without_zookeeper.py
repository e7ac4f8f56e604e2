# SPDX-License-Identifier: Apache-2.0
"""Mutants of what is known of groups, topics and truncations without ZooKeeper: brokers' lists, ids, texts of commits."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_LISTS: Final = "tests/unit/client/test_group_coordinators.py::"
_GROUPS: Final = "tests/component/admin/test_groups.py::"
_IDENTITIES: Final = "tests/unit/cluster/test_identities.py::"
_TRUNCATIONS: Final = "tests/unit/offsets/test_kafka_truncations.py::"

WITHOUT_ZOOKEEPER: Final = (
    Mutant(
        name="a-coordinator-that-was-replaced-hides-the-members-of-a-group",
        promise=0,
        file="client/group_coordinators.py",
        old="                if known is None or (one.protocol_type and not known.protocol_type):\n",
        new="                if known is None:\n",
        tests=(_LISTS + "test_a_broker_that_has_just_been_replaced_does_not_hide_the_members",),
    ),
    Mutant(
        name="a-broker-that-loads-its-groups-is-taken-at-its-word",
        promise=0,
        file="client/group_coordinators.py",
        old="                    if not listed.may_change:\n",
        new="                    if listed.may_change or not listed.may_change:\n",
        tests=(_LISTS + "test_a_loading_broker_is_asked_again",),
    ),
    Mutant(
        name="the-lag-of-coordinated-members-is-counted-from-zookeeper",
        promise=0,
        file="admin/group_facts.py",
        old="            places=choose_places(coordinated, places),\n",
        new="            places=places,\n",
        tests=(_GROUPS + "test_positions_of_the_settings_count_for_groups_in_zookeeper",),
    ),
    Mutant(
        name="groups-of-a-broker-that-does-not-tell-them-are-not-missed",
        promise=0,
        file="admin/group_facts.py",
        old='        found = [f"groups may be missing: {one}" for one in self._listed.problems.values()]\n',
        new="        found = list[str]()\n",
        tests=(_GROUPS + "test_groups_that_a_broker_does_not_tell_are_a_problem_and_the_others_are_shown",),
    ),
    Mutant(
        name="a-recorded-topic-is-another-one-after-zookeeper",
        promise=1,
        file="cluster/identities.py",
        old="        return self.topics.get((topic, incarnation), incarnation)\n",
        new="        return incarnation\n",
        tests=(_IDENTITIES + "test_a_topic_with_the_recorded_id_keeps_its_identity",),
    ),
    Mutant(
        name="a-record-is-of-whatever-cluster-there-is",
        promise=1,
        file="cluster/identities.py",
        old="        return self.cluster if cluster_id is not None and cluster_id == self.cluster_id else cluster_id\n",
        new="        return self.cluster or cluster_id\n",
        tests=(_IDENTITIES + "test_the_cluster_keeps_its_identity_too",),
    ),
    Mutant(
        name="a-topic-created-again-since-the-record-is-the-recorded-one",
        promise=0,
        file="cluster/identities.py",
        old="        if bool(known.topic_id) is not bool(found.topic_id):\n",
        new="        if known is None:\n",
        tests=(
            _IDENTITIES + "test_a_record_tells_a_topic_from_the_former_one",
            "tests/spark/test_stream_reader.py::test_a_topic_that_was_made_again_since_the_record_ends_a_query_that_may_lose_nothing",
        ),
    ),
    Mutant(
        name="a-noted-truncation-is-read-as-one-that-delivery-has-left-behind",
        promise=1,
        file="offsets/commit_metadata.py",
        old='        noted=found["noted"] is not None,\n',
        new="        noted=False,\n",
        tests=(
            _TRUNCATIONS + "test_text_is_read_as_it_was_written",
            _TRUNCATIONS + "test_noted_truncation_moves_position_and_number_together",
        ),
    ),
    Mutant(
        name="truncations-in-kafka-count-for-the-topic-that-was-made-again",
        promise=1,
        file="offsets/kafka_truncations.py",
        old="    return found if found is not None and found.incarnation.is_same_topic(claim.incarnation) else None\n",
        new="    return found\n",
        tests=(_TRUNCATIONS + "test_truncation_of_a_deleted_topic_says_nothing",),
    ),
    Mutant(
        name="a-commit-forgets-the-stop-that-was-kept-with-the-position",
        promise=1,
        file="offsets/kafka_truncations.py",
        old="        if metadata.lost_end is not None or metadata.noted:\n",
        new="        if metadata.noted:\n",
        tests=(_TRUNCATIONS + "test_stop_is_kept_with_the_position_until_that_moves",),
    ),
)
