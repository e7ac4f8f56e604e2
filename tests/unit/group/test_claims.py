# SPDX-License-Identifier: Apache-2.0
"""A claim is confirmed only if it stands when the topic has been read, and not only before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from consumerd.aio.cell import Cell
from consumerd.errors import ConsumerdError, IncarnationChanged, LeasePaused, OwnershipLost
from consumerd.group.claims import OwnedClaim
from consumerd.model import Incarnation, ThreadId, TopicPartition
from consumerd.zk.layout import topic_path
from consumerd.zk.port import Stat
from tests.support.fake_zookeeper import FakeZkClient, FakeZooKeeper
from tests.support.virtual_time import run

P = TopicPartition.modern("t", 0)


class Scene:
    """A claim in a session, and what happens while its topic is read."""

    def __init__(self) -> None:
        self.server = FakeZooKeeper()
        self.server.put(topic_path(P.topic))
        self.zk: FakeZkClient = self.server.client("us")
        self.zk.connect()
        self.meanwhile: Callable[[], None] = lambda: None
        self.claim = OwnedClaim(
            self.zk,
            Cell(0),
            partition=P,
            thread=ThreadId("us-0"),
            epoch=self.zk.state.epoch,
            incarnation=Incarnation(self.server.read(topic_path(P.topic))[1].czxid),
            find_topic=self._find_topic,
        )

    async def _find_topic(self, topic: str) -> Stat | None:
        stat = await self.zk.exists(topic_path(topic))
        self.meanwhile()
        return stat


def test_a_claim_that_stands_is_confirmed() -> None:
    """Nothing has happened."""

    async def scenario() -> None:
        await Scene().claim.confirm()

    run(scenario())


@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        (lambda scene: scene.claim.revoke("drained"), OwnershipLost),
        (lambda scene: scene.claim.hold(held=True), LeasePaused),
        (lambda scene: scene.zk.expire(), OwnershipLost),
        (lambda scene: scene.zk.lose_session(), LeasePaused),
    ],
    ids=["revoked", "held", "another session", "no connection"],
)
def test_a_claim_that_is_lost_while_the_topic_is_read_is_not_confirmed(
    happens: Callable[[Scene], None], expected: type[ConsumerdError]
) -> None:
    """The answer may take long, and what a sink does next is to publish."""

    async def scenario() -> None:
        scene = Scene()
        scene.meanwhile = lambda: happens(scene)
        with pytest.raises(expected):
            await scene.claim.confirm()

    run(scenario())


def test_a_claim_that_is_lost_before_is_not_worth_a_read() -> None:
    """Its error comes at once, whatever the topic is by now."""

    async def scenario() -> None:
        scene = Scene()
        scene.meanwhile = lambda: pytest.fail("the topic was read")
        scene.claim.revoke("drained")
        with pytest.raises(OwnershipLost, match="drained"):
            await scene.claim.confirm()

    run(scenario())


@pytest.mark.parametrize(("made_again", "told"), [(False, "was deleted"), (True, "was re-created")])
def test_a_claim_of_a_topic_that_is_another_by_now_is_not_confirmed(told: str, *, made_again: bool) -> None:
    """The owner node stands: only the topic's own says that it is not the one that was claimed."""

    async def scenario() -> None:
        scene = Scene()
        scene.server.remove(topic_path(P.topic))
        if made_again:
            scene.server.put(topic_path(P.topic))
        with pytest.raises(IncarnationChanged, match=told):
            await scene.claim.confirm()

    run(scenario())
