# SPDX-License-Identifier: Apache-2.0
"""The doctor before a real ZooKeeper: what a foreign hand (kazoo) has put there, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from consumerd.admin.doctor.surroundings import compare_clocks, wall_ms
from consumerd.admin.doctor.surroundings_checks import MOST_SKEW_MS, check_clocks
from consumerd.cli.main import CONFIGURATION, DONE, FAILED, UNREACHABLE, main
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.registry import open_registry
from tests.support.zookeeper import make_client, run_server

ROOT = "0123456789abcdef0123456789abcdef"
Examine = Callable[..., Mapping[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A server for the module; each test has a chroot of its own."""
    with run_server() as zookeeper:
        yield zookeeper


@pytest.fixture
def connect(server: EmbeddedZooKeeper, request: pytest.FixtureRequest) -> str:
    """A connect string whose chroot no other test uses."""
    name = str(request.node.name).replace("[", "-").replace("]", "")
    with open_registry(server.connect_string) as registry:
        registry.client.ensure_path(f"/{name}")
    return f"{server.connect_string}/{name}"


@pytest.fixture
def foreign(connect: str) -> Iterator[KazooClient]:
    """A session of nobody's, with a cluster of two topics made."""
    with open_registry(connect) as registry:
        client = registry.client
        for topic, partitions in (("orders", 2), ("clicks", 1)):
            put(
                client,
                f"/brokers/topics/{topic}",
                {"version": 1, "partitions": {str(n): [0] for n in range(partitions)}},
            )
        yield client


@pytest.fixture
def examine(connect: str, capsys: pytest.CaptureFixture[str]) -> Examine:
    """Run the command; findings by their names."""

    def examine(*arguments: str, code: int = FAILED) -> Mapping[str, list[dict[str, Any]]]:
        wanted = ["--group", "g"] if "--config" not in arguments else []
        assert main(["doctor", "-z", connect, *wanted, "--json", "--timeout", "5", *arguments]) == code
        found: dict[str, list[dict[str, Any]]] = {}
        for line in capsys.readouterr().out.splitlines():
            one = json.loads(line)
            found.setdefault(one["check"], []).append(one)
        return found

    return examine


def put(client: KazooClient, path: str, value: object, *, ephemeral: bool = False) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    client.create(path, data, ephemeral=ephemeral, makepath=True)


def register(client: KazooClient, consumer: str, topics: Mapping[str, int], *, ephemeral: bool = True) -> None:
    body = {"version": 1, "subscription": dict(topics), "pattern": "static", "timestamp": "1"}
    put(client, f"/consumers/g/ids/{consumer}", body, ephemeral=ephemeral)


def session_of(client: KazooClient) -> str:
    return hex(client.client_id[0])


def test_a_group_in_order_is_told_so(foreign: KazooClient, connect: str, examine: Examine, capsys):
    """A check that always finds something is not looked at twice."""
    register(foreign, "g_a", {"orders": 1})
    for partition in range(2):
        put(foreign, f"/consumers/g/owners/orders/{partition}", b"g_a-0", ephemeral=True)
    assert examine(code=DONE) == {}
    assert main(["doctor", "-z", connect, "-g", "g"]) == DONE
    assert capsys.readouterr().out == "nothing found\n"


def test_members_that_cannot_be_or_should_not_be_are_named_with_their_sessions(
    foreign: KazooClient, connect: str, examine: Examine
):
    """Who is behind a node is what one needs to find the process."""
    register(foreign, "g_a", {"orders": 1})
    put(foreign, "/consumers/g/ids/g_broken", b"{", ephemeral=True)
    register(foreign, "g_forever", {"clicks": 1}, ephemeral=False)
    with open_registry(connect) as other:
        register(other.client, "g_a-0badcafe", {"orders": 1})
        found = examine()
        (duplicate,) = found["duplicate-consumer-id"]
        assert session_of(foreign) in duplicate["what"]
        assert session_of(other.client) in duplicate["what"]
    (unreadable,) = found["member-unreadable"]
    assert unreadable["where"] == "/consumers/g/ids/g_broken"
    assert session_of(foreign) in unreadable["what"]
    assert [one["where"] for one in found["member-without-session"]] == ["/consumers/g/ids/g_forever"]
    assert "2 members: g_a, g_broken" in found["session-with-two-members"][0]["what"]


def test_owners_that_keep_a_partition_from_everybody_are_named_with_their_sessions(
    foreign: KazooClient, connect: str, examine: Examine
):
    """Each of them looks like an owner, and none of them delivers anything."""
    register(foreign, "g_a", {"orders": 1, "clicks": 1})
    put(foreign, "/consumers/g/owners/orders/0", b"g_a-0")
    put(foreign, "/consumers/g/owners/orders/9", b"g_a-0", ephemeral=True)
    put(foreign, "/consumers/g/owners/orders/lock", b"mine", ephemeral=True)
    put(foreign, "/consumers/g/owners/gone/0", b"g_a-0", ephemeral=True)
    with open_registry(connect) as other:
        put(other.client, "/consumers/g/owners/orders/1", b"g_dead-0", ephemeral=True)
        put(other.client, "/consumers/g/owners/clicks/0", b"g_a-0", ephemeral=True)
        found = examine()
        session = session_of(other.client)
    assert [one["where"] for one in found["owner-without-session"]] == ["/consumers/g/owners/orders/0"]
    (orphan,) = found["owner-not-registered"]
    assert orphan["where"] == "/consumers/g/owners/orders/1"
    assert f"session {session}, which has no member" in orphan["what"]
    (older,) = found["owner-of-another-session"]
    assert session in older["what"]
    assert session_of(foreign) in older["what"]
    assert [one["where"] for one in found["owner-misnamed"]] == ["/consumers/g/owners/orders/lock"]
    assert [one["where"] for one in found["owner-without-partition"]] == [
        "/consumers/g/owners/gone/0",
        "/consumers/g/owners/orders/9",
    ]


def test_members_of_other_clients_are_in_order_or_told_for_what_they_are(foreign: KazooClient, examine: Examine):
    """A Go member owns by its bare id, which is fine; pykafka's nodes are of no use to anybody else, which is not."""
    go = "host:0b5a6e2c-1d3f-4a5b-8c7d-9e0f1a2b3c4d"
    register(foreign, go, {"orders": 1})
    for partition in range(2):
        put(foreign, f"/consumers/g/owners/orders/{partition}", go.encode(), ephemeral=True)
    assert examine(code=DONE) == {}
    put(foreign, "/brokers/ids/0", {"version": 1, "host": "127.0.0.1", "port": 1}, ephemeral=True)
    put(foreign, "/consumers/g/ids/host:11111111-2222", b"clicks", ephemeral=True)
    put(foreign, "/consumers/g/owners/clicks/0-0", b"host:11111111-2222", ephemeral=True)
    found = examine()
    assert found["member-unreadable"][0]["where"] == "/consumers/g/ids/host:11111111-2222"
    assert found["owner-of-older-kafka"][0]["where"] == "/consumers/g/owners/clicks/0-0"
    assert "pykafka" in found["owner-of-older-kafka"][0]["what"]


def test_partitions_without_an_owner_are_told_with_whose_they_should_be(foreign: KazooClient, examine: Examine):
    """The member that is to be restarted, not the one that is at work."""
    register(foreign, "g_a", {"orders": 1})
    register(foreign, "g_b", {"orders": 1})
    put(foreign, "/consumers/g/owners/orders/0", b"g_a-0", ephemeral=True)
    (unowned,) = examine()["partitions-unowned"]
    assert "without an owner: 1 partition of g_b" in unowned["what"]
    assert "orders/1" in unowned["what"]
    put(foreign, "/consumers/g/owners/orders/1", b"g_a-0", ephemeral=True)
    (other,) = examine()["owners-not-as-planned"]
    assert "orders/1 is held by g_a-0 and belongs to g_b-0" in other["what"]


def test_positions_that_no_member_can_use_are_named(foreign: KazooClient, examine: Examine):
    """Each of them stops or misleads whoever claims the partition."""
    put(foreign, "/consumers/g/offsets/clicks/0", b"12")
    foreign.delete("/brokers/topics/clicks")
    put(foreign, "/brokers/topics/clicks", {"version": 1, "partitions": {"0": [0]}})
    put(foreign, "/consumers/g/offsets/orders/0", b"twelve")
    put(foreign, "/consumers/g/offsets/orders/1", b"-3")
    put(foreign, "/consumers/g/offsets/orders/7", b"1")
    put(foreign, "/consumers/g/offsets/orders/0-1-2", b"1")
    found = examine()
    assert [one["where"][-8:] for one in found["position-malformed"]] == ["orders/0", "orders/1"]
    assert [one["where"][-8:] for one in found["stored-position-without-partition"]] == ["orders/7"]
    assert [one["where"][-12:] for one in found["stored-position-misnamed"]] == ["orders/0-1-2"]
    (older,) = found["position-of-older-topic"]
    assert older["where"] == "/consumers/g/offsets/clicks/0"
    (silent,) = found["log-unknown"]  # there is no broker here
    assert "clicks/0, orders/0, orders/1" in silent["what"]


def test_requests_that_nobody_carries_out_are_named(foreign: KazooClient, examine: Examine):
    """An operator who asked, and waits."""
    wish = {"version": 1, "id": "r1", "position": 5, "new_chain": False, "author": "joe@host", "created_ms": 1}
    put(foreign, "/consumers/g/consumerd/requests/orders/0", wish)
    put(foreign, "/consumers/g/consumerd/requests/orders/1", {**wish, "version": 2})
    put(foreign, "/consumers/g/consumerd/requests/gone/0", wish)
    found = examine()
    assert "joe@host wants orders/0 to go on at 5" in found["request-without-subscriber"][0]["what"]
    assert "newer release" in found["request-malformed"][0]["what"]
    assert found["request-without-partition"][0]["where"] == "/consumers/g/consumerd/requests/gone/0"


@pytest.fixture
def config(connect: str, tmp_path: Path) -> Path:
    """Settings with a file sink."""
    file = tmp_path / "config.yaml"
    file.write_text(
        f"cluster: {{zookeeper: '{connect}'}}\ngroup: {{id: g, session_timeout_ms: 1000}}\n"
        "subscriptions: [{topics: [orders, oders], sink: lake}]\n"
        f"sinks: {{lake: {{type: jsonl, path: {tmp_path / 'landing'}}}}}\n"
        f"quarantine: {{path: {tmp_path / 'landing' / 'q'}}}\n"
        "fetch: {max_message_bytes: 8388608}\n"
    )
    return file


def test_settings_are_compared_with_what_the_cluster_says(
    foreign: KazooClient, examine: Examine, config: Path, server: EmbeddedZooKeeper
):
    """Things that no check of a file alone can see."""
    put(foreign, "/config/topics/orders", {"version": 1, "config": {"max.message.bytes": "9000000"}})
    put(foreign, "/config/topics/oders", b"junk")
    found = examine("--config", str(config), "--set", "group.session_timeout_ms=600000")
    assert "oders" in found["topics-missing"][0]["what"]
    assert "9000000" in found["messages-larger-than-fetch"][0]["what"]
    assert found["paths-overlap"][0]["where"] == "quarantine.path"
    assert "it gives" in found["session-timeout-not-granted"][0]["what"]


def test_settings_without_a_status_port_are_told_what_cannot_be_known(
    foreign: KazooClient, examine: Examine, config: Path
):
    """Else nothing said would read as: no partition is stopped."""
    (off,) = examine("--config", str(config), "--set", "http.listen=off")["http-off"]
    assert off["severity"] == "notice"
    assert "stopped or failing is not known" in off["what"]


def test_a_path_of_somebody_else_or_without_its_volume_is_told(
    foreign: KazooClient, examine: Examine, config: Path, tmp_path: Path
):
    """Before the daemon starts, not by its refusal."""
    put(foreign, "/consumers/g/consumerd/roots/lake", ROOT.encode())
    found = examine("--config", str(config))
    assert "it is not there" in found["path-not-the-recorded-one"][0]["what"]
    landing = tmp_path / "landing"
    landing.mkdir()
    assert f"has no {'_consumerd.json'}" in examine("--config", str(config))["path-not-the-recorded-one"][0]["what"]
    root = {"format": 1, "root": "another", "cluster": cluster_of(foreign), "group": "g"}
    (landing / "_consumerd.json").write_text(json.dumps(root))
    assert "has root another" in examine("--config", str(config))["path-not-the-recorded-one"][0]["what"]
    (landing / "_consumerd.json").write_text(json.dumps({**root, "group": "h", "root": ROOT}))
    assert "belongs to group 'h'" in examine("--config", str(config))["path-of-another"][0]["what"]
    (landing / "_consumerd.json").write_text(json.dumps({**root, "format": 3}))
    assert "format 3" in examine("--config", str(config))["path-unreadable"][0]["what"]
    (landing / "_consumerd.json").write_text(json.dumps({**root, "root": ROOT}))
    found = examine("--config", str(config))
    assert not {"path-not-the-recorded-one", "path-of-another", "path-unreadable"} & found.keys()


def cluster_of(client: KazooClient) -> str:
    stat = client.exists("/brokers/topics")
    return f"{stat.czxid}-{stat.ctime}"


def test_chains_are_looked_at_and_left_as_they_are(
    foreign: KazooClient, examine: Examine, config: Path, tmp_path: Path
):
    """The doctor looks while daemons work: nothing that it opens may change under them."""
    landing = tmp_path / "landing"
    czxid = foreign.exists("/brokers/topics/orders").czxid
    (landing / "q").mkdir(parents=True)
    root = {"format": 1, "root": ROOT, "cluster": cluster_of(foreign), "group": "g"}
    (landing / "_consumerd.json").write_text(json.dumps(root))
    record = {"format": 1, "origin": 5, "incarnation": str(czxid), "extension": "jsonl", "reason": "x", "writer": "w"}
    for partition, changes in ((0, {}), (1, {"extension": "parquet"}), (2, {"format": 3})):
        chain = landing / "topic=orders" / f"partition={partition}" / "chain=1"
        chain.mkdir(parents=True)
        (chain / "_chain.json").write_text(json.dumps({**record, **changes}))
        (chain / ".00000000000000000005.jsonl.w-1.tmp").write_text("half")
    for partition, position in ((0, b"9"), (1, b"5")):
        put(foreign, f"/consumers/g/offsets/orders/{partition}", position)
    put(foreign, "/consumers/g/owners/orders/1", b"g_a-0", ephemeral=True)
    tried = landing / "q"  # a file is made and removed in it, and in the landing folder

    def look() -> list[tuple[str, int]]:
        return sorted((str(path), path.stat().st_mtime_ns if path != tried else 0) for path in landing.rglob("*"))

    before = look()
    found = examine("--config", str(config))
    assert "what was landed ends at 5, and 9 is committed: 4 offsets" in found["committed-beyond-chain"][0]["what"]
    told = [one["what"] for one in found["chain-damaged"]]
    assert len(told) == 2
    assert "orders/1" in told[0]
    assert "holds .parquet files" in told[0]
    assert "orders/2" in told[1]
    assert "format 3" in told[1]
    assert "1 unpublished files are older than the claims" in found["leftovers-older-than-claim"][0]["what"]
    assert found["leftovers"][0]["severity"] == "notice"
    assert look() == before
    assert "folder-not-usable" not in found
    assert [name for name in foreign.get_children("/consumers/g") if name.startswith(".")] == []


def test_roots_that_no_sink_has_recorded_are_named(foreign: KazooClient, examine: Examine, config: Path):
    """A node that somebody has edited keeps the sink from its path; one of another name may be what was renamed."""
    put(foreign, "/consumers/g/consumerd/roots/lake", b"by hand")
    put(foreign, "/consumers/g/consumerd/roots/pond/replica-1", ROOT.encode())
    found = examine("--config", str(config))
    assert [one["where"] for one in found["root-malformed"]] == ["/consumers/g/consumerd/roots/lake"]
    (other,) = found["root-of-another-sink"]
    assert "roots/pond/replica-1" in other["what"]
    assert other["severity"] == "notice"


def test_a_group_that_is_not_there_is_not_in_order(foreign: KazooClient, examine: Examine):
    """A name that is misspelt has nothing wrong with it."""
    register(foreign, "g_a", {"orders": 1})
    examine("--group", "gg", code=FAILED)


def test_findings_are_told_to_people_with_what_to_do(foreign: KazooClient, connect: str, capsys):
    """Each line of the table ends where the work begins."""
    put(foreign, "/consumers/g/ids/g_broken", b"{", ephemeral=True)
    assert main(["doctor", "-z", connect, "-g", "g"]) == FAILED
    shown = capsys.readouterr().out
    assert shown.startswith("ERROR member-unreadable at /consumers/g/ids/g_broken\n  expected a JSON object")
    assert "  what to do: find the process behind that session and stop it, or delete the node\n" in shown


def test_without_zookeeper_or_a_group_nothing_is_examined(capsys):
    """Not to reach it is no clean bill of health."""
    assert main(["doctor", "-z", "127.0.0.1:1", "-g", "g", "--timeout", "1"]) == UNREACHABLE
    assert main(["doctor", "-z", "127.0.0.1:1"]) == CONFIGURATION


def test_a_topic_that_acls_deny_is_named_with_node_acl_and_identity(foreign: KazooClient, examine: Examine):
    """What keeps a member from a topic stands in no other finding: there is no owner, and no position."""
    put(foreign, "/brokers/topics/closed", {"version": 1, "partitions": {"0": [0]}})
    foreign.ensure_path("/consumers/g/offsets")
    foreign.create(
        "/consumers/g/offsets/closed",
        acl=[make_digest_acl("root", "x", all=True), make_acl("world", "anyone", read=True)],
    )

    (denied,) = examine()["topic-denied"]

    assert "/consumers/g/offsets/closed" == denied["where"]
    assert "topic closed cannot be consumed" in denied["what"]
    assert "its ACL is digest:root:cdrwa,world:anyone:r, our identity is world:anyone" in denied["what"]


def test_partition_that_is_stopped_above_its_log_is_told_by_doctor_and_offsets_show(
    foreign: KazooClient, connect: str, examine: Examine, capsys
):
    """The log may have grown beyond the position since: nothing else shows that the partition will not go on."""
    put(foreign, "/consumers/g/offsets/orders/0", b"80")
    voids = foreign.get("/consumers/g/offsets/orders/0")[1].mzxid
    czxid = foreign.get("/brokers/topics/orders")[1].czxid
    note = {"format": 1, "incarnation": str(czxid), "truncation": 1, "position": 80, "earliest": 0, "latest": 60}
    path = "/consumers/g/consumerd/truncations/orders/0.lost"
    put(foreign, path, {**note, "voids": voids})
    (stopped,) = examine()["stopped-above-log"]
    assert (stopped["severity"], stopped["where"]) == ("error", path)
    assert "orders/0 stopped: the log ended below the position. It was [0, 60) and the position 80" in stopped["what"]
    assert "consumerd offsets reset -g g orders/0" in stopped["advice"]

    assert main(["offsets", "show", "-z", connect, "-g", "g", "--json"]) == DONE
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert row["stopped"] is not None
    assert row["stopped"] in stopped["what"]
    assert "stopped: the log ended below the position" in row["note"]
    assert "consumerd offsets reset" in row["note"]

    foreign.set("/consumers/g/offsets/orders/0", b"60")
    assert "stopped-above-log" not in examine()


def test_folder_of_the_group_in_which_no_member_may_make_a_node_is_named(foreign: KazooClient, examine: Examine):
    """A member fails there before it has any topic."""
    foreign.ensure_path("/consumers/g")
    for folder in ("/consumers/g/ids", "/consumers/g/consumerd"):
        foreign.create(folder, acl=[make_digest_acl("root", "x", all=True), make_acl("world", "anyone", read=True)])
    found = examine()["member-denied"]
    assert {one["where"] for one in found} == {"/consumers/g/ids", "/consumers/g/consumerd"}
    assert all(one["severity"] == "error" and "setAcl" in one["advice"] for one in found)
    foreign.delete("/consumers/g/ids")
    foreign.delete("/consumers/g/consumerd")
    assert examine(code=DONE) == {}


async def test_clock_is_compared_with_that_of_zookeeper_and_no_node_is_left(server: EmbeddedZooKeeper, connect: str):
    """Both run on one machine here: what differs is what this test adds."""
    async with make_client(connect) as zk:
        await zk.wait_connected()
        here = await compare_clocks(zk, "g", wall_ms=wall_ms)
        await zk.ensure_path("/consumers/g")
        ahead = await compare_clocks(zk, "g", wall_ms=lambda: wall_ms() + 90_000)
        assert (await zk.children("/consumers/g"))[0] == []
    assert list(check_clocks("g", here)) == []
    (told,) = check_clocks("g", ahead)
    assert (told.kind, told.severity) == ("clock-differs", "warning")
    assert "s ahead of that of ZooKeeper's leader" in told.detail
    assert 90_000 - MOST_SKEW_MS < (ahead.ahead_ms or 0) < 90_000 + MOST_SKEW_MS


async def test_clock_that_an_acl_keeps_from_being_compared_is_told(foreign: KazooClient, connect: str):
    """Not to know is not to be in order."""
    foreign.ensure_path("/consumers")
    foreign.create("/consumers/g", acl=[make_acl("world", "anyone", read=True)])
    async with make_client(connect) as zk:
        await zk.wait_connected()
        (told,) = check_clocks("g", await compare_clocks(zk, "g", wall_ms=wall_ms))
    assert (told.kind, told.severity) == ("clock-unknown", "notice")
    assert "/consumers/g" in told.detail
