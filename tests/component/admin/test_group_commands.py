# SPDX-License-Identifier: Apache-2.0
"""What the commands say of a group in a real ZooKeeper: one that is not there, one that is new, one with odd nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from consumerd.cli.main import CONFIGURATION, DONE, FAILED, main
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.registry import open_registry
from tests.support.zookeeper import run_server

COMMANDS = ["lag", "offsets show", "offsets export", "explain-rebalance", "doctor"]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    """A server for the module, with one topic; each test has a group of its own."""
    with run_server() as zookeeper:
        with open_registry(zookeeper.connect_string) as registry:
            topic = {"version": 1, "partitions": {str(partition): [0] for partition in range(11)}}
            registry.client.create("/brokers/topics/orders", json.dumps(topic).encode(), makepath=True)
        yield zookeeper


@pytest.fixture
def foreign(server: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    """A session of nobody's."""
    with open_registry(server.connect_string) as registry:
        yield registry.client


def ask(server: EmbeddedZooKeeper, command: str, *arguments: str, group: str = "g") -> int:
    return main([*command.split(), "-z", server.connect_string, "-g", group, "--timeout", "5", *arguments])


@pytest.mark.parametrize("command", [*COMMANDS, "offsets reset --all-topics --to latest --yes", "offsets cancel --all"])
def test_a_group_that_is_not_there_is_said_with_those_that_are(
    server: EmbeddedZooKeeper, foreign: KazooClient, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """A misspelt name must look neither like a new group nor like one in order."""
    foreign.ensure_path("/consumers/lake")
    assert ask(server, command, group="leak") == FAILED
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "there is no group 'leak' in ZooKeeper; the groups there: " in shown.err
    assert "lake" in shown.err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("lag", "no partitions\ntotal lag 0, 0 of 0 partitions without an owner\n"),
        ("offsets show", "no stored positions\n"),
        ("explain-rebalance", "no members yet\n"),
        ("explain-rebalance --replicas 2", "no members yet\n"),
        ("doctor", "nothing found\n"),
    ],
)
def test_a_group_before_its_first_member_is_no_mistake(
    server: EmbeddedZooKeeper, foreign: KazooClient, capsys: pytest.CaptureFixture[str], command: str, said: str
) -> None:
    """Nothing wrong was typed, and nothing is wrong: scripts that look at all groups go on."""
    foreign.ensure_path("/consumers/new/ids")
    assert ask(server, command, group="new") == DONE
    assert capsys.readouterr() == (said, "")


def test_nothing_is_exported_and_nothing_moved_of_a_group_without_positions(
    server: EmbeddedZooKeeper, foreign: KazooClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--all-topics`` of a group that has none must not mean the topics of the cluster."""
    foreign.ensure_path("/consumers/new/ids")
    assert ask(server, "offsets export", group="new") == DONE
    assert json.loads(capsys.readouterr().out)["offsets"] == []
    assert ask(server, "offsets reset --all-topics --to latest --yes", group="new") == CONFIGURATION
    assert "--all-topics: group new has no offsets" in capsys.readouterr().err


def test_a_misspelt_topic_has_no_positions_for_a_reason(
    server: EmbeddedZooKeeper, foreign: KazooClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for ``lag``. One that was deleted is shown as long as it has a position, and a new one has none yet."""
    foreign.create("/consumers/spelt/offsets/gone/0", b"5", makepath=True)
    assert ask(server, "offsets show ordres", group="spelt") == CONFIGURATION
    assert "there is no topic ordres" in capsys.readouterr().err
    assert ask(server, "offsets show gone", group="spelt") == DONE
    assert "gone" in capsys.readouterr().out
    assert ask(server, "offsets show orders", group="spelt") == DONE
    assert capsys.readouterr().out == "no stored positions\n"


@pytest.mark.parametrize("command", ["lag", "offsets show", "offsets export", "doctor"])
def test_a_position_that_is_no_number_is_quoted_with_what_to_do(
    server: EmbeddedZooKeeper, foreign: KazooClient, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """What somebody has written there is the first hint of who did."""
    group = f"junk-{command.replace(' ', '-')}"
    foreign.create(f"/consumers/{group}/offsets/orders/0", b"junk", makepath=True)
    ask(server, command, group=group)
    shown = capsys.readouterr()
    assert "offset: expected a number from 0 on, got 'junk'" in shown.out + shown.err
    assert "say where to go on: consumerd offsets set" in shown.out + shown.err


def test_requests_are_taken_back(
    server: EmbeddedZooKeeper, foreign: KazooClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """One partition's, then all that are left, also such that nobody can read; and what is not there is said."""
    folder = "/consumers/asked/consumerd/requests/orders"
    for partition in range(3):
        foreign.create(f"{folder}/{partition}", b"junk", makepath=True)
    assert ask(server, "offsets cancel orders/1", group="asked") == DONE
    assert "cancelled" in capsys.readouterr().out
    assert sorted(foreign.get_children(folder)) == ["0", "2"]
    assert ask(server, "offsets cancel orders/1", group="asked") == FAILED
    assert "orders/1: there is no request" in capsys.readouterr().err
    assert ask(server, "offsets cancel", group="asked") == CONFIGURATION
    capsys.readouterr()
    assert ask(server, "offsets cancel --all --json", group="asked") == DONE
    cancelled = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert cancelled == [{"topic": "orders", "partition": number, "outcome": "cancelled"} for number in ("0", "2")]
    assert foreign.get_children(folder) == []
    assert ask(server, "offsets cancel --all", group="asked") == DONE
    assert capsys.readouterr().out == "no requests\n"


@pytest.mark.parametrize(
    ("denied", "command"),
    [
        ("offsets/orders/0", "offsets set orders/0=5 --force --yes"),
        ("offsets/orders", "offsets set orders/1=5 --force --yes"),
        ("consumerd/requests/orders", "offsets set orders/2=5 --force --yes"),
        ("consumerd/requests/orders", "offsets cancel orders/0"),
        ("offsets/orders", "offsets show"),
        ("offsets/orders", "offsets export"),
        ("offsets/orders", "lag"),
    ],
)
def test_a_request_that_an_acl_refuses_has_failed_and_names_the_node(
    server: EmbeddedZooKeeper, foreign: KazooClient, capsys: pytest.CaptureFixture[str], denied: str, command: str
) -> None:
    """ZooKeeper was reached and said no: to try again later, as for exit code 3, does not help."""
    group = f"{command}-{denied}".translate(str.maketrans(" /=", "___"))
    root = f"/consumers/{group}"
    foreign.ensure_path(f"{root}/ids")
    if "requests" in denied:
        foreign.create(f"{root}/consumerd/requests/orders/0", b"junk", makepath=True)
        foreign.ensure_path(f"{root}/consumerd/roots/lake")  # it has landed files, so a request is left
    else:
        foreign.create(f"{root}/offsets/orders/0", b"4", makepath=True)
    reads_only = command in {"lag", "offsets show", "offsets export"}
    foreign.set_acls(f"{root}/{denied}", [make_acl("world", "anyone", read=not reads_only)])
    assert ask(server, command, group=group) == FAILED
    assert f"{root}/{denied}" in (said := capsys.readouterr().err)
    assert "no permission: check the node's ACL, and cluster.zookeeper_sasl or zookeeper_auth" in said


def test_what_is_left_of_a_deleted_topic_is_not_waiting_for_an_owner(
    server: EmbeddedZooKeeper, foreign: KazooClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """Groups outlive their topics; nobody will ever own that partition again."""
    foreign.create("/consumers/g/offsets/gone/0", b"5", makepath=True)
    foreign.create("/consumers/g/offsets/orders/0", b"5", makepath=True)
    foreign.create("/consumers/g/owners/orders/0", b"g_a-0", makepath=True)
    assert ask(server, "lag") == DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("gone")
    assert lines[1].endswith("topic deleted")
    assert not any("topic deleted" in line for line in lines[2:])
    assert lines[-1] == (
        "total lag unknown: at least 0, unknown in 11 of 11 partitions, 10 of 11 partitions without an owner"
    )


def test_outcomes_are_shown_in_the_order_of_the_partitions(
    server: EmbeddedZooKeeper, foreign: KazooClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever was typed, or settled, first; ten comes after nine."""
    typed = ["orders/10=1", "orders/9=1", "orders/0=1"]
    assert ask(server, "offsets set", *typed, "--yes", "--force", group="moved") == DONE
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[1] for row in rows] == ["0", "9", "10"]


def test_files_that_cannot_be_read_or_written_are_named_as_elsewhere(
    server: EmbeddedZooKeeper, foreign: KazooClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No ``[Errno 2]``."""
    absent, binary = tmp_path / "absent" / "lake.json", tmp_path / "binary"
    binary.write_bytes(b"\xff")
    foreign.ensure_path("/consumers/g")
    for command, file, said in (
        ("offsets export --output", absent, "cannot be written: No such file or directory (--output)"),
        ("offsets set --from-file", absent, "cannot be read: No such file or directory (--from-file)"),
        ("offsets set --from-file", binary, "not UTF-8 (--from-file)"),
    ):
        assert ask(server, f"{command} {file}") == CONFIGURATION
        assert capsys.readouterr().err == f"consumerd: {file}: {said}\n"
