# SPDX-License-Identifier: Apache-2.0
"""Plan of the topics that a mirror creates and extends in its target. Pure.

A topic is created before its first record is mirrored, never by a broker's ``auto.create.topics.enable``. It gets the
partition count, the replication factor and the own settings of the source topic.

| topic in the target | partitions | plan |
|---|---|---|
| is missing | | create it |
| has the source's number, or more | 4 of 4, 6 of 4 | use it: partition n is mirrored to partition n |
| has fewer, and holds only what this mirror wrote | 4 of 6 | add partitions |
| has fewer otherwise | 1 of 6 | refuse, unless ``add_partitions`` is set |

More partitions change where producers put the keys of their records. So they are added by themselves only to a topic
that no producer but the mirror has written to.

Kafka 0.6 and 0.7
    Each partition ``B-P`` of a broker is mirrored to a partition of its own, which stays the same for good. So the
    number of partitions is that of all ``B-P`` ever seen, also of brokers that have left.

Settings that are not copied
    Those that name brokers of the source, those of tiered storage, the message format, and those by which the target
    would refuse or change timestamps of old records. Settings that the target's release does not have are left out by
    the caller, who asks the target (``mirror.topic_maker``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from consumerd.client.new_topic import NewTopic
from consumerd.cluster.topic_description import TopicDescription
from consumerd.errors import ConfigError
from consumerd.model import find_topic_fault
from consumerd.telemetry.wording import counted
from consumerd.wire.modern.topic_administration import BROKERS_DEFAULT

Replication = int | Literal["source", "target"]
"""Replication factor of new topics: a number, that of the source topic, or the target brokers' default."""

PLACE: Final = "{topic}"
"""Place of the source topic's name in a template."""
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__cluster_metadata", "__share_group_state"})
_NOT_COPIED: Final = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.format.version",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
    }
)
_NOT_COPIED_PREFIXES: Final = ("local.retention.", "remote.")
_MIN_ISR: Final = "min.insync.replicas"
_MAX_MESSAGE: Final = "max.message.bytes"
_BATCH_OVERHEAD_BYTES: Final = 128
"""Size that a record batch adds to a message of the old formats: a header of 61 bytes, and varints."""
_INT32_MAX: Final = 2**31 - 1


def check_template(template: str) -> None:
    """Check a template of target names, such as ``old.{topic}``.

    With the source's name in it, two source topics never get one name. Raises ConfigError.
    """
    if template.count(PLACE) != 1:
        raise ConfigError(f"topic: expected {PLACE} once in it, such as old.{PLACE}, got {template!r}")
    if fault := find_topic_fault(template.replace(PLACE, "t")):
        raise ConfigError(f"topic: {template!r} makes no valid names: {fault}")


def map_topic(template: str, topic: str) -> str:
    """Return the target's name of a source topic. Raises ConfigError for an invalid one."""
    name = template.replace(PLACE, topic)
    if topic in _INTERNAL:
        raise ConfigError(f"topic {topic} is Kafka's own, and is not mirrored: leave it out of the subscription")
    if fault := find_topic_fault(name):
        raise ConfigError(f"topic {topic} would be {name!r} in the target: {fault}; change the sink's topic")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWish:
    """A source topic that needs its topic in the target.

    Attributes:
        name: Its name in the target.
        least_partitions: Partition count that the target topic must have, by the records of the mirror: for Kafka 0.6
            and 0.7, the number of all partitions that it has given a place.
        is_ours: True if the target topic was made by this mirror, or all its partitions have positions of it.
    """

    source: TopicDescription
    name: str
    least_partitions: int = 0
    is_ours: bool = False

    @property
    def partitions(self) -> int:
        """Partition count that the target topic needs."""
        keys = self.source.partitions
        if any(key.broker is not None for key in keys):
            return max(len(keys), self.least_partitions)
        return max((*(key.number + 1 for key in keys), self.least_partitions))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTopic:
    """A topic in the target; ``settings`` are its own, None if unknown."""

    partitions: int
    settings: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCluster:
    """The target: topics by name, number of brokers, cluster id (None if unknown)."""

    topics: Mapping[str, TargetTopic]
    brokers: int
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """Settings of a mirror about topics in the target.

    Attributes:
        replication_factor: Replication factor of new topics.
        creates: False to create no topic and add no partition: an operator does.
        add_partitions: True to add partitions to topics that others may write to, too.
        any_count: True if records are distributed by key, so that a topic may have fewer partitions than the source's.
    """

    replication_factor: Replication = "source"
    creates: bool = True
    add_partitions: bool = False
    any_count: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTopicPlan:
    """Actions that the target's topics need, all by the name in the target.

    Attributes:
        creations: Topics to create.
        additions: Partition counts to reach.
        refusals: Topics that cannot be used, with the reason and what to do.
        notes: Differences from the source topic that an operator should know.
    """

    creations: Mapping[str, NewTopic]
    additions: Mapping[str, int]
    refusals: Mapping[str, str]
    notes: Mapping[str, tuple[str, ...]]


def plan_topics(
    wishes: Collection[TopicWish], target: TargetCluster, policy: TopicPolicy, *, source_id: str | None = None
) -> TargetTopicPlan:
    """Return what the target's topics need before records are mirrored to them.

    Args:
        source_id: Cluster id of the source; None if it is not known.
    """
    creations, additions, refusals, notes = {}, {}, {}, {}
    taken = {_as_metric(name): name for name in target.topics}
    for wish in sorted(wishes, key=lambda one: one.name):
        present = target.topics.get(wish.name)
        if source_id is not None and source_id == target.cluster_id and wish.name == wish.source.name:
            refusals[wish.name] = (
                f"topic {wish.name}: source and target are one cluster ({source_id}), so it would be mirrored into "
                "itself: give the target's bootstrap, or another topic"
            )
        elif not wish.source.partitions:
            refusals[wish.name] = f"topic {wish.source.name} has no partitions in the source at the moment"
        elif present is not None:
            notes[wish.name] = tuple(_compare(wish, present))
            if present.partitions < wish.partitions and not policy.any_count:
                if refusal := _refuse_addition(wish, present, policy):
                    refusals[wish.name] = refusal
                else:
                    additions[wish.name] = wish.partitions
        elif (other := taken.get(_as_metric(wish.name))) is not None:
            refusals[wish.name] = (
                f"topic {wish.name} cannot be created: there is {other}, which differs in '.' and '_' only, and Kafka "
                "has one name for both in metrics: give the sink another topic for one of them"
            )
        else:
            new, left_out = _plan_creation(wish, policy)
            if refusal := _refuse_creation(wish, new, target, policy):
                refusals[wish.name] = refusal
            else:
                creations[wish.name] = new
                notes[wish.name] = tuple(left_out)
                taken[_as_metric(wish.name)] = wish.name
    return TargetTopicPlan(
        creations=creations,
        additions=additions,
        refusals=refusals,
        notes={name: told for name, told in notes.items() if told},
    )


def _as_metric(name: str) -> str:
    """Return a topic's name in metrics (``Topic.unifyCollisionChars``)."""
    return name.replace(".", "_")


# -- creating


def _plan_creation(wish: TopicWish, policy: TopicPolicy) -> tuple[NewTopic, list[str]]:
    """Return the topic to create, and notes about settings that differ from the source's."""
    source, chosen = wish.source, policy.replication_factor
    if chosen == "source" and source.replication_factor is not None:
        replicas = source.replication_factor
    else:
        replicas = chosen if isinstance(chosen, int) else BROKERS_DEFAULT
    settings, notes = {}, []
    for name, value in sorted(source.settings.items()):
        if name in _NOT_COPIED or name.startswith(_NOT_COPIED_PREFIXES):
            notes.append(f"{name}={value} of the source is not copied")
        elif name == _MIN_ISR and value.isdigit() and 0 < replicas < int(value):
            notes.append(f"{name}={value} of the source is not copied: the topic has {replicas} replicas")
        else:
            settings[name] = value
    limit = settings.get(_MAX_MESSAGE, "")
    if limit.isdigit():
        settings[_MAX_MESSAGE] = str(min(int(limit) + _BATCH_OVERHEAD_BYTES, _INT32_MAX))
    new = NewTopic(name=wish.name, partitions=wish.partitions, replication_factor=replicas, configs=settings)
    return new, notes


def _refuse_creation(wish: TopicWish, new: NewTopic, target: TargetCluster, policy: TopicPolicy) -> str | None:
    """Return why a topic is not created, and a remedy; None if it is."""
    if not policy.creates:
        return f"topic {new.name} is missing in the target, and create_topics is false: {advise_creation(new)}"
    if wish.source.untold is not None:
        return (
            f"topic {new.name} is missing in the target, and is not created, since the settings of "
            f"{wish.source.name} are not known: {wish.source.untold}; or {advise_creation(new)}"
        )
    if new.replication_factor > target.brokers:
        return (
            f"topic {new.name} would have {counted(new.replication_factor, 'replica')}; the target has "
            f"{counted(target.brokers, 'broker')}: set the sink's replication_factor"
        )
    return None


def advise_creation(new: NewTopic) -> str:
    """Return the advice to create a topic with Kafka's own tool."""
    replicas = "" if new.replication_factor == BROKERS_DEFAULT else f" --replication-factor {new.replication_factor}"
    configs = "".join(f" --config {name}={value}" for name, value in sorted(new.configs.items()))
    return (
        f"create it with kafka-topics.sh --bootstrap-server TARGET --create --topic {new.name} "
        f"--partitions {new.partitions}{replicas}{configs}"
    )


def advise_addition(topic: str, count: int) -> str:
    """Return the advice to add partitions with Kafka's own tool."""
    return f"add partitions with kafka-topics.sh --bootstrap-server TARGET --alter --topic {topic} --partitions {count}"


# -- topics that are there


def _refuse_addition(wish: TopicWish, present: TargetTopic, policy: TopicPolicy) -> str | None:
    """Return why a topic gets no more partitions, and a remedy; None if it does."""
    if policy.creates and (policy.add_partitions or wish.is_ours):
        return None
    lack = (
        f"topic {wish.name} has {counted(present.partitions, 'partition')} in the target, and {wish.partitions} are "
        f"needed for {wish.source.name}"
    )
    if not policy.creates:
        return f"{lack}; create_topics is false: {advise_addition(wish.name, wish.partitions)}"
    return (
        f"{lack}: if it is empty (brokers with auto.create.topics.enable "
        "create topics by themselves), delete it, and it is created anew; if it is in use, more partitions change "
        "where its producers put their keys: set the sink's add_partitions: true to accept that, or mirror to another "
        "topic"
    )


def _compare(wish: TopicWish, present: TargetTopic) -> Iterator[str]:
    """Yield the settings in which a topic differs from the one that would be created."""
    if present.settings is None:
        return
    wanted, _ = _plan_creation(wish, TopicPolicy())
    for name, value in wanted.configs.items():
        if (there := present.settings.get(name)) != value:
            told = "not set" if there is None else there
            yield f"{name} is {told} in the target, and {wish.source.settings[name]} in the source"
