# SPDX-License-Identifier: Apache-2.0
"""``consumerd offsets set``, ``import`` and ``shift`` on Kafka 0.7: a message must begin at the new position."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from consumerd.cli.main import main
from consumerd.wire.compression import Codec
from tests.support.embedded_legacy import LegacyThread, SentMessage
from tests.support.registry import open_registry
from tests.support.zookeeper import run_server

GROUP = "lake"
PARTITION = "events/0-1"
NODE = f"/consumers/{GROUP}/offsets/{PARTITION}"

Run = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LegacyThread]:
    """One broker, whose logs have segments of few messages."""
    folder = tmp_path_factory.mktemp("legacy")
    with run_server() as server:
        at = f"{server.connect_string}/positions"
        with LegacyThread(folder, at, nodes=1, num_partitions=2) as brokers:
            yield brokers


@pytest.fixture(scope="module")
def sent(cluster: LegacyThread) -> list[SentMessage]:
    """Plain messages, a compressed one of three records, and a plain one."""
    plain = cluster.send("events", [b"a" * 50, b"b" * 90], partition=1)
    packed = cluster.send("events", [b"c" * 200, b"d", b"e"], partition=1, codec=Codec.GZIP)
    return [*plain, *packed, *cluster.send("events", [b"f"], partition=1)]


@pytest.fixture
def run(cluster: LegacyThread, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command of ``consumerd offsets`` for the group; return what it prints on stdout and stderr."""

    def run(verb: str, *arguments: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        done = main(["offsets", verb, "-z", cluster.zookeeper, "-g", GROUP, *arguments])
        out, err = capsys.readouterr()
        assert code == done, out + err
        return out, err

    return run


@pytest.fixture
def position(cluster: LegacyThread) -> Iterator[Callable[[], int | None]]:
    """Return the stored position. The group has committed 0 before."""
    with open_registry(cluster.zookeeper) as registry:
        zk = registry.client
        zk.ensure_path(NODE)
        zk.set(NODE, b"0")
        yield lambda: int(zk.get(NODE)[0])


def ask(run: Run, verb: str, position: int, folder: Path, *options: str, code: int = 0) -> tuple[str, str]:
    """Ask for a position by a command, or by a file of one of the formats."""
    if verb == "set":
        return run("set", f"{PARTITION}={position}", "--yes", *options, code=code)
    file = folder / "positions"
    topic, _, key = PARTITION.partition("/")
    if verb == "export":
        document = json.loads(run("export")[0])
        (entry,) = document["offsets"]
        entry["position"] = position
        file.write_text(json.dumps(document))
    else:
        file.write_text(f"{topic},{key},{position}\n" if verb == "csv" else f"{NODE}:{position}\n")
    return run("import", str(file), "--yes", *options, code=code)


@pytest.mark.parametrize("verb", ["set", "csv", "lines", "export"])
def test_a_position_inside_of_a_message_is_refused_with_the_messages_around_it(
    sent: list[SentMessage], run: Run, position: Callable[[], int | None], verb: str, tmp_path: Path
) -> None:
    """A reader would begin with garbage there; nothing is written, and the operator can take one of both."""
    packed = next(one for one in sent if one.index == 1)
    for inside in (packed.offset + 1, packed.next_offset - 1):
        err = ask(run, verb, inside, tmp_path, code=2)[1]
        assert f"{PARTITION}: {inside} is inside of the message at {packed.offset}" in err
        assert f"the next one begins at {packed.next_offset}" in err
        assert "--force" in err
    assert 0 == position()


@pytest.mark.parametrize("verb", ["set", "csv", "lines", "export"])
def test_a_position_at_which_a_message_begins_is_taken(
    sent: list[SentMessage], run: Run, position: Callable[[], int | None], verb: str, tmp_path: Path
) -> None:
    """The start of each message, and the end of the log."""
    for wanted in sorted({one.offset for one in sent} | {sent[-1].next_offset}):
        ask(run, verb, wanted, tmp_path)
        assert wanted == position()


@pytest.mark.parametrize("verb", ["set", "csv"])
def test_a_position_outside_of_the_log_is_refused_with_its_range(
    sent: list[SentMessage], run: Run, position: Callable[[], int | None], verb: str, tmp_path: Path
) -> None:
    """Offsets count bytes: a number of records is soon beyond the end, or is none of a message."""
    end = sent[-1].next_offset
    assert f"{end + 1} is outside the log [0, {end}]" in ask(run, verb, end + 1, tmp_path, code=2)[1]
    assert 0 == position()


def test_force_sets_any_position(
    sent: list[SentMessage], run: Run, position: Callable[[], int | None], tmp_path: Path
) -> None:
    """The partition stops there then, and says why; some know better."""
    ask(run, "set", sent[1].offset + 1, tmp_path, "--force")
    assert sent[1].offset + 1 == position()


def test_a_shift_ends_where_a_message_begins(
    sent: list[SentMessage], run: Run, position: Callable[[], int | None]
) -> None:
    """By bytes: exactly, if a message begins there; else at the next one, which is said; never beyond the log."""
    first, second, packed, last = sent[0], sent[1], sent[2], sent[-1]

    assert "" == run("shift", PARTITION, "--by", f"+{second.offset}", "--yes")[1]
    assert second.offset == position()
    told = run("shift", PARTITION, "--by", f"+{second.next_offset - second.offset + 1}", "--yes")[1]
    assert f"{packed.offset + 1} is inside of a message; moved to the next one, at {packed.next_offset}" in told
    assert packed.next_offset == position()
    told = run("shift", PARTITION, "--by", "+1000000", "--yes")[1]
    assert "moved to its end" in told
    assert last.next_offset == position()
    told = run("shift", PARTITION, "--by", "-1000000", "--yes")[1]
    assert "moved to its beginning" in told
    assert first.offset == position()


def test_a_partition_of_later_releases_is_none_of_this_cluster(sent: list[SentMessage], run: Run) -> None:
    """A file of another cluster: its names have no broker, and its positions count records."""
    assert sent
    assert "events/1" in run("set", "events/1=3", "--yes", code=2)[1]
