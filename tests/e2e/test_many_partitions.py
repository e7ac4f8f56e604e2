# SPDX-License-Identifier: Apache-2.0
"""What a daemon with hundreds of partitions asks of a broker when it starts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedThread

PARTITIONS: Final = 200


def test_hundreds_that_start_together_ask_where_their_logs_begin_and_end_in_a_few_requests(
    cluster: EmbeddedThread, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    """Each partition starts by itself; one by one they would be two requests each."""
    topic = unique("many")
    cluster.create_topic(topic, PARTITIONS)
    settings = settings_for(
        cluster.zookeeper, unique("crowd"), topics=(topic,), sink={"type": "null"}, log={"level": "info"}
    )
    with Daemon(tmp_path, "one", settings) as daemon:
        daemon.wait_ready()
        daemon.wait(lambda: [one["state"] for one in daemon.status()["partitions"]] == ["running"] * PARTITIONS, "all")
        scraped = daemon.get("/metrics")[1]

    counted = re.search(r'^consumerd_broker_request_seconds_count\{api="LIST_OFFSETS"\} (\S+)$', scraped, re.MULTILINE)
    assert counted is not None
    assert 2 <= float(counted[1]) <= PARTITIONS / 10
