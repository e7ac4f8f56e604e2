# SPDX-License-Identifier: Apache-2.0
"""Check of a member's permissions to claim and commit, made before it registers.

Every registered member is assigned partitions. If it may not create ``owners/T/P`` or write ``offsets/T/P``, no member
consumes these partitions, and Java members report "can't rebalance after 4 retries". So a denied topic is omitted from
the registration, and a member that cannot omit it does not join.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

import structlog

from consumerd.aio.parallel import map_bounded
from consumerd.aio.timeouts import wait_set
from consumerd.errors import ConfigError
from consumerd.group.java_regex import UnsupportedPattern
from consumerd.group.subscription import Subscription, plan_streams
from consumerd.telemetry.hooks import Hooks, Trouble
from consumerd.telemetry.wording import counted, join_shown
from consumerd.zk.layout import BROKER_TOPICS, offsets_path, owners_path
from consumerd.zk.port import NoNode, NotPermitted, Right, ZkClient, list_names
from consumerd.zk.registry_layout import RegistryLayout
from consumerd.zk.rights import Denial, SessionRights
from consumerd.zk.znodes import Pattern

_SHOWN: Final = 3
_ATTEMPTS: Final = 4
_FOLDER_ITSELF: Final = ""
"""Stands for the folder itself among the names of its nodes."""
_REVIEW_PAUSE_S: Final = 5.0
"""Shortest time between two reviews of rights, in seconds."""
_DENIED_POLL_S: Final = 25.0
"""Poll interval, in seconds, for restored rights, in addition to the pause: no watch reports a changed ACL."""


_MOST_LEFT_OUT: Final = 100
"""Limit of topics that an expression leaves out; with 500, each member of ours computes for a second or two."""


class GroupRights:
    """Finds the topics of a group that this session may not consume.

    Costs a few reads per topic and one per partition, in parallel, and a write only for an ACL that is not open.
    """

    def __init__(self, zk: ZkClient, group: str, layout: RegistryLayout) -> None:
        self._zk = zk
        self._group = group
        self._layout = layout

    async def find_denied(self, topics: Collection[str]) -> dict[str, Denial]:
        """Return the topics that this session may not consume, each with the missing permission.

        Raises CoordinationError.
        """
        rights = SessionRights(self._zk)

        async def find(topic: str) -> Denial | None:
            for left in reversed(range(_ATTEMPTS)):
                try:
                    return await self._find_denial(rights, topic)
                except NotPermitted as error:
                    # some releases refuse even an existence check
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
        node = await self._layout.read_topic(self._zk, topic)
        return node is None or node.problem is not None or not {str(key) for key in node.replicas} <= {*names}


class MemberNotPermitted(ConfigError):
    """This process may not consume a topic that it cannot leave out of its subscription.

    The process leaves the group, or never joins.
    """


class PermittedSubscription:
    """The part of a subscription that this member may consume.

    Denied topics are left out of what is registered: of a list of names, and of an expression by one that does not
    match them. Other members compute our topics from the registration, so the partitions of denied topics go to them.

    An expression is registered as it is, or not at all, if leaving topics out would do more harm or cannot be done:

    - Java members up to 0.10.1 with ``roundrobin`` stop all of the group's topics unless all members have the same.
    - Automata of our members have a bounded size, and take time to make: more than :data:`_MOST_LEFT_OUT` denied topics
      are not left out.

    Args:
        needs_equal: True if all members must have the same topics.
    """

    def __init__(
        self,
        zk: ZkClient,
        group: str,
        subscription: Subscription,
        *,
        hooks: Hooks,
        log: structlog.stdlib.BoundLogger,
        layout: RegistryLayout,
        needs_equal: bool = False,
    ) -> None:
        self._zk = zk
        self._group = group
        self._wanted = subscription
        self._needs_equal = needs_equal
        self._hooks = hooks
        self._log = log
        self._rights = GroupRights(zk, group, layout)
        self._due = asyncio.Event()
        self._waited = False
        self.registered: Subscription = subscription
        """The subscription that the member registers, by the last review."""
        self.denied: Mapping[str, Denial] = {}
        """Topics that may not be claimed or committed, by the last review."""

    def report(self, topic: str) -> None:
        """Request a review: a claim or commit of this topic was refused for an ACL."""
        if topic not in self.denied:
            self._due.set()

    async def wait_due(self) -> None:
        """Wait until the rights are to be checked again. No timeout.

        That is at once after a refused claim or commit, and every 30 s while a topic is denied. Other members may not
        be able to consume until this one has registered without the topic.
        """
        # a refusal that reviews cannot explain must not cause reviews without a pause
        if self._waited:
            await asyncio.sleep(_REVIEW_PAUSE_S)
        self._waited = True
        while not await wait_set(self._due, _DENIED_POLL_S) and not self.denied:
            pass

    async def review(self, *, joined: bool = False) -> bool:
        """Check the permissions again; return True if the member has to register other topics.

        Args:
            joined: True for a registered member. If its pattern matches a topic that it may not consume and cannot
                leave out, it stays: leaving would stop all of its topics. A member that is not registered yet refuses
                to join.

        Raises MemberNotPermitted if the member must not be registered; CoordinationError.
        """
        self._due.clear()
        topics = await self._list_topics()
        denied = await self._rights.find_denied(topics)
        self._tell(denied)
        before = self.registered
        if denied and denied.keys() >= topics:
            raise _refuse(self._group, denied, "no topic is left to subscribe to")
        problem = self._leave_out(denied)
        if problem is not None and not joined:
            raise _refuse(self._group, denied, problem)
        return self.registered != before

    def _leave_out(self, denied: Mapping[str, Denial]) -> str | None:
        """Choose what is registered; return why a pattern cannot leave denied topics out, or None."""
        self.registered = self._wanted
        if self._wanted.pattern is not Pattern.STATIC and denied and self._needs_equal:
            return "with roundrobin all members need the same topics, so a pattern cannot leave topics out"
        if self._wanted.pattern is not Pattern.STATIC and len(denied) > _MOST_LEFT_OUT:
            return f"a pattern can leave {_MOST_LEFT_OUT} topics out at most"
        try:
            self.registered = self._wanted.without(denied.keys())
        except UnsupportedPattern as error:
            return f"a pattern cannot leave these topics out: {error}"
        return None

    async def _list_topics(self) -> AbstractSet[str]:
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
