# SPDX-License-Identifier: Apache-2.0
"""The commands and programs of docs/spark.md and its neighbours, run in the order in which they stand there.

The landing zone has what the page's own settings declare: orders in JSON. Only addresses and folders are replaced.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from kazoo.client import KazooClient
from pyspark.sql import SparkSession

from consumerd.model import Incarnation, TopicPartition
from consumerd.spark.cli import main
from consumerd.spark.table.reading import read_table
from consumerd.wire.records import Record
from tests.support.documented import as_typed, commands
from tests.support.documents import DOCS, Block, find_blocks, find_documents
from tests.support.embedded import EmbeddedThread
from tests.support.landing_zone import FIRST_MS, LandingZone
from tests.support.record_batches import record
from tests.support.zookeeper import run_server

pytestmark = pytest.mark.records

HERE: Final = "tests/spark/test_documented_pipeline.py"
PAGE: Final = DOCS / "spark.md"
BLOCKS: Final = list(
    dict.fromkeys(block for document in (PAGE, *find_documents()) for block in find_blocks(document, test=HERE))
)
COUNT: Final = 60
KEYS: Final = {11: b"anna-4711", 20: b"berta"}
"""Keys that the page erases by, as a dry run and by ``keys.txt``. It erases offset 17 as well, by predicate."""
BAD: Final = 30
"""The offset of a record that is no JSON."""


def make_order(partition: TopicPartition, incarnation: Incarnation, offset: int) -> Record:
    """Return an order as the page declares it."""
    at = FIRST_MS + offset * 1000
    order = {"order": offset, "placed_ms": at, "total": 12.5, "lines": [{"article": 1, "quantity": 2}]}
    value = b"{" if offset == BAD else json.dumps(order).encode()
    return record(offset, value, key=KEYS.get(offset, b"anna-%d" % offset), timestamp=at)


SAYS: Final[Mapping[str, str]] = {
    "consumerd-spark audit --config landed/worker-1.yaml": r"^records +60$.*^audit: done, no findings",
    "consumerd-spark bronze --config landed/worker-1.yaml": r"^rows +60$.*^bronze: done, no findings",
    "consumerd-spark silver --config landed/worker-1.yaml": r"^decoded +59$\n^quarantined +1$",
    "consumerd-spark stats --config landed/worker-1.yaml": r"^records +60$.*^stats: done, no findings",
    "consumerd-spark compact --config landed/worker-1.yaml": r"^tables +5$.*^compact: done, no findings",
    "consumerd-spark audit --landing /data/landing": r"^records +60$.*^audit: done, no findings",
    "consumerd-spark bronze --landing /data/landing --path /data/lake": r"^nothing new has landed$",
    "consumerd-spark bronze --config config.yaml --json": r'"job": "bronze", "status": "ok"',
    "consumerd-spark silver --config config.yaml --json": r'"job": "silver", "status": "ok"',
    "consumerd-spark describe --path /data/lake": r"^silver/orders +1 .* 59 ",
    "consumerd-spark history bronze --path /data/lake": r"^ +1 .* append +bronze +60 ",
    "consumerd-spark files silver/orders --version 1 --path /data/lake": r"^day=\S+\.parquet +59 ",
    "consumerd-spark quarantine --path /data/lake": r"^orders +bad value +1 ",
    "consumerd-spark vacuum --dry-run --path /data/lake": r"^bronze .*^nothing was removed \(--dry-run\)$",
    "consumerd-spark restore bronze --version 1 --dry-run --path /data/lake": (
        r"^rows before +60$.*^nothing was changed \(--dry-run\)$"
    ),
    "consumerd-spark erase --topic orders --key anna-4711 --dry-run --config config.yaml": (
        r"^bronze +1 .*^a dry run: nothing was changed$"
    ),
    "consumerd-spark erase --topic orders --keys-file keys.txt --report proof.json --config config.yaml": (
        r"^erased +4$.*^matches left +0$"
    ),
    "consumerd-spark erase --topic orders --where 'value.order = 17' --config config.yaml": (
        r"^erased +4$.*^matches left +0$"
    ),
}
"""What each command prints, looked for as a pattern. One that ends otherwise than with 0 fails anyway."""
FINDS: Final = {
    "consumerd-spark silver --config config.yaml --json",
    "consumerd-spark silver --config landed/worker-1.yaml",
}
"""Jobs that decode the bad record, one of which ends with 1 for that."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run: the landing zone, settings from the page, and the demo's names for both."""
    folder = tmp_path_factory.mktemp("documented")
    LandingZone(folder / "data" / "landing", make=make_order).land("orders", 0, 0, COUNT, files=2)
    (block,) = find_blocks(PAGE, "yaml", HERE)
    settings = yaml.safe_load(localize(block.text, folder))
    settings["sinks"] = {"files": {"type": "parquet", "path": f"{folder}/data/landing"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    (folder / "landed").mkdir()
    (folder / "landed" / "worker-1.yaml").write_text(yaml.safe_dump(settings))
    (folder / "landed" / "lake").symlink_to(folder / "data" / "lake")
    (folder / "keys.txt").write_text("berta\n")
    return folder


def localize(text: str, folder: Path) -> str:
    return text.replace("/data/", f"{folder}/data/")


def typed_in(block: Block) -> list[str]:
    if block.language != "sh" or "<<'PYTHON'" in block.text:
        return []
    return [as_typed(one.strip()) for line in commands(block) for one in line.split("; ")]


def test_the_pages_commands_go_as_written(
    spark: SparkSession, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, as on the page; what was erased is gone, and the rest is there."""
    monkeypatch.chdir(folder)
    run: set[str] = set()
    codes: dict[str, int] = {}
    for block in BLOCKS:
        for typed in typed_in(block):
            if typed in run:
                continue  # a neighbour repeats it
            assert typed in SAYS, f"{block}: say in SAYS what it prints: {typed}"
            capsys.readouterr()
            code = main([*shlex.split(localize(typed, folder))[1:], "--quiet"])
            out, err = capsys.readouterr()
            assert code == 0 or typed in FINDS, f"{block}: {typed}: {code}\n{out}{err}"
            assert re.search(SAYS[typed], out, re.MULTILINE | re.DOTALL), f"{typed}:\n{out}"
            codes[typed] = code
            run.add(typed)
        if "<<'PYTHON'" in block.text:
            exec(block.text.partition("<<'PYTHON'\n")[2].rpartition("PYTHON")[0], {})

    assert sorted(codes[one] for one in FINDS) == [0, 1]
    assert json.loads((folder / "proof.json").read_text())
    left = {row["offset"] for row in read_table(spark, folder / "data/lake/silver/orders").select("offset").collect()}
    assert left == {*range(COUNT)} - {BAD, 17, 20}
    assert sorted(SAYS.keys() - run) == []


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A broker with the topic ``orders``, of which the group ``lake`` has read a part."""

    broker: EmbeddedThread

    def localize(self, text: str, folder: Path) -> str:
        return localize(text, folder).replace("zk1:2181/kafka", self.broker.zookeeper)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with (
        run_server() as zookeeper,
        EmbeddedThread(tmp_path_factory.mktemp("broker"), f"{zookeeper.connect_string}/documented") as broker,
    ):
        broker.create_topic("orders", 1)
        broker.produce("orders", b"".join(b"k%d\tv%d\n" % (number, number) for number in range(COUNT)))
        client = KazooClient(broker.zookeeper)
        client.start()
        try:
            client.create("/consumers/lake/offsets/orders/0", b"40", makepath=True)
        finally:
            client.stop()
            client.close()
        yield Cluster(broker=broker)


def test_the_pages_programs_go_as_written(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    """A batch from where a group stands, a stream into files, a stream into a table, and records sent."""
    batch, stream, table, send = (block for block in BLOCKS if block.language == "python")
    names: dict[str, Any] = {"spark": spark}

    exec(cluster.localize(batch.text, tmp_path), names)
    assert sorted(row["offset"] for row in names["frame"].collect()) == [*range(40, COUNT)]

    exec(cluster.localize(stream.text, tmp_path), names)
    assert spark.read.parquet(str(tmp_path / "data/orders")).count() == COUNT

    exec(cluster.localize(table.text, tmp_path), names)
    (running,) = spark.streams.active
    running.processAllAvailable()
    running.stop()
    assert read_table(spark, tmp_path / "data/raw").count() == COUNT

    exec(cluster.localize(send.text, tmp_path), {"frame": spark.range(3)})
    assert cluster.broker.count("orders") == COUNT + 3
