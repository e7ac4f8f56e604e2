# SPDX-License-Identifier: Apache-2.0
"""What the status page of a real daemon says while a rebalance does not come to its end, and after it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kazoo.client import KazooClient

from tests.support.daemon import Daemon, settings_for
from tests.support.documents import DOCS, read_table
from tests.support.embedded import EmbeddedThread

HOLDER: Final = "lake_elsewhere-1600000000000-12345678-0"
DURING: Final = (">rebalancing<", "Held by others", "1 owned, 2 assigned", HOLDER)
AFTER: Final = ("2 owned, 2 assigned", "2 of the group's 2 partitions here", ">orders/0<", ">orders/1<")


def documented_fields(heading: str) -> set[str]:
    """Return the fields of a table of the API's page."""
    return {cells[0].strip("`") for cells in read_table(DOCS / "status-api.md", heading)}


def shows(daemon: Daemon, texts: tuple[str, ...]) -> bool:
    """Whether one look at the page finds all of them."""
    page = daemon.get("/")[1]
    return all(text in page for text in texts)


def test_the_page_tells_of_a_rebalance_that_runs_and_who_holds_it_up(cluster: EmbeddedThread, tmp_path: Path) -> None:
    """The first thing that people ask when records do not come."""
    cluster.create_topic("orders", 2)
    cluster.produce("orders", b"".join(b"k%d\tv%d\n" % (number, number) for number in range(1_000)))
    holder = KazooClient(cluster.zookeeper)
    holder.start()
    try:
        owner = "/consumers/lake/owners/orders/0"
        holder.create(owner, HOLDER.encode(), ephemeral=True, makepath=True)
        settings = settings_for(cluster.zookeeper, "lake", topics=("orders",))
        with Daemon(tmp_path, "one", settings) as daemon:
            daemon.wait(lambda: shows(daemon, DURING), "the page tells of it")
            holder.delete(owner)
            daemon.wait_ready()
            daemon.wait(lambda: sum(one["position"] or 0 for one in daemon.status()["partitions"]) == 1_000, "all")
            page, scrape, status = daemon.get("/")[1], daemon.get("/metrics")[1], daemon.status()
    finally:
        holder.stop()
        holder.close()

    assert [text for text in AFTER if text not in page] == []
    assert [text for text in DURING if text in page] == []
    assert "process_resident_memory_bytes " in scrape
    assert "_created" not in scrape
    assert 'consumerd_last_progress_timestamp_seconds{partition="0",topic="orders"} 1' in scrape
    assert (status["group_partitions"], [one["partitions"] for one in status["sinks"]]) == (2, [2])
    assert all(one["last_progress"]["ago_s"] < 60 for one in status["partitions"])
    assert all(one["lag_seconds"] is not None for one in status["partitions"] if one["lag"] == 0)
    answered = {
        "## The process": [status],
        "## Partitions": status["partitions"],
        "## Sinks": status["sinks"],
        "## Rebalances": status["rebalances"],
        "## Events": status["events"],
        "## Moment": [one["since"] for one in status["partitions"]],
    }
    assert {heading for heading, values in answered.items() if not values} == set()
    for heading, values in answered.items():
        assert {key for one in values for key in one} == documented_fields(heading)
