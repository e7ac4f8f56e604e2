# SPDX-License-Identifier: Apache-2.0
"""Whether a partition is younger than the group's interest in its topic."""

import pytest

from consumerd.model import TopicPartition
from consumerd.offsets.history import ZooKeeperPartitionHistory
from consumerd.zk.layout import offsets_path
from consumerd.zk.layout_modern import MODERN, partition_path
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.virtual_time import run

P = TopicPartition.modern("t", 0)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (["group", "partition"], True),
        (["partition", "group"], False),
        (["partition"], False),  # the group has never committed for the topic
        (["group"], False),  # no such partition in the registry
        ([], False),
    ],
)
def test_only_a_partition_made_after_the_group_began_is_newborn(made, expected):
    """Both are told apart by the transactions that made their nodes, not by any clock."""

    async def scenario():
        server = FakeZooKeeper()
        paths = {"group": offsets_path("g", "t"), "partition": partition_path(P)}
        for name in made:
            server.put(paths[name])
        zk = server.client("member")
        zk.connect()
        assert await ZooKeeperPartitionHistory(zk, "g", layout=MODERN).made_after_group(P) is expected

    run(scenario())
