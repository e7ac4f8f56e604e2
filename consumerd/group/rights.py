# SPDX-License-Identifier: Apache-2.0
"""The proof that a member may claim and commit, made before it registers.

A registered member is given partitions. One that may not create ``owners/T/P`` or write ``offsets/T/P`` takes them from
members that may, Java's too, and nobody consumes them: "can't rebalance after 4 retries". So a topic that is denied is
left out of what is registered, and a member that cannot leave it out does not join.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from consumerd.aio.parallel import map_bounded
from consumerd.aio.timeouts import timeout
from consumerd.errors import ConfigError
from consumerd.group.subscription import Subscription, plan_streams
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.telemetry.wording import counted, join_shown
from consumerd.zk.layout import BROKER_TOPICS, offsets_path, owners_path, topic_path
from consumerd.zk.listing import list_names
from consumerd.zk.port import NoNode, NotPermitted, Right, ZkClient
from consumerd.zk.rights import Denial, SessionRights
from consumerd.zk.znodes import MalformedZnode, Pattern, parse_topic

_SHOWN: Final = 3
_ATTEMPTS: Final = 4
_NO_NAME: Final = ""
"""Stands for the folder itself among the names of its nodes."""
_REVIEW_PAUSE_S: Final = 5.0
"""Shortest time between two reviews of rights, in seconds."""
_REVIEW_DENIED_S: Final = 25.0
"""Poll interval for rights that come back, in seconds, besides the pause: no watch tells of an ACL."""


class GroupRights:
    """Finds the topics of a group that this session may not consume.

    Costs a few reads a topic and one a partition, many at a time, and a write only for an ACL that is not open.
    """

    def __init__(self, zk: ZkClient, group: str) -> None:
        self._zk = zk
        self._group = group

    async def find_denied(self, topics: Collection[str]) -> dict[str, Denial]:
        """Return what denies each of these topics, if anything does. Raises CoordinationError."""
        rights = SessionRights(self._zk)

        async def find(topic: str) -> Denial | None:
            for left in reversed(range(_ATTEMPTS)):
                try:
                    return await self._find_denial(rights, topic)
                except NotPermitted as error:
                    # some releases refuse even to say whether a node exists
                    return Denial(path=error.path, right=Right.READ, acl=None, identity=self._zk.identity)
                except NoNode:
                    if not left:
                        raise  # it comes and goes: tried again with the registration
            raise AssertionError("unreachable")

        found = await map_bounded(sorted(topics), find)
        return {topic: denial for topic, denial in found.items() if denial is not None}

    async def _find_denial(self, rights: SessionRights, topic: str) -> Denial | None:
        ways = (self._find_claim_denial, self._find_commit_denial)
        found = await map_bounded(ways, lambda find: find(rights, topic))
        return next((denial for denial in found.values() if denial is not None), None)

    async def _find_claim_denial(self, rights: SessionRights, topic: str) -> Denial | None:
        return await rights.find_denial_below(owners_path(self._group, topic), Right.CREATE, Right.DELETE)

    async def _find_commit_denial(self, rights: SessionRights, topic: str) -> Denial | None:
        folder = offsets_path(self._group, topic)
        names = await list_names(self._zk, folder)

        async def find(name: str) -> Denial | None:
            if name == _NO_NAME:
                return await rights.find_denial_below(folder, Right.CREATE)
            return await rights.find_denial(f"{folder}/{name}", Right.WRITE)

        denials = await map_bounded([*names, _NO_NAME], find)
        denied_folder = denials.pop(_NO_NAME)
        if (first := next((one for one in denials.values() if one is not None), None)) is not None:
            return first
        # nothing has to be made in the folder where each partition has its node
        return denied_folder if denied_folder is not None and await self._lacks_nodes(topic, names) else None

    async def _lacks_nodes(self, topic: str, names: Iterable[str]) -> bool:
        """Tell whether some partition has no offset node yet, or may have none: the topic is not there to say."""
        found = await self._zk.find(topic_path(topic))
        try:
            return found is None or not {str(key) for key in parse_topic(found[0])} <= {*names}
        except MalformedZnode:
            return True


class MemberNotPermitted(ConfigError):
    """This member may not consume what it has to register; it does not join, or leaves."""


class PermittedSubscription:
    """The part of a subscription that this member may consume.

    Static topics that are denied are left out of it. A pattern is registered as it is, or not at all, since members must
    compute the same topics from it.
    """

    def __init__(
        self, zk: ZkClient, group: str, subscription: Subscription, *, hooks: Hooks, log: structlog.stdlib.BoundLogger
    ) -> None:
        self._zk = zk
        self._group = group
        self._wanted = subscription
        self._hooks = hooks
        self._log = log
        self._rights = GroupRights(zk, group)
        self._due = asyncio.Event()
        self.registered: Subscription = subscription
        """What the member registers, by the last review."""
        self.denied: Mapping[str, Denial] = {}
        """Topics that may not be claimed or committed, by the last review."""

    def report(self, topic: str) -> None:
        """Hear that a claim or a commit of this topic was refused for an ACL: review soon."""
        if topic not in self.denied:
            self._due.set()

    async def wait_due(self) -> None:
        """Wait until a review is due: after a refusal, or from time to time while a topic is denied. Unbounded."""
        # a refusal that a review cannot explain must not cause one review after the other
        await asyncio.sleep(_REVIEW_PAUSE_S)
        try:
            async with timeout(_REVIEW_DENIED_S if self.denied else None):
                await self._due.wait()
        except TimeoutError:
            pass

    async def review(self, *, joined: bool = False) -> bool:
        """Look what may be consumed now, and return whether that changes what is to be registered.

        Args:
            joined: A member with a pattern stays when a topic that it matches is denied later: leaving would stop all of
                its topics. Before it joins it refuses to.

        Raises MemberNotPermitted where the member must not be registered, CoordinationError.
        """
        self._due.clear()
        denied = await self._rights.find_denied(await self._list_topics())
        self._tell(denied)
        before = self.registered
        if self._wanted.pattern is Pattern.STATIC:
            left = {topic: count for topic, count in self._wanted.streams.items() if topic not in denied}
            if not left:
                raise _refuse(self._group, denied, "no topic is left to subscribe to")
            self.registered = replace(self._wanted, streams=left)
        elif denied and not joined:
            raise _refuse(self._group, denied, "a pattern cannot leave topics out")
        return self.registered != before

    async def _list_topics(self) -> Collection[str]:
        if self._wanted.pattern is Pattern.STATIC:
            return self._wanted.streams.keys()
        return plan_streams(self._wanted.register(0), await list_names(self._zk, BROKER_TOPICS)).keys()

    def _tell(self, denied: Mapping[str, Denial]) -> None:
        for topic, denial in denied.items():
            if topic not in self.denied:
                self._log.warning("topic_not_permitted", topic=topic, reason=str(denial))
                self._hooks.trouble(Trouble.TOPIC_NOT_PERMITTED, f"{topic}: {denial}")
        for topic in sorted(self.denied.keys() - denied.keys()):
            self._log.info("topic_permitted_again", topic=topic)
        self.denied = denied


def _refuse(group: str, denied: Mapping[str, Denial], why: str) -> MemberNotPermitted:
    """Return the error that a member which cannot join ends with."""
    reasons = list({str(denial): None for denial in denied.values()})[:_SHOWN]
    return MemberNotPermitted(
        f"group {group} is not joined, since {why}: {counted(len(denied), 'topic')} may not be claimed or committed "
        f"({join_shown(sorted(denied), _SHOWN)}). A member that cannot consume what it is given starves the others. "
        + "; ".join(reasons)
    )
