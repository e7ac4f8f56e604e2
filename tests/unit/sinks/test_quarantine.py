# SPDX-License-Identifier: Apache-2.0
"""Quarantined units: kept before the position moves past them, once, whole, and never in the place of another."""

import asyncio
import base64
import errno
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from consumerd.aio.timeouts import timeout
from consumerd.errors import (
    ConfigError,
    CoordinationError,
    IncarnationChanged,
    LeasePaused,
    OwnershipLost,
    RetriableSinkError,
)
from consumerd.landing.filesystem import FileSystem
from consumerd.landing.record_fields import MalformedRecord
from consumerd.model import BrokerId, Incarnation, PartitionKey, TopicPartition
from consumerd.sinks.base import QuarantinedUnit
from consumerd.sinks.quarantine import FileQuarantine
from consumerd.sinks.quarantine_record import (
    KeptUnit,
    encode_unit,
    holds_unit,
    parse_topic_folder,
    parse_unit,
    unit_folders,
)
from tests.support.claims import StubClaim
from tests.support.faulty_files import MemoryFileSystem, PowerCut, RecordingFileSystem, fail_at
from tests.support.record_batches import record
from tests.support.sinks import MemoryRoots

PARTITION = TopicPartition.modern("orders", 3)
CORRUPT = QuarantinedUnit(
    partition=PARTITION,
    incarnation=Incarnation(7),
    offset=10,
    next_offset=14,
    index=0,
    cause="corrupt",
    reason="the checksum is 1, expected 2",
    raw=bytes(range(256)),
    size=256,
)
REJECTED = replace(
    CORRUPT,
    cause="rejected",
    next_offset=11,
    raw=b"",
    size=None,
    record=record(10, b"\xffvalue", key=None, timestamp=5, headers=(("trace", b"\x00"), ("none", None))),
)
FILE = Path("orders", "3", "7", "00000000000000000010-0.jsonl")
Maker = Callable[..., FileQuarantine]


@pytest.fixture
async def make(tmp_path) -> AsyncIterator[Maker]:
    """Make members that share a quarantine."""
    made = []

    def make(
        files: FileSystem | None = None,
        *,
        path: Path = tmp_path / "q",
        group: str = "lake",
        cluster: str = "2-17",
        roots: MemoryRoots | None = None,
    ) -> FileQuarantine:
        writer = f"member{len(made)}"
        one = FileQuarantine(
            path,
            group=group,
            cluster_id=cluster,
            writer_id=writer,
            wall_ms=lambda: 1_700_000_000_000,
            files=files,
            roots=roots,
        )
        made.append(one)
        return one

    yield make
    for one in made:
        await one.close()


def claim() -> StubClaim:
    return StubClaim(PARTITION)


def names(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*") if found.is_file())


def kept(path: Path) -> list[QuarantinedUnit]:
    return [parse_unit(found.read_bytes()).unit for found in sorted(path.glob("*/*/*/*.jsonl"))]


@pytest.mark.parametrize("unit", [CORRUPT, REJECTED, replace(CORRUPT, size=None), replace(CORRUPT, size=9999)])
async def test_a_unit_reads_back_as_it_was(make: Maker, tmp_path: Path, unit: QuarantinedUnit):
    """What is passed over must be there to be looked at, and to be put back, byte by byte."""
    await make().put(unit, claim())
    found = parse_unit((tmp_path / "q" / FILE).read_bytes())
    size = found.payload_bytes if unit.record else unit.size
    assert KeptUnit(
        unit=replace(unit, size=size), cluster="2-17", group="lake", when_ms=1_700_000_000_000
    ) == found  # fmt: skip
    assert found.complete == (True if unit.record else None if unit.size is None else unit.size == 256)


async def test_a_file_is_one_line_that_any_json_reader_understands(make: Maker, tmp_path: Path):
    """Somebody will look at it with jq, long after this program."""
    await make().put(CORRUPT, claim())
    (line,) = (tmp_path / "q" / FILE).read_text().splitlines()
    fields = json.loads(line)
    assert base64.b64decode(fields.pop("raw_base64")) == CORRUPT.raw
    assert fields == {
        "format": 2,
        "cluster": "2-17",
        "group": "lake",
        "topic": "orders",
        "partition": 3,
        "incarnation": "7",
        "truncation": 0,
        "offset": 10,
        "next_offset": 14,
        "index": 0,
        "cause": "corrupt",
        "reason": "the checksum is 1, expected 2",
        "when": 1_700_000_000_000,
        "size": 256,
        "complete": True,
    }


async def test_a_large_unit_is_written_in_pieces_that_make_one_value(make: Maker, tmp_path: Path):
    """A unit may be as large as a fetch; base64 of it must not be in memory as well."""
    raw = random.Random(1).randbytes(2_000_001)
    pieces = list(encode_unit(KeptUnit(unit=replace(CORRUPT, raw=raw), cluster="c", group="g", when_ms=1)))
    assert max(map(len, pieces)) <= 1 << 20
    assert parse_unit(b"".join(pieces)).unit.raw == raw


async def test_publishing_is_durable_before_it_is_acknowledged_and_confirmed_before_the_link(make: Maker):
    """The order is the promise: content, claim, name, folders."""
    files, confirmed = RecordingFileSystem(), claim()

    async def note() -> None:
        files.calls.append(("confirm", ""))

    confirmed.on_confirm = note
    await make(files).put(CORRUPT, confirmed)
    unit = [call for call in files.calls if call[0] in ("confirm", "link") or FILE.name in call[1]]
    hidden = f".{FILE.name}.member0-q1.tmp"
    steps = [
        call for index, call in enumerate(unit) if call not in unit[:index] and call != ("link", "_consumerd.json")
    ]
    assert steps == [("create", hidden), ("write", hidden), ("sync", hidden), ("confirm", ""), ("link", FILE.name),
                     ("unlink", hidden)]  # fmt: skip
    after = files.calls[files.calls.index(("link", FILE.name)) :]
    assert ("sync_folder", "7") in after
    before = files.calls[: files.calls.index(("link", FILE.name))]
    assert {("sync_folder", "7"), ("sync_folder", "3"), ("sync_folder", "orders"), ("sync_folder", "q")} <= set(before)


async def test_a_unit_that_is_kept_is_not_kept_twice(make: Maker, tmp_path: Path):
    """A commit that was lost brings the position back: the same unit comes again, perhaps to another member."""
    first = make()
    await first.put(CORRUPT, claim())
    before = (tmp_path / "q" / FILE).stat()
    await first.put(replace(CORRUPT, cause="rejected", reason="another wording"), claim())
    await make().put(replace(CORRUPT, raw=CORRUPT.raw[:100]), claim())
    assert names(tmp_path / "q") == ["_consumerd.json", str(FILE)]
    assert before.st_ino == (tmp_path / "q" / FILE).stat().st_ino


async def test_a_name_that_is_there_is_durable_before_the_unit_counts_as_kept(make: Maker):
    """Who gave it that name may have died before it was."""
    await make().put(CORRUPT, claim())
    files = RecordingFileSystem()
    await make(files).put(CORRUPT, claim())
    assert {("sync_folder", "7"), ("sync_folder", "3"), ("sync_folder", "orders"), ("sync_folder", "q")} <= {
        *files.calls
    }
    assert ("link", FILE.name) not in files.calls


@pytest.mark.parametrize(
    "other",
    [
        replace(CORRUPT, raw=b"other bytes"),
        replace(CORRUPT, raw=CORRUPT.raw + b"more of it"),
        replace(CORRUPT, next_offset=12),
        REJECTED,
    ],
)
async def test_another_unit_of_the_same_name_is_kept_beside_it(make: Maker, tmp_path: Path, other: QuarantinedUnit):
    """A replica with other bytes, or a batch where there was a record: neither may vanish for the other's name."""
    await make().put(CORRUPT, claim())
    await make().put(other, claim())
    await make().put(other, claim())
    found = kept(tmp_path / "q")
    assert len(found) == 2
    assert {bytes(unit.raw) for unit in found} == {CORRUPT.raw, other.raw}


async def test_a_damaged_file_does_not_count_as_the_unit(make: Maker, tmp_path: Path):
    """Bits rot; what cannot be read cannot be said to hold the unit."""
    await make().put(CORRUPT, claim())
    (tmp_path / "q" / FILE).write_bytes(b'{"format":1,"cut of')
    await make().put(CORRUPT, claim())
    second = tmp_path / "q" / FILE.with_name("00000000000000000010-0.1.jsonl")
    assert parse_unit(second.read_bytes()).unit == CORRUPT


async def test_truncations_and_incarnations_have_folders_of_their_own(make: Maker, tmp_path: Path):
    """Offset 10 of a topic made again is another record."""
    quarantine = make()
    for incarnation in (Incarnation(7), Incarnation(7, 1), Incarnation(9)):
        await quarantine.put(replace(CORRUPT, incarnation=incarnation), claim())
    folders = sorted(folder.name for folder in (tmp_path / "q" / "orders" / "3").iterdir())
    assert folders == ["7", "7.1", "9"]


@pytest.mark.parametrize("topic", ["orders", "a.b_c-d", "_consumerd.json", "__consumer_offsets", ".x.tmp", "50%"])
async def test_any_topic_has_a_folder_that_is_nobody_elses(make: Maker, tmp_path: Path, topic: str):
    """Kafka allows topics named as our own root record and hidden files are."""
    unit = replace(CORRUPT, partition=TopicPartition(topic, PartitionKey(1, BrokerId(2))))
    await make().put(unit, claim())
    await make().put(unit, claim())
    assert kept(tmp_path / "q") == [unit]
    assert parse_topic_folder(unit_folders(unit)[0]) == topic


@pytest.mark.parametrize("size", [0, 1, 2, 3, 100, 101, 102, 2_000_000, 2_000_001])
def test_a_file_holds_the_unit_up_to_any_of_its_bytes_and_no_other(size: int):
    """What was fetched of an oversized message may be less the next time; never is it other bytes."""
    raw = random.Random(1).randbytes(2_000_001)
    data = b"".join(encode_unit(KeptUnit(unit=replace(CORRUPT, raw=raw), cluster="c", group="g", when_ms=1)))
    part = replace(CORRUPT, raw=raw[:size], reason='says ,"raw_base64":"AAAA" itself')
    assert holds_unit(data, part)
    if size:
        assert not holds_unit(data, replace(part, raw=part.raw[:-1] + bytes([part.raw[-1] ^ 1])))
    assert not holds_unit(data, replace(part, raw=raw + b"more"))
    assert not holds_unit(data, replace(part, index=1))
    itself = b"".join(encode_unit(KeptUnit(unit=part, cluster="c", group="g", when_ms=1)))
    assert holds_unit(itself, part)
    rejected = b"".join(encode_unit(KeptUnit(unit=REJECTED, cluster="c", group="g", when_ms=1)))
    assert holds_unit(rejected, REJECTED)
    assert not holds_unit(rejected, part)
    assert not holds_unit(data, REJECTED)


def test_a_file_that_ends_within_its_base64_is_damaged():
    """It must be set aside like any other damaged one, and end no daemon."""
    data = b"".join(encode_unit(KeptUnit(unit=CORRUPT, cluster="c", group="g", when_ms=1)))
    payload_at = data.index(b'"raw_base64":"') + len(b'"raw_base64":"')
    size = len(CORRUPT.raw)
    with pytest.raises(MalformedRecord):
        holds_unit(data[: payload_at + size // 3 * 4 + 2], CORRUPT)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (OwnershipLost("taken"), OwnershipLost),
        (IncarnationChanged("made again"), IncarnationChanged),
        (CoordinationError("no answer"), RetriableSinkError),
    ],
)
async def test_nothing_is_published_without_the_claim(
    make: Maker, tmp_path: Path, failure: Exception, error: type[Exception]
):
    """A stalled member must not leave a unit that the new owner has delivered meanwhile."""
    lost, quarantine = claim(), make()
    lost.failure = failure
    with pytest.raises(error):
        await quarantine.put(CORRUPT, lost)
    await quarantine.close()
    assert names(tmp_path / "q") == ["_consumerd.json"]


async def test_a_paused_lease_is_waited_for(make: Maker, tmp_path: Path):
    """A short silence of ZooKeeper costs time, not the work."""
    paused = claim()
    paused.failure = LeasePaused("for now")
    async with timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(make().put(CORRUPT, paused))
        await paused.paused.wait()
        assert str(FILE) not in names(tmp_path / "q")
        paused.resume()
    assert kept(tmp_path / "q") == [CORRUPT]


async def test_any_failing_system_call_is_named_and_the_next_try_succeeds(make: Maker, tmp_path: Path):
    """A full disk says which path, partition and offset wait for it, and leaves nothing in the way."""
    number, told = 0, []
    while True:
        path = tmp_path / f"q{number}"
        files = RecordingFileSystem(fail_at(number, errno.ENOSPC))
        quarantine = make(files, path=path)
        try:
            await quarantine.put(CORRUPT, claim())
        except RetriableSinkError as error:
            told.append((error.resume_position, str(path) in str(error), "offset 10 of orders/3" in str(error)))
        if len(files.calls) <= number:
            break
        await quarantine.put(CORRUPT, claim())
        assert kept(path) == [CORRUPT]
        await quarantine.close()
        assert names(path) == ["_consumerd.json", str(FILE)]
        number += 1
    assert number > 10
    assert set(told) == {(None, True, True)}


def test_what_was_acknowledged_survives_a_power_cut_at_any_moment():
    """Acknowledged means durable: the position moves past the unit right afterwards."""
    acknowledged = 0
    for seed in range(150):
        files = MemoryFileSystem(random.Random(seed))
        files.make_folders(Path("/data"))
        files.sync_folder(Path("/"))
        files.changes_left = seed // 3 + 1

        async def run(writer: str, files: MemoryFileSystem = files) -> bool:
            # what is cleared away in the background finds the power off, and nobody waits for it
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            quarantine = FileQuarantine(
                Path("/data/q"),
                group="g",
                cluster_id="c",
                writer_id=writer,
                wall_ms=lambda: 1,
                files=files,
            )
            try:
                await quarantine.put(CORRUPT, claim())
            except PowerCut:
                return False
            finally:
                await quarantine.close()
            return True

        done = asyncio.run(run("first"))
        if done:  # the power goes at the latest now
            files.changes_left = 1
            with pytest.raises(PowerCut):
                files.make_folders(Path("/cut"))
        files.restore()
        acknowledged += done
        if done:
            assert parse_unit(files.read(Path("/data/q") / FILE)).unit == CORRUPT
        assert asyncio.run(run("second"))
        assert parse_unit(files.read(Path("/data/q") / FILE)).unit == CORRUPT
    assert 0 < acknowledged < 150


async def test_hidden_leftovers_are_removed(make: Maker, tmp_path: Path):
    """Each crash leaves at most one, and the next put takes it away."""
    folder = (tmp_path / "q" / FILE).parent
    folder.mkdir(parents=True)
    (folder / f".{FILE.name}.dead-q1.tmp").write_bytes(b"half")
    await make().put(CORRUPT, claim())
    assert names(tmp_path / "q") == ["_consumerd.json", str(FILE)]


async def test_a_put_that_is_cancelled_leaves_nothing_half_done(make: Maker, tmp_path: Path):
    """A partition that is revoked in the middle must not publish afterwards."""
    held, quarantine, reached = claim(), make(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    held.on_confirm = wait
    async with timeout(10), asyncio.TaskGroup() as tasks:
        putting = tasks.create_task(quarantine.put(CORRUPT, held))
        await reached.wait()
        putting.cancel()
    await quarantine.close()
    assert names(tmp_path / "q") == ["_consumerd.json"]


@pytest.mark.parametrize("other", [{"group": "warehouse"}, {"cluster": "2-18"}])
async def test_a_path_of_somebody_else_is_refused(make: Maker, tmp_path: Path, other: dict[str, str]):
    """Two groups in one path would take each other's units for their own."""
    await make().put(CORRUPT, claim())
    with pytest.raises(RetriableSinkError, match="belongs to group 'lake' of cluster 2-17"):
        await make(**other).put(replace(CORRUPT, offset=99), claim())
    assert kept(tmp_path / "q") == [CORRUPT]


async def test_a_start_tells_whose_path_it_is_before_anything_is_put_there(make: Maker, tmp_path: Path):
    """At three in the night, with the first corrupt message, is the wrong moment."""
    await make().check()
    assert names(tmp_path / "q") == ["_consumerd.json"]
    with pytest.raises(ConfigError, match="give the quarantine another path"):
        await make(group="warehouse").check()
    (tmp_path / "file").write_text("")
    with pytest.raises(RetriableSinkError, match="cannot use the path"):
        await make(path=tmp_path / "file" / "q").check()


async def test_a_volume_that_went_away_is_not_replaced_by_an_empty_folder(make: Maker, tmp_path: Path):
    """What is written below the mount point is hidden once the volume is back."""
    quarantine = make()
    await quarantine.put(CORRUPT, claim())
    (tmp_path / "q").rename(tmp_path / "elsewhere")
    (tmp_path / "q").mkdir()
    with pytest.raises(RetriableSinkError, match="missing"):
        await quarantine.put(replace(CORRUPT, offset=99), claim())
    assert names(tmp_path / "q") == []


async def test_a_volume_that_is_missing_at_the_start_does_not_look_new(make: Maker, tmp_path: Path):
    """The folder that an unmounted volume leaves behind is empty, as that of a new path is."""
    roots = MemoryRoots()
    await make(roots=roots).put(CORRUPT, claim())
    (tmp_path / "q").rename(tmp_path / "elsewhere")
    (tmp_path / "q").mkdir()
    starting = make(roots=roots)
    with pytest.raises(RetriableSinkError, match=r"root of the quarantine is .* mount the volume"):
        await starting.check()
    with pytest.raises(RetriableSinkError, match="mount the volume"):
        await starting.put(replace(CORRUPT, offset=99), claim())
    assert names(tmp_path / "q") == []
    (tmp_path / "q").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "q")
    await starting.put(replace(CORRUPT, offset=99), claim())
    assert [unit.offset for unit in kept(tmp_path / "q")] == [10, 99]


async def test_a_root_that_cannot_be_looked_up_is_waited_for(make: Maker, tmp_path: Path):
    """Without knowing it nothing may be put anywhere."""
    roots = MemoryRoots()
    roots.failure = CoordinationError("connection lost")
    quarantine = make(roots=roots)
    with pytest.raises(RetriableSinkError, match="could not be looked up"):
        await quarantine.put(CORRUPT, claim())
    assert not (tmp_path / "q").exists()
    await quarantine.put(CORRUPT, claim())
    assert kept(tmp_path / "q") == [CORRUPT]


async def test_a_volume_that_is_swapped_while_a_claim_is_confirmed_gets_no_unit(make: Maker, tmp_path: Path):
    """What is made on one volume must not be published on another."""
    held = claim()

    async def swap() -> None:
        (tmp_path / "q").rename(tmp_path / "elsewhere")
        await make().check()

    held.on_confirm = swap
    with pytest.raises(RetriableSinkError, match="another volume"):
        await make().put(CORRUPT, held)
    assert names(tmp_path / "q") == ["_consumerd.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"format": 3},
        {"partition": "x"},
        {"raw_base64": "?"},
        {"raw_base64": 1},
        {"offset": True},
        {"incarnation": "now"},
    ],
)
def test_what_is_no_unit_is_told(change: dict[str, object]):
    """Files of a later release, and damaged ones, are refused and not guessed at."""
    fields = json.loads(b"".join(encode_unit(KeptUnit(unit=CORRUPT, cluster="c", group="g", when_ms=1))))
    assert parse_unit(json.dumps({**fields, "added later": 1}).encode()).unit == CORRUPT
    with pytest.raises(MalformedRecord):
        parse_unit(json.dumps({**fields, **change}).encode())


@pytest.mark.parametrize("change", [{"headers": None}, {"headers": [1]}, {"timestamp_type": 9}, {"value_base64": "?"}])
def test_what_is_no_record_is_told(change: dict[str, object]):
    """As above, for rejected records."""
    fields = json.loads(b"".join(encode_unit(KeptUnit(unit=REJECTED, cluster="c", group="g", when_ms=1))))
    with pytest.raises(MalformedRecord):
        parse_unit(json.dumps({**fields, **change}).encode())
