# SPDX-License-Identifier: Apache-2.0
"""Mutated bytes through everything that reads any: the frame, its answer, each record set in it, each record in that.

    python tests/fuzz/frames.py --count 1000000 [--first 0] [--seed 7] [--jobs 2]
    python tests/fuzz/frames.py --seed 7 --only 4711

Frames are those that real brokers sent, in every version declared, and Fetch answers around record sets that they
stored and around made ones of each magic and codec. Each is damaged as a network, a disk or a broken producer would, in
half of the record sets below their checksums, too, so that what these cover is met. What comes out must be an answer,
records, "more is needed", or ``RemoteProtocolError`` / ``CorruptMessageError``; a record that passes a checksum which
was not put right must be one that was written. Where there is a native kernel, record sets are read by it and in Python, and
whatever comes out, errors included, must be the same. Every fifth is no broker's but of :mod:`tests.fuzz.documents`: an answer
of ZooKeeper's, the payload of a node, a record beside landed data, or what the embedded broker is sent, a request or a
record set; of these comes a value or their own error. Memory
is capped twice: the address space of the process, over all frames, and what Python takes for each frame of every seventh
thousand.

Frame ``n`` of a seed is the same in every run, so that a failure, which is reported with both, can be run alone.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import random
import resource
import struct
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, cycle
from pathlib import Path
from typing import Any, Final, TypeVar, cast

ROOT: Final = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from consumerd.errors import CorruptMessageError, RemoteProtocolError, forget_frames  # noqa: E402
from consumerd.model import TopicPartition  # noqa: E402
from consumerd.net.frames import FrameAssembler  # noqa: E402
from consumerd.wire import kernel  # noqa: E402
from consumerd.wire.framing import SIZE_BYTES, encode_frame  # noqa: E402
from consumerd.wire.modern.extent import find_stop  # noqa: E402
from consumerd.wire.modern.fetch import (  # noqa: E402
    AbortedTransaction,
    FetchedPartition,
    FetchedTopic,
    FetchRequest,
    FetchResponse,
)
from consumerd.wire.modern.record_set import decode_record_set  # noqa: E402
from consumerd.wire.modern.slices import cut_record_set, first_unit_bytes  # noqa: E402
from consumerd.wire.records import Limits, Record, RecordBatch  # noqa: E402
from consumerd.wire.schema import Request, compile_codec  # noqa: E402
from consumerd.wire.session import CORRELATION_BYTES, ClientSession  # noqa: E402
from tests.fuzz.documents import FAILED, Document, documents  # noqa: E402
from tests.property.test_records_decoding import mend  # noqa: E402
from tests.support import verification  # noqa: E402
from tests.support.frames import VERSIONS, load_frames, split_request  # noqa: E402
from tests.support.pure import without_kernel  # noqa: E402
from tests.support.record_sets import RecordSpec, batch, compress, message, record, wrapper  # noqa: E402
from tests.support.streams import receive  # noqa: E402

T = TypeVar("T")

PARTITION: Final = TopicPartition.modern("t", 0)
LIMITS: Final = Limits(decompressed_bytes=1 << 20, nesting=2)
MAX_FRAME_BYTES: Final = 1 << 20

PYTHON_CAP_BYTES: Final = 4 << 20
"""For a frame: it and one decompressed record set, each of the largest size allowed, and what is made of them."""

PROCESS_CAP_BYTES: Final = 64 << 20
"""What the address space may grow by over all frames: buffers of allocators and of the codecs' libraries."""

_STORED: Final = Path(__file__).parents[1] / "vectors" / "records"
_MOST_STORED_BYTES: Final = 1200
_ARROW_EVERY: Final = 16
_MEASURED_EVERY: Final = 7
"""Measuring takes four times as long as reading; the cap on the process holds for every frame."""
_MEASURED_TOGETHER: Final = 1000
"""To begin and end measuring costs CPython 3.11 a few kilobytes that it does not give back."""
_FIRST_WITH_TRANSACTIONS: Final = 4
_DOCUMENT_EVERY: Final = 5
_CHUNK: Final = 10_000
_BOMB: Final = "bomb"
REFUSED: Final = "a document's own error"
_NUMBERS: Final[dict[str, tuple[int, ...]]] = {
    ">b": (-1, 0x7F, -0x80, 0, 1),
    ">h": (-1, 0x7FFF, -0x8000),
    ">i": (-1, 0x7FFFFFFF, -0x80000000, 0x00FFFFFF, 1 << 20),
    ">q": (-1, (1 << 63) - 1, -(1 << 63), 1 << 40),
}
_VARINTS: Final = tuple(
    bytes.fromhex(one) for one in ("ffffffff0f", "feffffff0f", "8080808000", "ff" * 9 + "01", "ff" * 11)
)
_EXTREMES: Final = (*(struct.pack(form, one) for form, numbers in _NUMBERS.items() for one in numbers), *_VARINTS)
"""Ends of the integers' ranges, and varints that are as large, or as long, as can be and more."""


class Violated(AssertionError):
    """Something came out that must not."""


# -- what is damaged


@dataclass(frozen=True, slots=True)
class Answered:
    """A frame as a broker sent it, and what it answers."""

    name: str
    request: type[Request[Any]]
    version: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """A record set. ``rebuild`` makes it anew around damaged bytes that a codec or a checksum hides in ``inner``."""

    name: str
    data: bytes
    inner: bytes = b""
    rebuild: Callable[[bytes], bytes] | None = None


Row = tuple[bytes | None, bytes | None]


@cache
def answered() -> list[list[Answered]]:
    """Return the recorded frames, in lists of one API and version."""
    kinds: dict[str, list[Answered]] = {}
    for one in load_frames():
        if one.response is not None and len(one.response) <= 4 * _MOST_STORED_BYTES:
            name = f"{one.api.name}-v{one.response_version}"
            answer = Answered(name, one.request_class, one.response_version, one.response)
            kinds.setdefault(name, []).append(answer)
    return list(kinds.values())


@cache
def stored() -> list[Stored]:
    """Return record sets of every magic and codec: recorded ones, and made ones that can be damaged inside."""
    recorded = [
        Stored(path.stem, bytes.fromhex(case["record_set_hex"]))
        for path in sorted(_STORED.glob("kafka-*.json"))
        for case in json.loads(path.read_text())["cases"]
        if 2 * 12 < len(case["record_set_hex"]) <= 2 * _MOST_STORED_BYTES
    ]
    made = [*(_messages(magic, codec) for magic in (0, 1) for codec in range(4)), _nested(0), _nested(1)]
    made += [_batch(codec) for codec in range(5)]
    return [*recorded, *made, *made, *made, *_bombs()]


def _messages(magic: int, codec: int) -> Stored:
    first = 0 if magic and codec else 70
    inner = b"".join(
        message(first + row, b"value %d" % row * row, key=None if row % 3 else b"key", magic=magic, timestamp=9 * row)
        for row in range(5)
    )
    name = f"magic {magic} codec {codec}"
    if not codec:
        return Stored(name, inner, inner, _mended)

    def rebuild(damaged: bytes) -> bytes:
        return wrapper(74, _mended(damaged), codec, magic=magic) + message(75, b"behind", magic=magic)

    return Stored(name, rebuild(inner), inner, rebuild)


def _nested(magic: int) -> Stored:
    """Sets within sets, as mirrors of old made them (KAFKA-1802)."""
    plain = message(78, b"inmost", magic=magic) + message(79, None, magic=magic)

    def rebuild(damaged: bytes) -> bytes:
        return wrapper(79, _mended(wrapper(79, damaged, 2, magic=magic)), 1, magic=magic)

    return Stored(f"magic {magic} nested", rebuild(plain), plain, rebuild)


def _batch(codec: int) -> Stored:
    rows = [
        RecordSpec(
            delta=row,
            key=None if row % 3 else b"key",
            value=b"value %d" % row * row,
            timestamp_delta=7 * row,
            headers=[(b"h", b"1"), (b"null", None)] if row == 3 else (),
        )
        for row in range(6)
    ]
    inner = b"".join(map(record, rows))

    def rebuild(damaged: bytes) -> bytes:
        return batch(80, damaged, count=len(rows), codec=codec) + batch(86, rows[:2], codec=codec)

    return Stored(f"magic 2 codec {codec}", rebuild(inner), inner, rebuild)


def _bombs() -> list[Stored]:
    """Sets that decompress to far more than the limit; all that must not come of them is their size."""
    sizes = {1: 32 << 20, 2: 2 << 20, 3: 8 << 20, 4: 32 << 20}
    return [
        Stored(
            f"{_BOMB} of codec {codec}", batch(0, b"", count=1, codec=codec, compressed=compress(codec, bytes(size)))
        )
        for codec, size in sizes.items()
    ]


def _mended(data: bytes) -> bytes:
    whole = bytearray(data)
    mend(whole)
    return bytes(whole)


@cache
def written() -> frozenset[Row]:
    """Return the key and value of every record that is damaged: what an intact checksum may let through."""
    known: set[Row] = set()
    for data in [*(one.data for one in stored() if _BOMB not in one.name), *_answered_sets()]:
        known.update(_rows(decode_record_set(data, partition=PARTITION, start=0, limits=LIMITS)))
    return frozenset(known)


def _answered_sets() -> Iterator[bytes]:
    for one in chain.from_iterable(answered()):
        if one.request is FetchRequest:
            body = memoryview(one.frame)[SIZE_BYTES + CORRELATION_BYTES :]
            response = compile_codec(FetchResponse, one.version).decode(body)
            yield from (bytes(got.record_set or b"") for topic in response.topics for got in topic.partitions)


def _rows(records: RecordBatch) -> Iterator[Row]:
    return zip(records.keys(), records.values(), strict=True)


# -- how it is damaged


def mutate(data: bytes, source: random.Random, other: bytes) -> bytes:
    """Return ``data`` with one to four things wrong."""
    damaged = bytearray(data)
    for _ in range(source.choice((1, 1, 1, 2, 3, 4))):
        at = source.randrange(len(damaged) + 1)
        match source.randrange(8):
            case 0 if damaged:
                damaged[at % len(damaged)] ^= 1 << source.randrange(8)
            case 1 if damaged:
                damaged[at % len(damaged)] = source.randrange(256)
            case 2 | 3:
                extreme = source.choice(_EXTREMES)
                damaged[at : at + len(extreme)] = extreme
            case 4:
                del damaged[at : at + source.randrange(1, 40)]
            case 5:
                damaged[at:at] = source.randbytes(source.randrange(1, 20))
            case 6:
                start = source.randrange(len(other) + 1)
                damaged[at:at] = other[start : start + source.randrange(1, 200)]
            case _:
                damaged[at:at] = damaged[at : at + source.randrange(1, 60)]
    return bytes(damaged)


@dataclass(frozen=True, slots=True)
class Case:
    """One damaged frame. ``genuine``: no checksum in it was made to fit what it covers."""

    name: str
    request: Request[Any]
    version: int
    stream: bytes
    genuine: bool


@cache
def _asked() -> dict[tuple[type[Request[Any]], int], Request[Any]]:
    """Return a request that is answered, for every version of every API."""
    asked: dict[tuple[type[Request[Any]], int], Request[Any]] = {}
    for one in load_frames():
        if one.response is not None and one.version in one.request_class.versions:
            _, body = split_request(one)
            request = compile_codec(one.request_class, one.version).decode(body)
            asked.setdefault((one.request_class, one.version), request)
    return asked


@dataclass(frozen=True, slots=True)
class Damaged:
    """A document that is damaged."""

    document: Document
    data: bytes

    @property
    def name(self) -> str:
        """What it was."""
        return self.document.name


def make_case(seed: int, number: int) -> Case | Damaged:
    """Return frame ``number`` of ``seed``."""
    source = random.Random(seed << 32 | number)
    if number % _DOCUMENT_EVERY == _DOCUMENT_EVERY - 1:
        document = documents()[number // _DOCUMENT_EVERY % len(documents())]
        return Damaged(document, mutate(document.data, source, source.choice(documents()).data))
    if number % 3 == 0:
        one = source.choice(source.choice(answered()))
        # the correlation id is put right, so that more than it is met; its own faults come as those of the body do
        body = one.frame[SIZE_BYTES + CORRELATION_BYTES :]
        damaged = bytes(CORRELATION_BYTES) + mutate(body, source, source.choice(source.choice(answered())).frame)
        genuine, name, request, version = True, one.name, one.request, one.version
    else:
        record_set = stored()[source.randrange(len(stored()))]
        data, genuine = _damage(record_set, source)
        version = source.choice(FetchRequest.versions)
        name, request = record_set.name, FetchRequest
        damaged = bytes(CORRELATION_BYTES) + _answer(data, version)
    stream = encode_frame(damaged)
    if source.randrange(16) == 0:
        stream = mutate(stream, source, stream)
    return Case(name, _asked()[request, version], version, stream, genuine)


def _damage(one: Stored, source: random.Random) -> tuple[bytes, bool]:
    other = source.choice(stored()).data
    how = source.randrange(4)
    if how == 0 and one.rebuild is not None:
        return one.rebuild(mutate(one.inner, source, other)), False
    damaged = mutate(one.data, source, other)
    return (_mended(damaged), False) if how == 1 else (damaged, True)


def _answer(record_set: bytes, version: int) -> bytes:
    aborted = (AbortedTransaction(producer_id=1, first_offset=3),) if version >= _FIRST_WITH_TRANSACTIONS else None
    partition = FetchedPartition(partition=0, high_watermark=99, record_set=record_set, aborted_transactions=aborted)
    response = FetchResponse(topics=(FetchedTopic(topic="t", partitions=(partition,)),))
    return compile_codec(FetchResponse, version).encode(response)


# -- what must come of it


def read_case(case: Case | Damaged, number: int) -> str:
    """Read one frame to its last record and return what came of it. Raises Violated, or whatever else comes out."""
    if isinstance(case, Damaged):
        try:
            case.document.read(case.data)
        except case.document.refusals:
            return REFUSED
        return "a document"
    session = ClientSession("fuzz")
    session.send(case.request, case.version)
    outcome = "more of the frame is needed"
    try:
        for body in receive(FrameAssembler(MAX_FRAME_BYTES), case.stream, 1 + number % 5000):
            response = case.request.decode_response(case.version, session.receive_frame(body).body)
            outcome = "an answer"
            if isinstance(response, FetchResponse):
                outcome = _read_records(response, case, number)
    except RemoteProtocolError:
        return "RemoteProtocolError"
    return outcome


def _read_records(response: FetchResponse, case: Case, number: int) -> str:
    outcome = "an answer"
    for topic in response.topics:
        for one in topic.partitions:
            if one.record_set:
                outcome = _read_record_set(one, bytes(one.record_set), case, number)
    return outcome


def _read_record_set(answer: FetchedPartition, data: bytes, case: Case, number: int) -> str:
    start = number % 90
    find_stop(data, 0)
    first_unit_bytes(data)
    pieces = _either_way(lambda: cut_record_set(data, slice_bytes=400, expansion=4.0))
    if any(piece.end <= piece.begin for piece in pieces):
        raise Violated("a piece of nothing")
    # of every witness with and without
    high_watermark = answer.high_watermark if number & 2 else None
    following = data if number & 4 else b""
    # as what was received is given: by itself, or as a part of the frame
    received = memoryview(b"\0" + data + b"\0")[1:-1] if number & 8 else data

    def decode() -> RecordBatch:
        return decode_record_set(
            received,
            partition=PARTITION,
            start=start,
            limits=LIMITS,
            read_committed=bool(number & 1),
            aborted=answer.aborted_transactions,
            high_watermark=high_watermark,
            following=following,
        )

    try:
        records = _either_way(decode)
        seen = sum(1 for one in records.records() if _fits(one, records))
        if number % _ARROW_EVERY == 0 and _either_way(records.to_arrow).num_rows != seen:
            raise Violated("Arrow has another number of records")
    except CorruptMessageError as error:
        if error.raw not in data + following:
            raise Violated("the raw bytes of the error were not received") from error
        if error.next_offset is not None and error.next_offset <= start:
            raise Violated("to pass over it would move the position backwards") from error
        return "CorruptMessageError"
    if high_watermark is not None and start < records.next_offset > high_watermark:
        raise Violated("the position is beyond the high watermark")
    if case.genuine and not written().issuperset(_rows(records)):
        raise Violated("a record that nobody wrote passed its checksum")
    passed = sum(gap.end - gap.start for gap in records.gaps)
    if seen + passed != records.next_offset - start:
        raise Violated(f"{seen} records and {passed} passed over, of {records.next_offset - start} offsets")
    return "records" if seen else "more records are needed" if records.next_offset == start else "gaps alone"


def _either_way(read: Callable[[], T]) -> T:
    """Return what the native kernel makes of it, where there is one; the pure Python path must say the very same."""
    if not kernel.NATIVE:
        return read()
    with without_kernel():
        expected, refused = _try(read)
    found, error = _try(read)
    if found != expected or _words(error) != _words(refused):
        raise Violated(f"the kernel says {error or found!r}, and Python {refused or expected!r}")
    if error is not None:
        raise error
    return cast("T", found)


def _try(read: Callable[[], T]) -> tuple[T | None, CorruptMessageError | None]:
    try:
        return read(), None
    except CorruptMessageError as error:
        forget_frames(error)  # the other way is to be measured alone
        return None, error


def _words(error: CorruptMessageError | None) -> tuple[object, ...]:
    if error is None:
        return ()
    return type(error), str(error), error.partition, error.offset, error.next_offset, error.raw


def _fits(one: Record, records: RecordBatch) -> bool:
    if not records.start <= one.offset < records.next_offset:
        raise Violated(f"offset {one.offset} outside of [{records.start}, {records.next_offset})")
    return True


@dataclass(frozen=True, slots=True)
class Report:
    """What came of many frames."""

    outcomes: Counter[tuple[str, str]]
    peak_bytes: int

    def counts(self) -> Counter[str]:
        """Return how often each outcome was."""
        totals: Counter[str] = Counter()
        for (_, outcome), count in self.outcomes.items():
            totals[outcome] += count
        return totals


def run(seed: int, numbers: range) -> Report:
    """Read these frames of ``seed``. Raises Violated, naming seed and number, for the first that breaks the rules."""
    outcomes: Counter[tuple[str, str]] = Counter()
    peak = 0
    # what is loaded on first use is not the first frame's
    decode_record_set(stored()[0].data, partition=PARTITION, start=0).to_arrow()
    written()
    try:
        for number in numbers:
            case = make_case(seed, number)
            where = f"seed {seed}, frame {number}, {case.name}"
            measured = number // _MEASURED_TOGETHER % _MEASURED_EVERY == 0
            if measured != tracemalloc.is_tracing():
                (tracemalloc.start if measured else tracemalloc.stop)()
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            try:
                outcome = read_case(case, number)
            except Exception as error:
                raise Violated(f"{where}: {type(error).__name__}: {error}") from error
            peak = max(peak, tracemalloc.get_traced_memory()[1] - before)
            if peak > PYTHON_CAP_BYTES:
                raise Violated(f"{where}: {outcome}, and {peak} bytes to say so")
            outcomes[case.name, outcome] += 1
    finally:
        tracemalloc.stop()
    return Report(outcomes, peak)


# -- many of them


def _cap_process() -> None:
    """Warm up, then forbid the process to grow: an allocation beyond that is a MemoryError, which is a violation."""
    run(0, range(2000))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + PROCESS_CAP_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _run_in_child(seed: int, numbers: range) -> Report:
    return run(seed, numbers)


def run_all(seed: int, numbers: range, jobs: int) -> Report:
    """Read these frames of ``seed`` in processes whose memory is capped."""
    outcomes: Counter[tuple[str, str]] = Counter()
    peak = 0
    chunks = (numbers[first : first + _CHUNK] for first in range(0, len(numbers), _CHUNK))
    with concurrent.futures.ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_cap_process
    ) as pool:
        for report in pool.map(_run_in_child, cycle([seed]), chunks):
            outcomes.update(report.outcomes)
            peak = max(peak, report.peak_bytes)
    return Report(outcomes, peak)


def missed(report: Report) -> list[str]:
    """Return what a run should have met and did not: every version of every API, every magic and codec, both ways."""
    wanted = {f"{request.api.name}-v{version}" for request, version in VERSIONS}
    names = {name for name, _ in report.outcomes}
    found = sorted(wanted - names)
    for name in sorted({one.name for one in stored()}):
        outcomes = ["CorruptMessageError"] if _BOMB in name else ["CorruptMessageError", "records"]
        found += [f"{name}: {outcome}" for outcome in outcomes if not report.outcomes[name, outcome]]
    for name, refusals in sorted({(one.name, bool(one.refusals)) for one in documents()}):
        # an answer that says what failed is an error even when nothing is wrong with it
        outcomes = [REFUSED] * refusals + ["a document"] * (FAILED not in name)
        found += [f"{name}: {outcome}" for outcome in outcomes if not report.outcomes[name, outcome]]
    return found


def main() -> int:
    """Run, and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000, help="how many frames (1,000,000)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first (0)")
    parser.add_argument("--seed", type=int, default=None, help="which frames (random)")
    parser.add_argument("--jobs", type=int, default=2, help="in how many processes (2)")
    parser.add_argument("--only", type=int, default=None, help="this frame alone, here")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)  # noqa: T201
    if arguments.only is not None:
        case = make_case(seed, arguments.only)
        print(case, read_case(case, arguments.only), sep="\n")  # noqa: T201
        return 0
    began = time.monotonic()
    report = run_all(seed, range(arguments.first, arguments.first + arguments.count), arguments.jobs)
    seconds = time.monotonic() - began
    for outcome, count in report.counts().most_common():
        print(f"{count:9} {outcome}")  # noqa: T201
    print(  # noqa: T201
        f"{arguments.count} frames in {seconds:.0f} s; {report.peak_bytes} bytes at most for one "
        f"(cap {PYTHON_CAP_BYTES}), processes within {PROCESS_CAP_BYTES} more than at their start"
    )
    if lacking := missed(report):
        print(f"never met: {', '.join(lacking)}")  # noqa: T201
        return 1
    peak = f"{report.peak_bytes / 1e6:.1f}"
    verification.record(
        "`make fuzz-frames`", {"frames": f"{arguments.count:,} of seed {seed}", "most memory of one, MB": peak}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
