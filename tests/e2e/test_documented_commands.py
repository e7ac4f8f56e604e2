# SPDX-License-Identifier: Apache-2.0
"""The commands of README and docs, run as they stand there: one cluster, one group with a daemon, and its data.

The scene has the names of the documents: topics ``orders``, ``clicks`` and ``greetings``, the group ``lake``, and
README's first config. Only addresses and ``/data`` are replaced.
"""

from __future__ import annotations

import ast
import asyncio
import re
import shlex
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from consumerd.cli.main import main
from consumerd.embedded.zookeeper import EmbeddedZooKeeper
from tests.support.daemon import Daemon
from tests.support.damage import flip_byte
from tests.support.documented import as_typed, commands, make_shell, run, run_until
from tests.support.documents import DOCS, README, Block, find_blocks, find_documents
from tests.support.embedded import EmbeddedThread
from tests.support.kafka import Sent
from tests.support.ledger import Ledger

HERE: Final = "tests/e2e/test_documented_commands.py"
BLOCKS: Final = [block for document in find_documents() for block in find_blocks(document, test=HERE)]
FIRST_CONFIG: Final = "tests/architecture/test_documents.py"
COUNTS: Final = (4_300, 100, 100, 4_711)
"""Records of ``orders`` before the damaged one, by partition: the documents have offsets 0/4200 and 3/4711."""
BEHIND, CLICKS = 5, 100
TOTAL: Final = sum(COUNTS) + 1 + BEHIND + CLICKS
TIMEOUT_S: Final = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a documented command does.

    ``says`` is looked for in what it prints. ``answer`` is what stands for the answer on a terminal: without it the
    command is refused. A command that runs until Ctrl-C is interrupted as soon as ``until`` holds of its output.
    """

    says: str
    code: int = 0
    answer: str = ""
    until: Callable[[Path], bool] | None = None


def has_lines(count: int) -> Callable[[Path], bool]:
    return lambda folder: (folder / "out").read_bytes().count(b"\n") >= count


def is_ready(folder: Path) -> bool:
    """Whether the member does its part of the group, as /readyz says."""
    started = re.search(r'"url": "(http://[^"]+)"', (folder / "err").read_text())
    if started is None:
        return False
    try:
        with urllib.request.urlopen(f"{started[1]}/readyz", timeout=5):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False


EXPECTED: Final[Mapping[str, Expected]] = {
    # settings
    "consumerd check-config --config config.yaml": Expected(says=r"group\.id +lake +config\.yaml"),
    "consumerd check-config --config config.yaml --format json": Expected(says=r'"settings": \[\{.*"warnings": \[\]'),
    "consumerd check-config --config config.yaml --strict": Expected(says=r"group\.id +lake"),
    # a look at the group
    "consumerd doctor --config config.yaml": Expected(says=r"^NOTICE metrics-on-loopback"),
    "consumerd doctor -z zk1:2181/kafka -g lake": Expected(says=r"^nothing found$"),
    "consumerd doctor --zookeeper zk1:2181/kafka --group lake": Expected(says=r"^nothing found$"),
    "consumerd topics --zookeeper zk1:2181/kafka": Expected(says=r"clicks +1 .*\n.*greetings +1 .*\n.*orders +4 "),
    "consumerd lag --zookeeper zk1:2181/kafka --group lake": Expected(says=r"total lag \d+, 0 of 5 partitions"),
    "consumerd explain-rebalance --zookeeper zk1:2181/kafka --group lake --replicas 2": Expected(
        says=r"^1 member, 5 partitions, \d would move with 2 more replicas$"
    ),
    "consumerd groups --zookeeper zk1:2181/kafka": Expected(
        says=r"^GROUP .*^lake +zookeeper +1 +Stable +zookeeper +clicks, orders +\d+$"
    ),
    "consumerd groups -z zk1:2181/kafka": Expected(
        says=r"^lake +zookeeper +1 +Stable +zookeeper +clicks, orders +\d+$"
    ),
    "consumerd groups describe lake -z zk1:2181/kafka": Expected(
        says=r"^group lake: registered: zookeeper, 1 member, state: Stable, .*consumerd$.*^orders +3 +lake_"
    ),
    "consumerd lag --all-groups -z zk1:2181/kafka": Expected(says=r"^total lag \d+, .* partitions.*, in \d+ groups?$"),
    # positions
    "consumerd offsets show -z zk1:2181/kafka -g lake": Expected(says=r"orders +3 "),
    "consumerd offsets export -z zk1:2181/kafka -g lake --output lake.json": Expected(
        says=r"5 positions of group lake in lake\.json"
    ),
    "consumerd offsets set -z zk1:2181/kafka -g lake orders/0=4200 --dry-run": Expected(
        says=r"orders +0 .* 4200  reads \d+ again +by its owner"
    ),
    "consumerd offsets reset -z zk1:2181/kafka -g lake orders --to 2024-05-01T00:00:00Z": Expected(
        says=r"(orders .* carried out\n){4}", answer="--yes"
    ),
    "consumerd offsets import -z zk1:2181/kafka -g lake lake.json": Expected(
        says=r"orders .* carried out", answer="--yes"
    ),
    "consumerd offsets shift -z zk1:2181/kafka -g lake orders/0 --by -100": Expected(
        says=r"orders +0 .* reads 100 again +carried out", answer="--yes"
    ),
    "consumerd offsets migrate plan -z zk1:2181/kafka -g lake": Expected(
        says=r"orders +0 .*1 member alive\. They commit to ZooKeeper alone.*step 1: restart each member"
    ),
    "consumerd offsets migrate plan --zookeeper zk1:2181/kafka --group lake": Expected(says=r"step 3: restart each"),
    "consumerd offsets migrate apply -z zk1:2181/kafka -g lake --dry-run": Expected(
        says=r"5 partitions of topics that live members consume left alone", code=1
    ),
    "consumerd offsets migrate verify -z zk1:2181/kafka -g lake --wait 5": Expected(
        says=r"do not set offsets\.dual_commit: false", code=1
    ),
    "consumerd offsets export --zookeeper zk1:2181/kafka --group lake --output lake.json": Expected(
        says=r"5 positions of group lake in lake\.json"
    ),
    "consumerd offsets reset --zookeeper zk1:2181/kafka --group lake orders --to 2024-05-01T00:00:00Z --dry-run": (
        Expected(says=r"orders +0 .* reads \d+ again +by its owner")
    ),
    "consumerd offsets cancel --zookeeper zk1:2181/kafka --group lake orders": Expected(
        says=r"there is no request", code=1
    ),
    # records; one of orders/3 is damaged
    "consumerd tail orders --zookeeper zk1:2181/kafka": Expected(
        says=r'"partition":0.*"offset":4[0-9]+.*orders/3: offset 4711: left out: ', code=1
    ),
    "consumerd tail clicks --zookeeper zk1:2181/kafka --follow": Expected(
        says=r'^\{"topic":"clicks",.*"offset":99,', until=has_lines(10)
    ),
    "consumerd tail orders -z zk1:2181/kafka": Expected(says=r'"partition":3.*"offset":4716', code=1),
    "consumerd tail orders -z zk1:2181/kafka --partition 0 --from 4200 --count 1": Expected(
        says=r'^\{.*"offset":4200,'
    ),
    "consumerd tail orders -z zk1:2181/kafka --at 2024-05-01T12:00:00Z --format text": Expected(
        says=r"^orders/0\t4[0-9]+\t", code=1
    ),
    "consumerd tail clicks -z zk1:2181/kafka --follow --format value": Expected(says=r"^99$", until=has_lines(10)),
    "consumerd tail orders --config config.yaml --from EARLIEST --format key-value": Expected(
        says=r"^k\t4[0-9]+$", code=1
    ),
    # what was passed over
    "consumerd quarantine list --config config.yaml": Expected(says=r"orders +3 +4711 "),
    "consumerd quarantine list --config config.yaml orders --cause corrupt": Expected(says=r"orders +3 +4711 "),
    "consumerd quarantine show --config config.yaml orders/3@4711": Expected(
        says=r"cause +corrupt$.*^1 record .*^00000000 "
    ),
    "consumerd quarantine show --path /data/quarantine orders/3@4711": Expected(
        says=r"cause +corrupt$.*^1 record .*^00000000 "
    ),
    "consumerd quarantine show --path /data/quarantine orders/3@4711 --raw": Expected(says=r"^\0{4}.*to be spoilt"),
    # writing
    "echo hello | consumerd produce greetings --zookeeper zk1:2181/kafka": Expected(
        says=r"^consumerd: 1 record acknowledged, 5 bytes"
    ),
    r"consumerd produce orders --bootstrap broker1:9092 --file orders.tsv --key-separator '\t' --codec lz4": Expected(
        says=r"^consumerd: 10 records acknowledged, 20 bytes in \d partitions? of orders"
    ),
    # daemons
    "consumerd run --zookeeper zk1:2181/kafka --group try --topics orders": Expected(
        says=r'^\{"topic":"orders",', until=has_lines(sum(COUNTS))
    ),
    "consumerd run --zookeeper zk1:2181/kafka --group lake --topics orders --sink parquet=/data/landing": (
        Expected(says="", until=is_ready)
    ),
    "consumerd run --config config.yaml": Expected(says="", until=is_ready),
    "consumerd run --properties consumer.properties --topics orders --sink parquet=/data/landing": Expected(
        says="", until=is_ready
    ),
    "curl http://127.0.0.1:9309/api/v1/status": Expected(says=r'"group": "lake"'),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A cluster with a running group, in whose folder the commands run."""

    folder: Path
    cluster: EmbeddedThread
    daemon: Daemon
    shell: Mapping[str, str]

    def localize(self, text: str) -> str:
        """Replace the addresses and folders of the documents by those of the scene."""
        for documented, here in (
            ("zk1:2181,zk2:2181,zk3:2181/kafka", self.cluster.zookeeper),
            ("zk1:2181/kafka", self.cluster.zookeeper),
            ("broker1:9092,broker2:9092", self.cluster.bootstrap),
            ("broker1:9092", self.cluster.bootstrap),
            ("http://127.0.0.1:9309", self.daemon.url),
            ("/data/", f"{self.folder}/data/"),
        ):
            text = text.replace(documented, here)
        return text


def has_landed_all(daemon: Daemon) -> bool:
    return sum(one["committed"] or 0 for one in daemon.status()["partitions"]) == TOTAL


def is_settled(daemon: Daemon) -> bool:
    """Whether it has all partitions, after a member that another block has started is gone."""
    status = daemon.status()
    return status["ready"] and len(status["partitions"]) == 5 and not status["requests"]


def fill(cluster: EmbeddedThread) -> None:
    """Write the records, and change a byte of the one at offset 4711 of ``orders/3`` in the broker's log."""
    cluster.create_topic("orders", 4)
    cluster.create_topic("clicks", 1)
    cluster.create_topic("greetings", 1)
    before = [Sent("orders", place, b"k", b"%d" % at) for place, count in enumerate(COUNTS) for at in range(count)]
    behind = [Sent("orders", 3, b"k", b"behind %d" % at) for at in range(BEHIND)]
    clicks = [Sent("clicks", 0, None, b"%d" % at) for at in range(CLICKS)]
    for batch in ([*before, *clicks], [Sent("orders", 3, b"k", b"to be spoilt, to be spoilt")], behind):
        producer = Ledger(cluster.bootstrap)
        producer.send(batch)
        producer.finish()
    (segment,) = cluster.segments("orders", 3)
    assert flip_byte(segment, b"to be spoilt, to be spoilt").first == COUNTS[3]


@pytest.fixture(scope="module")
def scene(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The group ``lake`` with one member, which has landed all there is, and put a damaged record into quarantine."""
    folder = tmp_path_factory.mktemp("documented")
    with EmbeddedThread(folder / "cluster", f"{zookeeper.connect_string}/documented") as cluster:
        fill(cluster)
        (first,) = find_blocks(README, "yaml", FIRST_CONFIG)
        settings = yaml.safe_load(first.text.replace("/data/", f"{folder}/data/"))
        settings |= {
            "cluster": {"zookeeper": cluster.zookeeper},
            "offsets": {"commit_interval_ms": 100},
            "fetch": {"on_corrupt": "quarantine"},
            "quarantine": {"path": f"{folder}/data/quarantine"},
        }
        settings["sinks"]["files"]["roll_ms"] = 300
        (folder / "data").mkdir()
        (folder / "orders.tsv").write_text("k\tv\n" * 10)
        (folder / "consumer.properties").write_text(f"zookeeper.connect={cluster.zookeeper}\ngroup.id=java\n")
        with Daemon(folder, "daemon", settings) as daemon:
            daemon.wait(lambda: has_landed_all(daemon), "all is landed and committed")
            settings["http"] = {"listen": daemon.url.removeprefix("http://")}
            (folder / "config.yaml").write_text(yaml.safe_dump(settings))
            yield Scene(folder=folder, cluster=cluster, daemon=daemon, shell=make_shell(folder / "bin"))
            assert daemon.terminate() == 0


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("block", [one for one in BLOCKS if one.language == "sh"], ids=str)
def test_documented_commands_do_what_they_say(
    scene: Scene, block: Block, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What people type first is what stands in the documents."""
    monkeypatch.chdir(scene.folder)
    scene.daemon.wait(lambda: is_settled(scene.daemon), "all partitions are its own")
    for typed in map(as_typed, commands(block)):
        assert typed in EXPECTED, f"{block}: say in EXPECTED what it does: {typed}"
        expected = EXPECTED[typed]
        command = scene.localize(typed)
        if expected.until is not None:
            # beside the daemon of the scene, so not into its folder, nor as a member with other topics
            own = "of-java" if "--properties" in command else "other"
            command = command.replace("group.id=lake", f"group.id={own}").replace("data/landing", f"data/{own}")
            printed = run_until(command, scene.shell, scene.folder, expected.until, typed)
        elif command.startswith("curl "):
            with urllib.request.urlopen(command.removeprefix("curl "), timeout=5) as answer:
                printed = answer.read().decode()
        elif "|" in command:
            printed = run(command, scene.shell, scene.folder)
        else:
            printed = run_here(command, expected, capfdbinary)
        assert re.search(expected.says, printed, re.MULTILINE | re.DOTALL), f"{typed}:\n{printed}"


def run_here(command: str, expected: Expected, output: pytest.CaptureFixture[bytes]) -> str:
    """Run a command in this process, which saves a second each, and return what it printed."""
    words = shlex.split(command)[1:]
    output.readouterr()
    if expected.answer:
        # nobody can be asked here: the document says what to write then
        assert main(words) == 2
        assert expected.answer in output.readouterr().err.decode()
        words.append(expected.answer)
    code = main(words)
    found = output.readouterr()
    assert code == expected.code, f"{command}:\n{found.out.decode()}{found.err.decode()}"
    return found.out.decode(errors="replace") + found.err.decode(errors="replace")


def test_there_is_a_command_for_each_expectation() -> None:
    """One that no document has any more says nothing."""
    typed = {as_typed(command) for block in BLOCKS if block.language == "sh" for command in commands(block)}

    assert sorted(EXPECTED.keys() - typed) == []
    assert {block.document.name for block in BLOCKS} >= {"README.md", "operations.md", "for-sre.md"}


def run_top_level(text: str, names: dict[str, Any]) -> None:
    """Run Python that awaits outside of a function, as a document shows it."""
    code = compile(text, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    pending = eval(code, names)
    if pending is not None:
        asyncio.run(_wait(pending))


async def _wait(pending: Any) -> None:
    await pending


@pytest.mark.timeout(TIMEOUT_S)
def test_producer_in_a_program_writes_what_it_says(scene: Scene) -> None:
    """Two records, acknowledged, one with its place."""
    (block,) = (one for one in BLOCKS if one.document == README and one.language == "python")
    before = scene.cluster.count("orders", 4)
    names: dict[str, Any] = {}

    run_top_level(scene.localize(block.text), names)

    assert scene.cluster.count("orders", 4) == before + 2
    assert names["written"].offset >= 0


@pytest.mark.timeout(TIMEOUT_S)
def test_embedded_cluster_in_a_program_serves_and_fails_as_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster of its own, with the page's faults armed and taken back."""
    start, _, faults = (one for one in BLOCKS if one.document == DOCS / "embedded.md")
    indented = "".join(f"    {line}\n" for line in faults.text.splitlines())

    run_top_level(EMBEDDED_IMPORTS + start.text + indented, {})

    assert re.search(r"^127\.0\.0\.1:\d+ 127\.0\.0\.1:\d+", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.timeout(TIMEOUT_S)
def test_embedded_brokers_in_a_program_stop_start_and_lead_as_told() -> None:
    """Two brokers; the last one is killed at the end of the block, which ends all the same."""
    _, several, _ = (one for one in BLOCKS if one.document == DOCS / "embedded.md")

    run_top_level(EMBEDDED_IMPORTS + several.text, {})


EMBEDDED_IMPORTS: Final = """
from consumerd.embedded.cluster import EmbeddedCluster
from consumerd.model import BrokerId, TopicPartition
from consumerd.wire.apikeys import ApiKey
from consumerd.wire.errorcodes import ErrorCode
"""
