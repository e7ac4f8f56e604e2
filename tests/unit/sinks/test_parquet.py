# SPDX-License-Identifier: Apache-2.0
"""Parquet files: columns, row groups, memory, and what Arrow refuses."""

import errno
import mmap
import random
import threading
from array import array
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consumerd.errors import PermanentSinkError, RetriableSinkError
from consumerd.landing.landed_columns import PLACE_COLUMNS
from consumerd.model import BrokerId, GapReason, PartitionKey, TopicPartition
from consumerd.sinks import parquet
from consumerd.sinks.arrow_pieces import LARGEST_COLUMN_BYTES, to_pieces
from consumerd.sinks.base import Start
from consumerd.sinks.parquet import ParquetOptions, ParquetSink
from tests.support.claims import StubClaim
from tests.support.clocks import ManualClock
from tests.support.faulty_files import RecordingFileSystem
from tests.support.record_batches import build_batch, record
from tests.support.sinks import PARTITION, SinkRig, run_of

pytestmark = pytest.mark.usefixtures("each_path")


@pytest.fixture
async def rig(tmp_path: Path):
    rig = SinkRig(kind="parquet", path=tmp_path / "landing", clock=ManualClock(), roll_bytes=1 << 30)
    yield rig
    await rig.close()


def landed(rig: SinkRig) -> list[Path]:
    return sorted(rig.path.rglob("0*.parquet"))


async def test_columns_are_those_that_were_promised(rig: SinkRig):
    """Whoever reads the files has no other source of their types."""
    writer = await rig.writer()
    headers = (("a", b"x"), ("b", None))
    await writer.write(build_batch(PARTITION, [record(0, None, key=b"\xff", timestamp=17, headers=headers), record(1)]))
    await writer.flush()
    table = pq.read_table(landed(rig)[0], partitioning=None)

    fields = {field.name: field.type for field in table.schema}
    place = [pa.string(), pa.int32(), pa.int32()]
    assert list(fields) == [
        *("topic", "partition", "broker"),
        *("offset", "next_offset", "index", "timestamp", "timestamp_type", "key", "value", "headers"),
    ]
    assert [fields[name] for name in ("topic", "partition", "broker")] == place
    assert [
        fields[name] for name in ("offset", "next_offset", "index", "timestamp", "timestamp_type", "key", "value")
    ] == [pa.int64(), pa.int64(), pa.int32(), pa.timestamp("ms", "UTC"), pa.int8(), pa.binary(), pa.binary()]
    assert pa.types.is_list(fields["headers"])
    assert table["key"].to_pylist() == [b"\xff", None]
    assert table["value"].to_pylist() == [None, b"value"]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [17, None]
    assert table["timestamp_type"].to_pylist() == [0, -1]
    assert table["headers"].to_pylist() == [[{"key": "a", "value": b"x"}, {"key": "b", "value": None}], []]


@pytest.mark.parametrize(("compression", "codec"), [("zstd", "ZSTD"), ("snappy", "SNAPPY"), ("none", "UNCOMPRESSED")])
async def test_pages_are_compressed_as_configured(rig: SinkRig, compression, codec: str):
    """Some readers have no zstd."""
    options = ParquetOptions(path=rig.path, compression=compression)
    sink = ParquetSink(rig.context(), options)
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(Start(position=0, reason="earliest"))
    await writer.write(run_of(0, 1000))
    await writer.flush()
    await sink.close()

    assert pq.read_metadata(landed(rig)[0]).row_group(0).column(9).compression == codec
    assert rig.offsets() == list(range(1000))


async def test_zstd_works_as_hard_as_configured(rig: SinkRig):
    """Whoever has more to read than to keep wants it fast, others small."""
    words = random.Random(1)
    rows = [record(n, b" ".join(words.choices([b"alpha", b"beta", b"gamma", b"delta"], k=40))) for n in range(500)]
    sizes = []
    for number, level in enumerate((-20, 1, 19)):
        options = ParquetOptions(path=rig.path / str(number), compression_level=level)
        rig.roots.recorded.clear()
        sink = ParquetSink(rig.context(), options)
        writer = await sink.open(StubClaim(PARTITION))
        await writer.start(Start(position=0, reason="earliest"))
        await writer.write(build_batch(PARTITION, rows))
        await writer.flush()
        await sink.close()
        column = pq.read_metadata(landed(rig)[number]).row_group(0).column(9)
        assert column.compression == "ZSTD"
        sizes.append(column.total_compressed_size)

    assert sizes[0] > sizes[1] > sizes[2]


async def test_payloads_have_a_dictionary_only_where_they_repeat(rig: SinkRig):
    """It costs time, and where it overflows, for nothing."""
    writer = await rig.writer()
    rows = [record(offset, b"%d" % offset, key=b"k%d" % (offset % 3)) for offset in range(1000)]
    await writer.write(build_batch(PARTITION, rows))
    await writer.flush()
    columns = pq.read_metadata(landed(rig)[0]).row_group(0)

    assert "RLE_DICTIONARY" in columns.column(8).encodings
    assert "RLE_DICTIONARY" not in columns.column(9).encodings
    assert not columns.column(9).is_stats_set
    assert columns.column(3).statistics.max == 999


async def test_pages_carry_checksums_that_find_a_flipped_byte(rig: SinkRig):
    """Incompressible values have no redundancy of their own: only the page's CRC notices a bit that a disk changed."""
    options = ParquetOptions(path=rig.path, compression="none")
    sink = ParquetSink(rig.context(), options)
    writer = await sink.open(StubClaim(PARTITION))
    await writer.start(Start(position=0, reason="earliest"))
    value = random.Random(1).randbytes(1000)
    await writer.write(build_batch(PARTITION, [record(0, value)]))
    await writer.flush()
    await sink.close()
    (path,) = landed(rig)
    data = bytearray(path.read_bytes())
    data[data.index(value) + 500] ^= 1
    path.write_bytes(data)

    with pytest.raises(OSError, match="CRC"):
        pq.read_table(path, partitioning=None, page_checksum_verification=True)


async def test_row_groups_are_written_when_there_is_enough(rig: SinkRig):
    """What is held is bounded, charged, and given back."""
    writer = await rig.writer()
    size, count = 1 << 20, 20
    for offset in range(count):
        await writer.write(run_of(offset, offset + 1, size=size))
        assert 0 <= rig.charged < 3.1 * parquet.ROW_GROUP_BYTES  # what is collected, and twice what is being written
    assert rig.charged > 0
    await writer.flush()

    assert rig.charged == 0
    metadata = pq.read_metadata(landed(rig)[0])
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [8, 8, 4]


class HeldFileSystem(RecordingFileSystem):
    """Holds what is written of data files back until it is released; may fail it then."""

    def __init__(self) -> None:
        super().__init__(self._hold)
        self.released = threading.Event()
        self.released.set()
        self.failing = False
        self.failure: Exception = OSError(errno.ENOSPC, "No space left on device")

    def _hold(self, operation: str, name: str) -> None:
        if operation == "write" and name.startswith(".0"):
            assert self.released.wait(20)
            if self.failing:
                raise self.failure


async def test_a_row_group_is_written_while_the_next_is_collected(rig: SinkRig):
    """Encoding and the disk take as long as fetching; what is on the way is charged for."""
    files = HeldFileSystem()
    writer = await rig.writer(0, files=files)
    files.released.clear()
    size = parquet.ROW_GROUP_BYTES // 4
    for offset in range(6):
        await writer.write(run_of(offset, offset + 1, size=size))
    assert rig.charged > 2 * parquet.ROW_GROUP_BYTES + 2 * size
    files.released.set()
    assert await writer.flush() == 6

    assert rig.charged == 0
    assert rig.offsets() == list(range(6))
    metadata = pq.read_metadata(landed(rig)[0])
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [4, 2]


async def test_a_row_group_that_is_being_written_counts_once_for_the_size_of_its_file(rig: SinkRig):
    """It takes twice as much memory; files would be published far too small for that."""
    rig.roll_bytes = parquet.ROW_GROUP_BYTES * 3 // 2
    files = HeldFileSystem()
    writer = await rig.writer(0, files=files)
    files.released.clear()
    threading.Timer(1, files.released.set).start()  # or it would wait for ever where it publishes

    assert await writer.write(run_of(0, 1, size=parquet.ROW_GROUP_BYTES)) == 0
    files.released.set()
    assert await writer.flush() == 1


@pytest.mark.parametrize("failure", [OSError("full"), MemoryError("no memory")])
async def test_a_row_group_that_fails_in_a_file_that_is_given_up_is_nobody_s_trouble(rig: SinkRig, failure: Exception):
    """Whatever it was: the file is discarded, and its writer goes on to let go of all that it holds."""
    files = HeldFileSystem()
    files.failure = failure
    writer = await rig.writer(0, files=files)
    files.released.clear()
    files.failing = True
    await writer.write(run_of(0, 1, size=parquet.ROW_GROUP_BYTES))
    files.released.set()
    for thread in threading.enumerate():
        if thread.name == "row-group":
            thread.join(20)
    await writer.abandon()

    assert rig.charged == 0


async def test_with_little_memory_a_row_group_is_written_before_the_next_is_collected(rig: SinkRig):
    """What is being written counts twice: four files that do so at a time would hold more than all of them may."""
    rig.buffer_bytes = parquet.BESIDE_FROM_BYTES - 1
    files = RecordingFileSystem()
    writer = await rig.writer(0, files=files)
    await writer.write(run_of(0, 1, size=parquet.ROW_GROUP_BYTES))

    assert any(operation == "write" and name.startswith(".0") for operation, name in files.calls)
    assert rig.charged == parquet.WRITER_BYTES + parquet.ROW_GROUP_KEPT_BYTES
    assert await writer.flush() == 1


@pytest.mark.parametrize("told_by", ["write", "flush", "spill"])
async def test_a_row_group_that_was_not_written_is_told_by_the_next_call(rig: SinkRig, told_by: str):
    """Its records were taken already: the file is given up, and all of it comes again."""
    files = HeldFileSystem()
    writer = await rig.writer(0, files=files)
    files.released.clear()
    files.failing = True
    await writer.write(run_of(0, 1, size=parquet.ROW_GROUP_BYTES))
    files.released.set()
    if told_by == "spill":
        assert not await writer.spill()
    with pytest.raises(RetriableSinkError, match="No space left") as caught:
        await (writer.write(run_of(1, 2, size=parquet.ROW_GROUP_BYTES)) if told_by == "write" else writer.flush())
    assert caught.value.resume_position == 0
    files.failing = False
    await writer.write(run_of(0, 3))

    assert await writer.flush() == 3
    assert rig.offsets() == [0, 1, 2]
    assert rig.landing().problems == []
    assert rig.charged == 0


async def test_a_file_that_is_abandoned_lets_go_of_what_is_being_written(rig: SinkRig):
    """The next owner finds nothing of it, and the memory comes back."""
    files = HeldFileSystem()
    writer = await rig.writer(0, files=files)
    files.released.clear()
    await writer.write(run_of(0, 1, size=parquet.ROW_GROUP_BYTES))
    threading.Timer(0.05, files.released.set).start()
    await writer.abandon()

    assert rig.charged == 0
    assert [path.name for path in rig.path.rglob("*0.parquet*")] == []


async def test_writers_together_hold_no_more_than_they_may(rig: SinkRig):
    """200 partitions of 8 MiB each would hold six times the whole budget; the largest gives way."""
    rig.buffer_bytes = 3 << 20
    sink = rig.member()
    writers = []
    for number in range(4):
        claim = rig.claim()
        claim.partition = type(PARTITION).modern("orders", number)
        writer = await sink.open(claim)
        await writer.start(Start(position=0, reason="earliest"))
        writers.append((claim.partition, writer))
    for offset in range(4):
        for partition, writer in writers:
            await writer.write(build_batch(partition, [record(offset, b"x" * (1 << 20))]))
            assert rig.charged <= rig.buffer_bytes
    for _, writer in writers:
        assert await writer.flush() == 4

    landing = rig.landing()
    assert landing.problems == []
    assert [partition.offsets for partition in landing.partitions.values()] == [[0, 1, 2, 3]] * 4
    assert rig.charged == 0


async def test_a_file_that_keeps_more_than_its_share_ends_early(rig: SinkRig):
    """Row groups that were written out leave what the footer will say of them; only the end of the file frees that."""
    rig.buffer_bytes = 256 << 10
    writer = await rig.writer(0)
    acknowledged = 0
    for offset in range(40):
        acknowledged = await writer.write(run_of(offset, offset + 1, size=rig.buffer_bytes))
        assert rig.charged <= parquet.WRITER_BYTES + rig.buffer_bytes // 2 + parquet.ROW_GROUP_KEPT_BYTES

    assert len(rig.hooks.published) == 3
    assert 0 < acknowledged < 40
    assert rig.offsets() == list(range(acknowledged))
    await writer.flush()
    assert rig.charged == 0


async def test_failure_while_giving_way_is_told_to_whom_it_concerns(rig: SinkRig):
    """Another partition's writer asked for it and must not suffer."""
    rig.buffer_bytes = 1 << 20
    failing: list[bool] = []

    def fail(operation: str, name: str) -> None:
        if operation == "write" and failing:
            raise OSError(errno.ENOSPC, "full")

    sink = rig.member(RecordingFileSystem(fail))
    claim = rig.claim()
    claim.partition = type(PARTITION).modern("orders", 4)
    large, small = await sink.open(rig.claim()), await sink.open(claim)
    await large.start(Start(position=0, reason="earliest"))
    await small.start(Start(position=0, reason="earliest"))
    await large.write(run_of(0, 1, size=900_000))
    failing.append(True)
    await small.write(build_batch(claim.partition, [record(0, b"x" * 200_000)]))
    failing.clear()

    assert large.deadline() == 101.0
    with pytest.raises(RetriableSinkError, match="orders/3") as caught:
        await large.flush()
    assert caught.value.resume_position == 0
    assert await small.flush() == 1
    await large.write(run_of(0, 2))
    assert await large.flush() == 2
    assert rig.landing().problems == []


async def test_file_that_is_no_parquet_is_noticed(rig: SinkRig):
    """The chain's end cannot be known then."""
    writer = await rig.writer()
    await writer.write(run_of(0, 10))
    await writer.flush()
    landed(rig)[0].write_bytes(b"PAR1 but nothing else PAR1")
    with pytest.raises(RetriableSinkError, match="no Parquet footer"):
        await rig.member().open(rig.claim())

    pq.write_table(pa.table({"a": [1]}), landed(rig)[0])
    with pytest.raises(RetriableSinkError, match="who wrote this file"):
        await rig.member().open(rig.claim())


async def test_the_record_that_arrow_cannot_hold_is_named_by_its_place_in_the_batch(rig: SinkRig):
    """`on_rejected` can pass over it only so; the writer has taken a part of the batch before."""
    writer = await rig.writer()
    await writer.write(run_of(0, 2))
    rows = [record(offset, index=(1 << 40) if offset == 4 else 0) for offset in range(6)]
    with pytest.raises(PermanentSinkError, match="the record at offset 4 does not fit into Arrow columns") as caught:
        await writer.write(build_batch(PARTITION, rows))

    assert caught.value.refused == 4
    await writer.write(build_batch(PARTITION, rows).slice_from(2).without(2, GapReason.SKIPPED))
    assert await writer.flush() == 6
    assert rig.offsets() == [0, 1, 2, 3, 5]


async def test_a_record_beyond_what_a_page_can_hold_is_named_before_it_is_tried(rig: SinkRig):
    """To write it fails each time, which would look like a disk that fails for ever; nothing of it is read."""
    writer = await rig.writer()
    with mmap.mmap(-1, LARGEST_COLUMN_BYTES + 1) as sparse:
        buffer = memoryview(sparse)
        small = build_batch(PARTITION, [record(offset, b"small") for offset in range(3)])
        batch = replace(
            small,
            buffer=buffer,
            value_starts=array("q", [0, 0, len(buffer) - 5]),
            value_ends=array("q", [5, len(buffer), len(buffer)]),
        )
        with pytest.raises(PermanentSinkError, match=r"the record at offset 1 .* more than 2146435072 bytes") as caught:
            await writer.write(batch)
        buffer.release()

    assert caught.value.refused == 1
    assert rig.charged == 0


def test_records_that_are_too_much_together_come_in_pieces_and_none_is_refused():
    """Of any column: a batch within the memory budget may hold more than a column can."""
    headers = (("h", b"x" * 40),)
    rows = [record(n, b"v" * n, key=b"k" * (60 - n), timestamp=n, headers=headers if n % 2 else ()) for n in range(60)]
    batch = build_batch(PARTITION, rows)
    pieces = to_pieces(batch, largest_bytes=100)

    assert pa.Table.from_batches(pieces).combine_chunks() == pa.Table.from_batches([batch.to_arrow()])
    for piece in pieces:
        for column in ("key", "value"):
            assert sum(len(value or b"") for value in piece[column].to_pylist()) <= 100
    assert max(len(piece) for piece in pieces) > 1
    assert len(to_pieces(batch)) == 1


@pytest.mark.parametrize(
    ("key", "place"), [(PartitionKey(3), ("orders", 3, None)), (PartitionKey(3, BrokerId(0)), ("orders", 3, 0))]
)
async def test_one_file_says_where_its_records_are_from(
    rig: SinkRig, key: PartitionKey, place: tuple[str, int, int | None]
):
    """A file that is read by itself, and a table format that takes partition values from statistics, know no path."""
    partition = TopicPartition("orders", key)
    writer = await rig.member().open(StubClaim(partition))
    await writer.start(Start(position=0, reason="earliest"))
    await writer.write(build_batch(partition, [record(0), record(1)]))
    await writer.flush()
    (path,) = landed(rig)

    table = pq.read_table(pa.BufferReader(path.read_bytes()))
    assert [place, place] == list(zip(*(table[name].to_pylist() for name in PLACE_COLUMNS), strict=True))
    group = pq.read_metadata(path).row_group(0)
    for number, value in enumerate(place):
        column = group.column(number)
        assert "RLE_DICTIONARY" in column.encodings
        assert column.statistics.null_count == (2 if value is None else 0)
        if value is not None:
            assert (column.statistics.min, column.statistics.max) == (value, value)
