# SPDX-License-Identifier: Apache-2.0
"""Identities that a cluster and its topics had in ZooKeeper, for the time after it.

With ZooKeeper, a cluster is identified by the znode ``/brokers/topics``, and a topic by the transaction that created
its node (``czxid``). Without it, the brokers name a cluster id and topic ids. A cluster that leaves ZooKeeper keeps the
latter two, and brokers of 2.8 and later store them in ZooKeeper as well. So both identities can be recorded while
ZooKeeper is there. ``consumerd identities`` writes such a record::

    {"format": "consumerd identities", "version": 1, "cluster": "25-1700000000000",
     "cluster_id": "kSqpHgfDQEKzdGSYfrhfAA", "topics": [
      {"topic": "orders", "czxid": 4294967337, "topic_id": "a5g7j1tvSx-Ob3bjRwaYgQ"}
    ]}

A topic that still has the recorded topic id keeps the identity that it had in ZooKeeper. So chains of files, tables and
positions of the time before go on. A topic with another id, or without a record, is identified by its topic id.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.documents import DocumentKind
from consumerd.errors import ConfigError
from consumerd.model import UNKNOWN_INCARNATION, Incarnation
from consumerd.wire.declaration import NO_UUID

_KIND: Final = DocumentKind(name="consumerd identities", version=1, command="consumerd identities", rows="topics")
_CZXID_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterIdentities:
    """Identities of a cluster without ZooKeeper and of its topics.

    Without a record, they are the cluster id and the topic ids that brokers name.

    Attributes:
        cluster: Identity of the cluster in ZooKeeper, ``<czxid>-<ctime in ms>`` of ``/brokers/topics``; empty if there
            is no record.
        cluster_id: The brokers' cluster id at the time of the record; empty if there is no record.
        topics: Identity in ZooKeeper, by topic and topic id.
    """

    cluster: str = ""
    cluster_id: str = ""
    topics: Mapping[tuple[str, Incarnation], Incarnation] = field(default_factory=dict)

    def identify_topic(self, topic: str, topic_id: uuid.UUID) -> Incarnation:
        """Return the topic's incarnation: that of the record, else its topic id.

        UNKNOWN_INCARNATION if the broker named no topic id, as those before 2.8, or one that has just heard of the
        topic.
        """
        if topic_id == NO_UUID:
            return UNKNOWN_INCARNATION
        incarnation = Incarnation.of_topic_id(topic_id)
        return self.topics.get((topic, incarnation), incarnation)

    def is_recreated(self, topic: str, known: Incarnation, found: Incarnation) -> bool:
        """Return True if a topic was re-created: ``found`` is another topic than ``known``.

        A czxid and a topic id are compared by the record. False if it does not have them.
        """
        if bool(known.topic_id) is not bool(found.topic_id):
            known, found = self._find_topic_id(topic, known), self._find_topic_id(topic, found)
        is_comparable = bool(known.topic_id) is bool(found.topic_id)
        return is_comparable and not known.is_same_topic(found)

    def _find_topic_id(self, topic: str, incarnation: Incarnation) -> Incarnation:
        """Return the recorded topic id of a czxid; the incarnation itself if there is none."""
        ids = (topic_id for (name, topic_id), made in self.topics.items() if (name, made) == (topic, incarnation))
        return next(ids, incarnation)

    def identify_cluster(self, cluster_id: str | None) -> str | None:
        """Return the cluster's identity: that of the record, or the cluster id.

        The record counts if it is of this cluster id.
        """
        return self.cluster if cluster_id is not None and cluster_id == self.cluster_id else cluster_id

    def find_fault(self, identity: str | None) -> str | None:
        """Return why the record is not of the present cluster.

        None if it is, or if there is no record.

        Args:
            identity: The present cluster, as :meth:`identify_cluster` has returned it.
        """
        if not self.cluster or identity == self.cluster:
            return None
        return f"it is a record of cluster {self.cluster_id}, and the brokers are of cluster {identity}"

    def encode(self) -> str:
        """Return the record as JSON text, with one topic per line."""
        rows = [
            {"topic": topic, "czxid": made.czxid, "topic_id": made_of.topic_id}
            for (topic, made_of), made in sorted(self.topics.items())
        ]
        return _KIND.encode({"cluster": self.cluster, "cluster_id": self.cluster_id}, rows)


def parse_identities(text: str, source: str) -> ClusterIdentities:
    """Read a record that ``consumerd identities`` has written. Raises ConfigError.

    Args:
        source: Name of the file, for errors.
    """
    document = _KIND.parse(text, source)
    cluster, cluster_id = document.get("cluster"), document.get("cluster_id")
    if not isinstance(cluster, str) or not isinstance(cluster_id, str) or not cluster or not cluster_id:
        raise ConfigError(f"{source}: expected cluster and cluster_id as text")
    rows = _KIND.find_rows(document, source)
    topics = dict(_parse_topic(one, f"{source}: topics[{index}]") for index, one in enumerate(rows))
    return ClusterIdentities(cluster=cluster, cluster_id=cluster_id, topics=topics)


def _parse_topic(one: object, where: str) -> tuple[tuple[str, Incarnation], Incarnation]:
    if not isinstance(one, dict):
        raise ConfigError(f"{where}: expected an object")
    topic, czxid, topic_id = one.get("topic"), one.get("czxid"), one.get("topic_id")
    if not isinstance(topic, str) or not isinstance(topic_id, str):
        raise ConfigError(f"{where}: expected topic and topic_id as text")
    if type(czxid) is not int or not 0 < czxid <= _CZXID_MAX:
        raise ConfigError(f"{where}: czxid: expected a number above 0")
    try:
        identity = Incarnation.parse_topic(topic_id)
    except ValueError as error:
        raise ConfigError(f"{where}: topic_id: {error}") from error
    if not identity.topic_id or not identity.is_known:
        raise ConfigError(f"{where}: topic_id: expected 22 characters, as kafka-topics --describe shows them")
    return (topic, identity), Incarnation(czxid)
