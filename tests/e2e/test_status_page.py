"""What the status page of a real daemon says while a rebalance does not come to its end, and after it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kazoo.client import KazooClient

from tests.support.daemon import Daemon, settings_for
from tests.support.embedded import EmbeddedProcess

HOLDER: Final = "lake_elsewhere-1600000000000-12345678-0"


def test_the_page_tells_of_a_rebalance_that_runs_and_who_holds_it_up(tmp_path: Path) -> None:
    """The first thing that people ask when records do not come."""
    with EmbeddedProcess(tmp_path / "cluster") as cluster:
        cluster.create_topic("orders", 2)
        cluster.produce("orders", b"".join(b"k%d\tv%d\n" % (number, number) for number in range(1_000)))
        holder = KazooClient(cluster.zookeeper)
        holder.start()
        try:
            owner = "/consumers/lake/owners/orders/0"
            holder.create(owner, HOLDER.encode(), ephemeral=True, makepath=True)
            settings = settings_for(cluster.zookeeper, "lake", topics=("orders",))
            with Daemon(tmp_path, "one", settings) as daemon:
                daemon.wait(lambda: "1 owned, 2 assigned" in daemon.get("/")[1], "the other one is claimed")
                daemon.wait(lambda: HOLDER in daemon.get("/")[1], "the holder is named")
                during = daemon.get("/")[1]
                holder.delete(owner)
                daemon.wait_ready()
                daemon.wait(lambda: sum(one["position"] or 0 for one in daemon.status()["partitions"]) == 1_000, "all")
                after = daemon.get("/")[1]
        finally:
            holder.stop()
            holder.close()

    assert ">rebalancing<" in during
    assert "Held by others" in during
    assert "1 owned, 2 assigned" in during
    assert ">rebalancing<" not in after
    assert "Held by others" not in after
    assert "2 of 2 partitions are here" in after
    assert ">orders/0<" in after
    assert ">orders/1<" in after
