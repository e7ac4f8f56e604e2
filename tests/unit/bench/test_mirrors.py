# SPDX-License-Identifier: Apache-2.0
"""How MirrorMaker 2 is set, beside which the mirror is measured."""

from __future__ import annotations

from bench.mirrors import maker_properties
from bench.readers.running import Source
from tests.support.kafka import Cluster


def test_each_run_of_mirror_maker_2_begins_at_the_start() -> None:
    """Its stored positions are named after the source; and it writes with the codec of the source."""
    source = Source(cluster=Cluster("1.1.1"), topic="orders", records=1)
    target = Cluster("1.1.1")

    first, second = (maker_properties(alias, source, target, "lz4") for alias in ("s1", "s2"))

    assert (first["s1.bootstrap.servers"], first["s1->target.topics"]) == (source.cluster.bootstrap, "orders")
    assert first["target.producer.compression.type"] == "lz4"
    assert first["target.producer.acks"] == "all"
    assert not any("s1" in text for item in second.items() for text in item)
