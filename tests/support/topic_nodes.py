# SPDX-License-Identifier: Apache-2.0
"""Topics made in ZooKeeper by a client that is not ours (kazoo), as Kafka's own tools of the time make them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Final

from kazoo.client import KazooClient

BROKER_ID: Final = 0


@contextlib.contextmanager
def connected(zookeeper: str) -> Iterator[KazooClient]:
    """Connect to ZooKeeper for the block."""
    client = KazooClient(zookeeper)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def create_topic_nodes(client: KazooClient, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
    """Make a topic's nodes, all partitions on broker 0; the controller sees them. ``configs`` with ``_`` for ``.``."""
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    configured = json.dumps({"version": 1, "config": settings}).encode()
    client.create(f"/config/topics/{topic}", configured, makepath=True)
    assigned = {str(partition): [BROKER_ID] for partition in range(partitions)}
    client.create(
        f"/brokers/topics/{topic}", json.dumps({"version": 1, "partitions": assigned}).encode(), makepath=True
    )
