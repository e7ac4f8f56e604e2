# SPDX-License-Identifier: Apache-2.0
"""Creates and extends a mirror's topics in the target, by the plan of ``mirror.target_topics``.

All partitions that are opened at the same time share one round: one read of the target's topics, one CreateTopics
request. Several replicas may create a topic at the same time. The one that comes second is told that the topic exists
(error 36), and reads the topics again.

Settings that the target refuses
    A release refuses a whole topic for one setting that it does not know, or whose value it does not take (error 40).
    Then each setting is tried by itself, with a request that only checks, and the topic is created without those that
    are refused. They are told in the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

import structlog

from consumerd.aio.parallel import map_bounded
from consumerd.aio.sharing import SharedBatches
from consumerd.client.new_topic import NewTopic
from consumerd.client.remedies import advise_right
from consumerd.client.topic_admin import TopicAdmin
from consumerd.cluster.topic_description import TopicDescriptions
from consumerd.cluster.view import ClusterSource
from consumerd.errors import (
    BrokerError,
    ConnectionLost,
    ConsumerdError,
    CoordinationError,
    LocalProtocolError,
    ProtocolError,
    RetriableSinkError,
)
from consumerd.mirror.target_topics import (
    TargetCluster,
    TargetTopic,
    TargetTopicPlan,
    TopicPolicy,
    TopicWish,
    advise_addition,
    advise_creation,
    map_topic,
    plan_topics,
)
from consumerd.wire.errorcodes import ErrorCode

V = TypeVar("V")

_ROUNDS: Final = 3
"""Number of times that a plan is made, if other replicas create topics at the same time."""
_DENIED: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

_log = structlog.get_logger(__name__)


class _Question(NamedTuple):
    """A partition that is needed in the target."""

    topic: str
    partition: int
    is_ours: bool


class _Done(NamedTuple):
    """Partition counts of changed topics; ``read_again`` if another replica has changed some."""

    counts: Mapping[str, int]
    read_again: bool


class TopicMaker:
    """Makes the topics of one mirror.

    Args:
        descriptions: Reads the topics of the source.
        target: Reads the topics of the target, by Metadata.
        admin: Administers topics of the target.
        template: Template of names in the target.
    """

    def __init__(
        self,
        descriptions: TopicDescriptions,
        target: ClusterSource,
        admin: TopicAdmin,
        *,
        template: str,
        policy: TopicPolicy,
    ) -> None:
        self._descriptions = descriptions
        self._target = target
        self._admin = admin
        self._template = template
        self._policy = policy
        self._made: set[str] = set()
        self._told: dict[str, tuple[str, ...]] = {}
        self._ask: SharedBatches[None, _Question, str | None] = SharedBatches(self._answer)

    async def require(self, topic: str, partition: int, *, is_ours: bool = False) -> str:
        """Return the topic's name in the target, once it has a partition for the records.

        The topic is created or extended if it must be.

        Args:
            topic: Source topic.
            partition: Number of the partition in the target.
            is_ours: True if all partitions that the target topic has hold records of this mirror.

        Raises ConfigError for a name that cannot be in the target; RetriableSinkError if the topic cannot be used now,
        with what to do.
        """
        name = map_topic(self._template, topic)
        question = _Question(topic, partition, is_ours)
        try:
            reason = (await self._ask(None, [question]))[question]
        except (ConnectionLost, CoordinationError, BrokerError, ProtocolError) as error:
            raise RetriableSinkError(f"topic {name} in the target: {error}") from error
        if reason is not None:
            raise RetriableSinkError(reason)
        return name

    # -- a round

    async def _answer(self, _: None, asked: Sequence[_Question]) -> Mapping[_Question, str | None]:
        """Make the topics of many partitions; return why each cannot be used, or None."""
        wishes = {one.name: one for one in await self._read_wishes(asked)}
        source_id = await self._descriptions.find_cluster_id()
        failed: dict[str, str] = {}
        counts: dict[str, int] = {}
        for _attempt in range(_ROUNDS):
            target = await self._read_target(wishes)
            counts = {name: one.partitions for name, one in target.topics.items() if name in wishes}
            open_wishes = [wish for name, wish in wishes.items() if name not in failed]
            plan = plan_topics(open_wishes, target, self._policy, source_id=source_id)
            failed |= plan.refusals
            self._tell(plan)
            done = await self._carry_out(plan, failed)
            counts |= done.counts
            if not done.read_again:
                break
        answers: dict[_Question, str | None] = {}
        for one in asked:
            name = map_topic(self._template, one.topic)
            is_there = one.partition < counts.get(name, 0) and name not in failed
            answers[one] = None if is_there else failed.get(name, f"topic {name} is not in the target yet")
        return answers

    async def _read_wishes(self, asked: Sequence[_Question]) -> list[TopicWish]:
        sources = await map_bounded(sorted({one.topic for one in asked}), self._descriptions.describe)
        wishes = []
        for topic, source in sources.items():
            if source is None:
                continue  # it was deleted: the claim ends soon
            own = [one for one in asked if one.topic == topic]
            name = map_topic(self._template, topic)
            wishes.append(
                TopicWish(
                    source=source,
                    name=name,
                    least_partitions=max(one.partition for one in own) + 1,
                    is_ours=name in self._made or any(one.is_ours for one in own),
                )
            )
        return wishes

    async def _read_target(self, names: Mapping[str, TopicWish]) -> TargetCluster:
        view = await self._target.read(None)
        present = [name for name in names if name in view.topics and view.topics[name].partitions]
        settings = await self._read_settings(present)
        topics = {
            name: TargetTopic(partitions=len(topic.partitions), settings=settings.get(name))
            for name, topic in view.topics.items()
            if topic.partitions
        }
        return TargetCluster(topics=topics, brokers=len(view.brokers), cluster_id=view.cluster_id)

    async def _read_settings(self, names: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return own settings of topics in the target, as far as it tells them."""
        new = [name for name in names if name not in self._told]
        if not new:
            return {}
        try:
            shown = await self._admin.describe_topics(new)
        except (ProtocolError, BrokerError):
            return {}  # brokers before 0.11 do not tell them; they are only compared, for the log
        return {
            name: {key: one.value for key, one in found.items() if one.is_own and one.value is not None}
            for name, found in shown.items()
            if not isinstance(found, BrokerError)
        }

    def _tell(self, plan: TargetTopicPlan) -> None:
        for name, notes in plan.notes.items():
            if self._told.get(name) != notes:
                self._told[name] = notes
                _log.info("target_topic_differs", topic=name, differences=list(notes))

    # -- requests

    async def _carry_out(self, plan: TargetTopicPlan, failed: dict[str, str]) -> _Done:
        """Create and extend topics.

        Args:
            failed: Gets the reason for each topic that cannot be created or extended.
        """
        counts, read_again = {}, False
        for name, error in (await self._try(self._create, plan.creations)).items():
            new = plan.creations[name]
            if error is None:
                self._made.add(name)
                counts[name] = new.partitions
                _log.info("target_topic_created", topic=name, partitions=new.partitions)
            elif _is(error, ErrorCode.TOPIC_ALREADY_EXISTS):
                read_again = True
            else:
                failed[name] = self._explain(error, "Create", name, advise_creation(new))
        for name, error in (await self._try(self._admin.add_partitions, plan.additions)).items():
            count = plan.additions[name]
            if error is None:
                counts[name] = count
                _log.info("target_topic_extended", topic=name, partitions=count)
            elif _is(error, ErrorCode.INVALID_PARTITIONS):
                read_again = True  # another replica has extended it meanwhile
            else:
                failed[name] = self._explain(error, "Alter", name, advise_addition(name, count))
        return _Done(counts, read_again)

    async def _create(self, topics: Mapping[str, NewTopic]) -> Mapping[str, ConsumerdError | None]:
        """Create topics, without the settings that the target refuses; return the outcome of each."""
        outcomes = dict(await self._admin.create_topics(list(topics.values())))
        for name, error in outcomes.items():
            if error is not None and error.code == ErrorCode.INVALID_CONFIG:
                outcomes[name] = await self._create_without(topics[name], error)
        return outcomes

    async def _create_without(self, topic: NewTopic, refused: BrokerError) -> BrokerError | None:
        taken = {}
        for key, value in topic.configs.items():
            alone = replace(topic, configs={key: value})
            try:
                error = (await self._admin.create_topics([alone], validate_only=True))[topic.name]
            except LocalProtocolError:
                return refused  # brokers before 0.10.2 cannot only check
            if error is None or error.code != ErrorCode.INVALID_CONFIG:
                taken[key] = value
            else:
                _log.info("topic_setting_refused", topic=topic.name, setting=key, value=value, reason=str(error))
        return (await self._admin.create_topics([replace(topic, configs=taken)]))[topic.name]

    async def _try(
        self, ask: Callable[[Mapping[str, V]], Awaitable[Mapping[str, ConsumerdError | None]]], wanted: Mapping[str, V]
    ) -> Mapping[str, ConsumerdError | None]:
        """Return the outcomes of a request, also if the brokers do not have it."""
        if not wanted:
            return {}
        try:
            return await ask(wanted)
        except ProtocolError as error:
            return dict.fromkeys(wanted, error)

    def _explain(self, error: ConsumerdError, right: str, topic: str, instead: str) -> str:
        """Return the text of an error, with what an operator can do."""
        allowing = f"{advise_right(right, topic, self._admin.principal)}, or " if _is(error, *_DENIED) else ""
        return f"{error}: {allowing}{instead}"


def _is(error: ConsumerdError, *codes: ErrorCode) -> bool:
    return isinstance(error, BrokerError) and error.code in codes
