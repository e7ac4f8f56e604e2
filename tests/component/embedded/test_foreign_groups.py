# SPDX-License-Identifier: Apache-2.0
"""Groups of foreign clients while the broker restarts, and on brokers that pass for older releases.

What else they do in a group is in ``test_foreign_clients``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.support.embedded import EmbeddedThread
from tests.support.foreign.aiokafka_client import AiokafkaMember
from tests.support.foreign.client import Member
from tests.support.foreign.kafka_python import KafkaPython, KafkaPythonMember
from tests.support.foreign.librdkafka import LibrdkafkaMember
from tests.support.foreign.membership import PARTITIONS, ROUND, Driven

MEMBERS: Final[dict[str, Callable[[str, str, str, str], Member]]] = {
    "confluent-kafka": LibrdkafkaMember,
    "aiokafka": AiokafkaMember,
}
"""kafka-python is not among them: it leaves sockets open that nobody has answered."""
API_VERSIONS: Final = {"0.9": (0, 9), "0.10": (0, 10, 2)}


@contextlib.contextmanager
def leaving(*members: Driven) -> Iterator[None]:
    """Have them leave, however the block ends."""
    with contextlib.ExitStack() as stack:
        for member in members:
            stack.callback(member.leave)
        yield


def write_round(bootstrap: str, number: int, api_version: tuple[int, ...] | None = None) -> range:
    """Write a round of numbers, and return them."""
    numbers = range(number * ROUND, (number + 1) * ROUND)
    KafkaPython(bootstrap, api_version).write_values("t", [b"%d" % one for one in numbers], PARTITIONS)
    return numbers


@pytest.mark.parametrize("client", MEMBERS)
def test_a_group_and_its_positions_outlive_the_broker(client: str, tmp_path: Path, zookeeper: str) -> None:
    """A member that stays goes on behind a restart; one that comes later begins where that one has committed."""
    with EmbeddedThread(tmp_path, zookeeper) as broker:
        broker.create_topic("t", PARTITIONS)
        join = partial(MEMBERS[client], broker.bootstrap, "g", "t")
        staying = Driven(partial(join, "staying"))
        with leaving(staying):
            read = set(write_round(broker.bootstrap, 0))
            staying.wait(lambda: set(staying.numbers) == read, "the first round is read")
            staying.commit()
            broker.restart()
            read |= set(write_round(broker.bootstrap, 1))
            staying.wait(lambda: set(staying.numbers) == read, "the second round is read")
            staying.commit()
        later = Driven(partial(join, "later"))
        with leaving(later):
            unread = write_round(broker.bootstrap, 2)
            later.wait(lambda: len(later.numbers) >= ROUND, "the third round is read")

    assert sorted(later.numbers) == list(unread)


@pytest.mark.parametrize("as_release", API_VERSIONS)
def test_members_of_older_releases_brokers_share_the_partitions_too(
    as_release: str, tmp_path: Path, zookeeper: str
) -> None:
    """Whoever cannot ask for versions speaks version 0 of everything."""
    with EmbeddedThread(tmp_path, zookeeper, as_release=as_release) as broker:
        broker.create_topic("t", PARTITIONS)
        join = partial(KafkaPythonMember, broker.bootstrap, "g", "t", api_version=API_VERSIONS[as_release])
        one, two = (Driven(partial(join, name)) for name in ("one", "two"))
        with leaving(one, two):
            one.wait(lambda: len(one.assigned) == len(two.assigned) == PARTITIONS // 2, "both share")
            shared = one.assigned | two.assigned
            numbers = write_round(broker.bootstrap, 0, API_VERSIONS[as_release])
            one.wait(lambda: len(one.numbers) + len(two.numbers) >= ROUND, "all is read")

    assert shared == set(range(PARTITIONS))
    assert sorted(one.numbers + two.numbers) == list(numbers)
