# SPDX-License-Identifier: Apache-2.0
"""Names and records of chains, without a disk."""

import json
from dataclasses import replace

import pytest

from consumerd.landing.chain import (
    ChainRecord,
    FileId,
    FileMetadata,
    FileSummary,
    GapLedger,
    RootRecord,
    data_name,
    hidden_name,
    is_hidden,
    meta_name,
    parse_chain_folder,
    parse_data_name,
    parse_meta_name,
    partition_folder,
)
from consumerd.landing.record_fields import MalformedRecord, describe_malformed
from consumerd.model import BrokerId, Gap, GapReason, Incarnation, PartitionKey, TopicPartition
from tests.support.record_batches import build_batch, record

PARTITION = TopicPartition.modern("orders", 3)
CHAIN = ChainRecord(origin=5, incarnation=Incarnation(7, 1), extension="jsonl", reason="earliest", writer="w")


def summary() -> FileSummary:
    file = FileSummary(10)
    file.pass_over(Gap(10, 20, GapReason.CONSUMED_ELSEWHERE))
    file.add(build_batch(PARTITION, [record(20, timestamp=500), record(21), record(22, timestamp=400)]))
    file.add(build_batch(PARTITION, [record(23)]))
    file.add(build_batch(PARTITION, [], start=24, next_offset=26, gaps=[Gap(24, 26, GapReason.CONTROL)]))
    return file


def describe(file: FileSummary) -> FileMetadata:
    return file.describe(PARTITION, writer="w-1", group="g", cluster="1-2", incarnation=Incarnation(7), chain=2)


@pytest.mark.parametrize(
    ("partition", "folders"),
    [
        (PARTITION, ("topic=orders", "partition=3")),
        (TopicPartition("web.log_2-x", PartitionKey(0)), ("topic=web.log_2-x", "partition=0")),
        (TopicPartition("a/b=%", PartitionKey(1, BrokerId(0))), ("topic=a%2Fb%3D%25", "partition=0-1")),
    ],
)
def test_partitions_have_folders_that_spark_reads(partition: TopicPartition, folders: tuple[str, str]):
    """Column names and values come from the path."""
    assert partition_folder(partition) == folders


def test_longest_topic_fits_into_a_name():
    """Kafka allows 249 characters, file systems 255 bytes."""
    assert len(partition_folder(TopicPartition.modern("t" * 249, 0))[0]) == 255


def test_names_sort_as_their_positions():
    """Twenty digits hold every int64."""
    assert data_name(7, "jsonl") == "00000000000000000007.jsonl"
    assert data_name(2**63 - 1, "parquet") > data_name(10**18, "parquet")


def test_names_are_read_back_and_others_are_not():
    """What lies in a folder besides is nobody's business."""
    file_id = FileId("host.1/2-3")
    assert parse_data_name(data_name(12, "jsonl"), "jsonl") == 12
    assert parse_data_name(data_name(12, "jsonl"), "parquet") is None
    assert parse_data_name("12.jsonl", "jsonl") is None
    assert parse_meta_name(meta_name(12, file_id)) == 12
    assert parse_meta_name("readme.json") is None
    assert parse_chain_folder("chain=12") == 12
    assert parse_chain_folder("chain=0") is None
    assert parse_data_name(hidden_name(data_name(12, "jsonl"), file_id), "jsonl") is None
    assert is_hidden(hidden_name(data_name(12, "jsonl"), file_id))
    assert not is_hidden(data_name(12, "jsonl"))
    assert "/" not in meta_name(12, file_id)


def test_records_are_read_back():
    """What was fixed must be understood for as long as the files live."""
    root = RootRecord(root="ab", cluster="1-2", group="g")
    metadata = describe(summary())

    assert RootRecord.parse(root.encode()) == root
    assert ChainRecord.parse(CHAIN.encode()) == CHAIN
    assert FileMetadata.parse(metadata.encode()) == metadata


def test_request_of_a_chain_is_read_back():
    """Whoever claims the partition next must know that the request was carried out."""
    asked = replace(CHAIN, request_id="r1")

    assert ChainRecord.parse(asked.encode()) == asked
    assert "request_id" not in json.loads(CHAIN.encode())


def test_seal_is_read_back_and_no_other_file_says_that_it_is_one():
    """Readers of other languages look for the key alone."""
    seal = FileSummary(26).describe(
        PARTITION, writer="w-1", group="g", cluster="1-2", incarnation=Incarnation(7), chain=2, sealed=True
    )

    assert FileMetadata.parse(seal.encode()) == seal
    assert json.loads(seal.encode())["sealed"] is True
    assert "sealed" not in json.loads(describe(summary()).encode())


def test_empty_file_says_how_large_it_is():
    """Its size is what its metadata are found by, and is nothing that counts as not there."""
    assert json.loads(replace(describe(FileSummary(10)), size=0).encode())["size"] == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"reason": "request"}, False),
        ({"incarnation": Incarnation(7, 2)}, False),
        ({"incarnation": Incarnation(8)}, False),
        ({"request_id": "r1"}, False),
    ],
)
def test_only_a_chain_behind_a_seal_continues_another(change: dict[str, object], expected: bool):
    """Every other one begins where somebody knew better than the writers of the chain before."""
    later = replace(CHAIN, **{"reason": "sealed", **change})  # type: ignore[arg-type]

    assert later.continues(CHAIN) is expected


def test_summary_tells_what_a_file_holds():
    """Times are those of records that have one; the span is covered by records and gaps."""
    metadata = describe(summary())

    assert (metadata.position, metadata.next_offset, metadata.count) == (10, 26, 4)
    assert (metadata.first_offset, metadata.last_offset) == (20, 23)
    assert (metadata.min_timestamp, metadata.max_timestamp) == (400, 500)
    assert [(gap.start, gap.end, gap.reason.value) for gap in metadata.gaps] == [
        (10, 20, "consumed elsewhere"),
        (24, 26, "control"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"format": 3},
        {"format": True},
        {"topic": 3},
        {"partition": "3"},
        {"partition": -1},
        {"broker": -1},
        {"incarnation": "new"},
        {"incarnation": 7},
        {"truncation": None},
        {"truncation": -1},
        {"count": None},
        {"next_offset": 9},
        {"sealed": True},
        {"gaps": {}},
        {"gaps": [3]},
        {"gaps": [{"start": 1, "end": 2, "reason": "bad luck", "offsets": 1}]},
        {"gaps": [{"start": 1, "end": "2", "reason": "control", "offsets": 1}]},
    ],
)
def test_metadata_that_contradicts_its_form_is_refused(change: dict[str, object]):
    """A chain's end is taken from it: a guess would lose or repeat records."""
    fields = json.loads(describe(summary()).encode()) | change

    with pytest.raises(MalformedRecord):
        FileMetadata.parse(json.dumps(fields).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_bytes_that_are_no_record_are_refused(data: bytes):
    """Whatever a disk gives back."""
    with pytest.raises(MalformedRecord):
        ChainRecord.parse(data)


def test_keys_of_later_releases_are_passed_over():
    """A newer member of the group may know more."""
    fields = json.loads(CHAIN.encode()) | {"request": 4}

    assert ChainRecord.parse(json.dumps(fields).encode()) == CHAIN


def test_adjacent_gaps_of_one_reason_are_one():
    """Batches cut what is one hole."""
    ledger = GapLedger()
    for gap in [Gap(0, 5, GapReason.RETENTION), Gap(5, 9, GapReason.RETENTION), Gap(9, 10, GapReason.CONTROL)]:
        ledger.add(gap)

    assert [(gap.start, gap.end, gap.offsets) for gap in ledger.entries()] == [(0, 9, 9), (9, 10, 1)]


def test_gaps_without_number_are_summed_up_by_reason():
    """A compacted topic has as many gaps as records; metadata stays small and the count stays right."""
    ledger = GapLedger(limit=10)
    ledger.add(Gap(0, 100, GapReason.RETENTION))
    for offset in range(100, 1100, 2):
        ledger.add(Gap(offset, offset + 1, GapReason.COMPACTION))

    assert [(gap.start, gap.end, gap.reason, gap.offsets) for gap in ledger.entries()] == [
        (0, 100, GapReason.RETENTION, 100),
        (100, 1099, GapReason.COMPACTION, 500),
    ]


def test_a_record_of_another_release_is_told_from_a_damaged_one() -> None:
    """To restore it from a copy would not help: what is needed is the release that wrote it."""
    later = json.dumps({**json.loads(CHAIN.encode()), "format": 3}).encode()
    with pytest.raises(MalformedRecord) as refused:
        ChainRecord.parse(later)
    assert describe_malformed("here", refused.value) == (
        "here is of another release: format 3, this release reads 1 and 2; run the release that wrote it, or a later one"
    )
    by_other_id = json.dumps({**json.loads(CHAIN.encode()), "incarnation": "Ff3kT0sQRuSJ5jWyPdxg2A:7"}).encode()
    with pytest.raises(MalformedRecord) as unknown:
        ChainRecord.parse(by_other_id)
    assert "is of another release" in describe_malformed("here", unknown.value)
    with pytest.raises(MalformedRecord) as damaged:
        ChainRecord.parse(later[:-4])
    assert describe_malformed("here", damaged.value).startswith("here is damaged: no JSON")
    assert ChainRecord.parse(json.dumps({**json.loads(CHAIN.encode()), "added later": 1}).encode()) == CHAIN


def test_topic_id_stands_where_the_czxid_does() -> None:
    """In a cluster without ZooKeeper."""
    incarnation = Incarnation(0, 2, topic_id="Ff3kT0sQRuSJ5jWyPdxg2A")
    record = replace(CHAIN, incarnation=incarnation)

    fields = json.loads(record.encode())

    assert ("Ff3kT0sQRuSJ5jWyPdxg2A", 2) == (fields["incarnation"], fields["truncation"])
    assert record == ChainRecord.parse(record.encode())
