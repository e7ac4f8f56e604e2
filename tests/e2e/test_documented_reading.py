# SPDX-License-Identifier: Apache-2.0
"""The readers in README and docs/file-formats.md return each record once, after positions were moved back."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from consumerd.delivery.policy import StartReason
from consumerd.landing.chain import SEALED
from consumerd.landing.landed_columns import LANDED_SCHEMA
from consumerd.model import GapReason
from tests.support.daemon import Daemon
from tests.support.documents import DOCS, README, Block, find_blocks
from tests.support.embedded import EmbeddedThread
from tests.support.offset_commands import offsets, rows

pytestmark = pytest.mark.records

HERE = "tests/e2e/test_documented_reading.py"
BLOCKS = [block for document in (README, DOCS / "file-formats.md") for block in find_blocks(document, test=HERE)]
KEYED = [block for block in BLOCKS if "row_number" in block.text or "table" in block.text]
COUNT = 1_000
KINDS = ("parquet", "jsonl")

Row = tuple[str, int, int, bytes]
"""Topic, partition, offset and value."""


def is_done(daemon: Daemon) -> bool:
    status = daemon.status()
    return (
        len(status["partitions"]) == 4
        and not status["requests"]
        and all(one["lag"] == 0 and one["committed"] == one["high_watermark"] for one in status["partitions"])
    )


def make_settings(cluster: EmbeddedThread, folder: Path) -> dict[str, Any]:
    return {
        "cluster": {"zookeeper": cluster.zookeeper},
        "group": {"id": "documented"},
        "subscriptions": [{"topics": [f"documented-{kind}"], "sink": kind} for kind in KINDS],
        "sinks": {kind: {"type": kind, "path": str(folder / kind), "roll_ms": 300} for kind in KINDS},
        "offsets": {"commit_interval_ms": 100},
    }


@pytest.fixture(scope="module")
def landing(cluster: EmbeddedThread, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `parquet` and `jsonl`: a topic each of 1,000 records, landed in three chains.

    Chains 1 and 2 are from the beginning; chain 3, of partition 0 alone, is from offset 30 on.
    """
    folder = tmp_path_factory.mktemp("documented")
    topics = [f"documented-{kind}" for kind in KINDS]
    for topic in topics:
        cluster.create_topic(topic, 2)
        cluster.produce(topic, b"".join(b"k%d\tv%d\n" % (number, number) for number in range(COUNT)))
    settings = make_settings(cluster, folder)
    moves = (("reset", *topics, "--to", "earliest"), ("set", *(f"{topic}/0=30" for topic in topics)))
    with Daemon(folder, "one", settings) as daemon:
        daemon.wait(lambda: is_done(daemon), "all is landed and committed")
        for move in moves:
            moved = rows(offsets(cluster.zookeeper, "documented", *move, "--yes", "--json"))
            assert {row["outcome"] for row in moved} == {"carried out"}
            daemon.wait(lambda: is_done(daemon), "all is landed and committed again")
        assert daemon.terminate() == 0
    return folder


def read(block: Block, folder: Path) -> list[Row]:
    """Run a block on a landing folder, and return the rows that come of it."""
    kind = find_kind(block)
    text = block.text.replace("/data/landing", str(folder / kind))
    if block.language == "sql":
        with duckdb.connect() as connection:
            # without the timestamps, for which DuckDB's own conversion needs another package
            found = connection.execute(f'SELECT topic, partition, "offset", value FROM ({text})').fetchall()
        return [to_row(dict(zip(("topic", "partition", "offset", "value"), row, strict=True))) for row in found]
    return [to_row(record) for record in to_records(run(text)["table"])]


def find_kind(block: Block) -> str:
    return "jsonl" if "jsonl" in block.text else "parquet"


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "block", "exec"), names)
    return names


def to_records(table: Any) -> Iterable[dict[str, Any]]:
    """Return the rows of a table of pyarrow's, Polars' or pandas'."""
    for method, arguments in (("to_pylist", ()), ("to_dicts", ()), ("to_dict", ("records",))):
        if hasattr(table, method):
            records: Iterable[dict[str, Any]] = getattr(table, method)(*arguments)
            return records
    raise TypeError(f"no table: {type(table)}")


def to_row(record: dict[str, Any]) -> Row:
    value = record["value"]
    return record["topic"], record["partition"], record["offset"], value.encode() if isinstance(value, str) else value


def check_whole(found: list[Row], topic: str) -> None:
    """Each offset once, each value once."""
    places = sorted((partition, offset) for _, partition, offset, _ in found)
    sizes = [sum(partition == number for partition, _ in places) for number in range(2)]

    assert len(found) == COUNT
    assert places == [(number, offset) for number in range(2) for offset in range(sizes[number])]
    assert {place for place, *_ in found} == {topic}
    assert {value for *_, value in found} == {b"v%d" % number for number in range(COUNT)}


def test_there_is_a_reader_for_each_tool() -> None:
    """A block without its mark would be run by nobody."""
    words = ("pyarrow.dataset", "read_parquet(\n    '", "polars", "pandas", "read_json")

    assert [word for word in words if not any(word in block.text for block in KEYED)] == []
    assert [str(block) for block in KEYED if block.document == README] != []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("block", KEYED, ids=str)
def test_reader_returns_each_record_once_after_a_reset(block: Block, landing: Path) -> None:
    """Two chains hold the same records, and a third begins in the middle: all chains read would be 2,473 rows."""
    check_whole(read(block, landing), f"documented-{find_kind(block)}")


@pytest.mark.timeout(120)
def test_reader_of_incarnations_keeps_the_records_of_the_topic_that_was(landing: Path, tmp_path: Path) -> None:
    """Other records at the same offsets are no copies."""
    (block,) = [block for block in KEYED if "_chain.json" in block.text]
    shutil.copytree(landing / "parquet", tmp_path / "parquet")
    (partition,) = (tmp_path / "parquet").glob("topic=*/partition=1")
    shutil.copytree(partition / "chain=2", partition / "chain=3")
    record = json.loads((partition / "chain=3" / "_chain.json").read_text())
    (partition / "chain=3" / "_chain.json").write_text(json.dumps(record | {"incarnation": "999999"}))

    found = read(block, tmp_path)

    again = [row for row in set(found) if found.count(row) == 2]
    assert len(found) == COUNT + len(again)
    assert len(again) > 100
    assert {row[1] for row in again} == {1}


@pytest.mark.timeout(120)
def test_footer_is_read_as_documented(landing: Path) -> None:
    """The keys are those of the page's table."""
    (block,) = [block for block in BLOCKS if block not in KEYED]

    metadata = run(block.text.replace("/data/landing", str(landing / "parquet")))["metadata"]

    assert (metadata["topic"], metadata["position"], metadata["chain"]) == ("documented-parquet", 0, 1)
    assert set(metadata) - documented_keys("A file's metadata") == set()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("heading", "pattern"),
    [
        ("`_consumerd.json`", "_consumerd.json"),
        ("`_chain.json`", "topic=*/*/chain=*/_chain.json"),
        ("A file's metadata", "topic=*/*/chain=*/_meta/*.json"),
        ("The sinks `jsonl`, `stdout` and [`http`](http-sink.md) write the same lines", "topic=*/*/chain=1/0*0.jsonl"),
    ],
)
def test_records_have_the_documented_keys(landing: Path, heading: str, pattern: str) -> None:
    """A reader's author goes by the page."""
    optional = {"broker", "sealed", "key_base64", "value_base64"}

    found: set[str] = set()
    for file in (landing / "jsonl").glob(pattern):
        found |= set(json.loads(file.read_text().splitlines()[0]))

    assert found - documented_keys(heading) == set()
    assert documented_keys(heading) - found <= optional


def documented_keys(heading: str) -> set[str]:
    """Return the keys in the first column of the table that follows a paragraph."""
    text = (DOCS / "file-formats.md").read_text()
    table = text[text.index(f"\n{heading}") :].partition("|---")[2].partition("\n\n")[0]
    return {name for line in table.splitlines()[1:] for name in find_names(line)}


def find_names(line: str) -> Iterator[str]:
    first, second = line.split("|")[1:3]
    for cell in (first, second if "`broker` besides" in second else ""):
        yield from (part for part in cell.split("`")[1::2])


@pytest.mark.timeout(120)
def test_listed_files_may_be_deleted(cluster: EmbeddedThread, landing: Path, tmp_path: Path) -> None:
    """On a full disk, by somebody in a hurry: partitions go on where they were, and nothing counts as missing."""
    (block,) = find_blocks(DOCS / "what-may-be-deleted.md", test=HERE)
    kept: set[Path] = set()
    for kind in KINDS:
        shutil.copytree(landing / kind, tmp_path / kind)
        text = block.text.replace("/data/landing", str(tmp_path / kind))
        said = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout
        listed = {*map(Path, said.splitlines())}
        newest = {find_newest(folder) for folder in (tmp_path / kind).glob("*/partition=*")}
        assert {*find_files(tmp_path / kind)} - listed == newest
        assert len(listed) >= 5
        kept |= newest
        for path in listed:
            path.unlink()
            for metadata in path.parent.glob(f"_meta/{path.name[:20]}.*"):
                metadata.unlink()
        for older in (tmp_path / kind).glob("*/*/chain=1"):
            shutil.rmtree(older)
        cluster.produce(f"documented-{kind}", b"".join(b"more%d\tmore\n" % number for number in range(100)))

    with Daemon(tmp_path, "later", make_settings(cluster, tmp_path)) as daemon:
        daemon.wait(lambda: is_done(daemon), "the rest is landed and committed")
        assert daemon.terminate() == 0
        skipped = daemon.events("range_skipped")

    landed = {path for kind in KINDS for path in find_files(tmp_path / kind)}
    assert skipped == []
    assert kept < landed
    assert {path.parent for path in landed - kept} == {path.parent for path in kept}


def find_files(root: Path) -> Iterator[Path]:
    return root.glob("topic=*/partition=*/chain=*/[0-9]*")


def find_newest(folder: Path) -> Path:
    """Return the newest file of a partition's newest chain."""
    return max(folder.glob("chain=*/[0-9]*"), key=lambda path: (int(path.parent.name[6:]), path.name))


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("`reason` in `_chain.json`", {*StartReason} | {SEALED}),
        ("Reasons of gaps", {*GapReason}),
    ],
)
def test_reasons_are_those_of_the_code(heading: str, expected: set[str]) -> None:
    """A reader meets each of them one day."""
    assert documented_keys(heading) == expected


def test_columns_are_those_of_the_page() -> None:
    """Names, types and whether they may be null."""
    text = (DOCS / "file-formats.md").read_text()
    lines = text[text.index("| column | Arrow type |") :].partition("\n\n")[0].splitlines()[2:]
    documented = [tuple(cell.strip(" `") for cell in line.split("|")[1:4]) for line in lines]

    assert documented == [
        (field.name, describe_type(field.type), "yes" if field.nullable else "no") for field in LANDED_SCHEMA
    ]


def describe_type(kind: pa.DataType) -> str:
    """Return an Arrow type as readers of a file see it, and as the page writes it."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return str(plain).replace(" not null", "").replace("item: ", "").replace("element: ", "")
