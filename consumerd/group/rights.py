# SPDX-License-Identifier: Apache-2.0
"""The proof that a member may claim and commit, made before it registers.

A registered member is given partitions. If it may not create ``owners/T/P`` or write ``offsets/T/P``, it takes them
from members that may, Java's too, and they are not consumed at all: "can't rebalance after 4 retries". So a denied
topic is left out of the registration, and a member that cannot leave it out does not join.
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
_FOLDER_ITSELF: Final = ""
"""Stands for the folder itself among the names of its nodes."""
_REVIEW_PAUSE_S: Final = 5.0
"""Shortest time between two reviews of rights, in seconds."""
_DENIED_POLL_S: Final = 25.0
"""Poll interval, in seconds, for rights that come back, on top of the pause: no watch reports a changed ACL."""


class GroupRights:
    """Finds the topics of a group that this session may not consume.

    Costs a few reads per topic and one per partition, in parallel, and a write only for an ACL that is not open.
    """

    def __init__(self, zk: ZkClient, group: str) -> None:
        self._zk = zk
        self._group = group

    async def find_denied(self, topics: Collection[str]) -> dict[str, Denial]:
        """Return the topics that are denied, each with the reason. Raises CoordinationError."""
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
            if name == _FOLDER_ITSELF:
                return await rights.find_denial_below(folder, Right.CREATE)
            return await rights.find_denial(f"{folder}/{name}", Right.WRITE)

        denials = await map_bounded([*names, _FOLDER_ITSELF], find)
        denied_folder = denials.pop(_FOLDER_ITSELF)
        if (first := next((one for one in denials.values() if one is not None), None)) is not None:
            return first
        # nothing has to be made in the folder where each partition has its node
        return denied_folder if denied_folder is not None and await self._lacks_nodes(topic, names) else None

    async def _lacks_nodes(self, topic: str, names: Iterable[str]) -> bool:
        """Return True if a partition may have no offset node yet.

        That includes a topic that does not exist, since its partitions are unknown.
        """
        found = await self._zk.find(topic_path(topic))
        try:
            return found is None or not {str(key) for key in parse_topic(found[0])} <= {*names}
        except MalformedZnode:
            return True


class MemberNotPermitted(ConfigError):
    """The member may not consume what it must register: it leaves, or never joins."""


class PermittedSubscription:
    """The part of a subscription that this member may consume.

    Denied topics are left out of a static subscription. A pattern is registered as it is or not at all, since all
    members must compute the same topics from it.
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
        """The subscription that the member registers, by the last review."""
        self.denied: Mapping[str, Denial] = {}
        """Topics that may not be claimed or committed, by the last review."""

    def report(self, topic: str) -> None:
        """Request a review: a claim or commit of this topic was refused for an ACL."""
        if topic not in self.denied:
            self._due.set()

    async def wait_due(self) -> None:
        """Wait until a review is due. Unbounded.

        It is due after a refusal, and every 30 s while a topic is denied.
        """
        # a refusal that reviews cannot explain must not cause reviews without a pause
        await asyncio.sleep(_REVIEW_PAUSE_S)
        try:
            async with timeout(_DENIED_POLL_S if self.denied else None):
                await self._due.wait()
        except TimeoutError:
            pass

    async def review(self, *, joined: bool = False) -> bool:
        """Check the rights again; return True if that changes the registration.

        Args:
            joined: True for a registered member. It stays if a topic that its pattern matches is denied: leaving would
                stop all of its topics. Before it is registered, it refuses to join.

        Raises MemberNotPermitted if the member must not be registered, CoordinationError.
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
    """Return the error with which a member that cannot join ends."""
    reasons = list({str(denial): None for denial in denied.values()})[:_SHOWN]
    return MemberNotPermitted(
        f"group {group} is not joined, since {why}: {counted(len(denied), 'topic')} may not be claimed or committed "
        f"({join_shown(sorted(denied), _SHOWN)}). A member that cannot consume what it is given starves the others. "
        + "; ".join(reasons)
    )
