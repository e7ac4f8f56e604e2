# SPDX-License-Identifier: Apache-2.0
"""Compares the demo's landed files with the producer's ledger, with pyarrow and json only.

None of the code that wrote the files is used, so its mistakes cannot be hidden here. The ledger has topic, partition
and offset of each acknowledged record, or its content where brokers tell no offset (Kafka 0.6 and 0.7). The partition
of a file is taken from its folder's name, as other readers do.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from consumerd.demo.ledger import RecordPlace, digest
from consumerd.errors import ConsumerdError
from consumerd.model import PartitionKey
from consumerd.telemetry.wording import join_shown

_SHOWN: Final = 5


class AuditFailed(ConsumerdError):
    """Raised if a landed file cannot be read, or contradicts its folder's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """One record in a file: its partition and offset, and a digest.

    ``place`` has topic, partition and offset; ``digest`` is that of key and value.
    """

    place: RecordPlace
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAudit:
    """Result of the demo's audit for one topic: numbers of records.

    Without offsets in the ledger, a changed record is one that is lost, and another one that is unknown.

    Args:
        produced: Records of the ledger: those that brokers have acknowledged.
        landed: Records of the ledger that are in a file, unchanged, with their partition and offset.
        lost: Records of the ledger that are in no file.
        twice: Additional copies of records, under any offset.
        changed: Records of the ledger in whose place a file has another key or value.
        misplaced: Records of the ledger that are in a file, but only under another partition or offset.
        unknown: Records in files that were never produced.
        findings: Lines of text about what is wrong; empty if nothing is.
    """

    topic: str
    produced: int
    landed: int
    lost: int
    twice: int
    changed: int
    misplaced: int
    unknown: int
    findings: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """True if the topic's files hold exactly the records of the ledger.

        Each record is there once, unchanged, with its partition and offset.
        """
        return not self.findings


def audit(ledger: Mapping[RecordPlace, bytes], landed: Iterable[Landed]) -> tuple[TopicAudit, ...]:
    """Compare the ledger with the landed records; return the result of each topic.

    Args:
        ledger: Digest of key and value of each acknowledged record.
        landed: The records found in all files.
    """
    expected: defaultdict[str, dict[RecordPlace, bytes]] = defaultdict(dict)
    for place, found in ledger.items():
        expected[place.topic][place] = found
    actual = _group_by_topic(landed)
    return tuple(_audit_topic(topic, expected[topic], actual[topic]) for topic in sorted({*expected, *actual}))


def audit_sent(sent: Mapping[bytes, RecordPlace], landed: Iterable[Landed]) -> tuple[TopicAudit, ...]:
    """Compare a ledger without offsets with the landed records; return the result of each topic.

    Args:
        sent: Topic and partition of each record, by its digest; no two records are alike.
        landed: The records found in all files.
    """
    expected: defaultdict[str, dict[bytes, RecordPlace]] = defaultdict(dict)
    for found, place in sent.items():
        expected[place.topic][found] = place
    actual = _group_by_topic(landed)
    return tuple(_audit_sent_topic(topic, expected[topic], actual[topic]) for topic in sorted({*expected, *actual}))


def _group_by_topic(landed: Iterable[Landed]) -> defaultdict[str, list[Landed]]:
    grouped: defaultdict[str, list[Landed]] = defaultdict(list)
    for one in landed:
        grouped[one.place.topic].append(one)
    return grouped


def _audit_topic(topic: str, expected: Mapping[RecordPlace, bytes], landed: Iterable[Landed]) -> TopicAudit:
    homes: defaultdict[bytes, list[RecordPlace]] = defaultdict(list)
    for place, found in expected.items():
        homes[found].append(place)
    right: Counter[RecordPlace] = Counter()
    strays: list[Landed] = []
    for one in landed:
        if expected.get(one.place) == one.digest:
            right[one.place] += 1
        else:
            strays.append(one)
    twice = [place for place, count in right.items() for _ in range(count - 1)]
    missing = {place for place in expected if place not in right}
    # the strays are records missing elsewhere, copies, altered records, or records that were never produced
    misplaced: list[tuple[RecordPlace, RecordPlace]] = []
    changed: list[RecordPlace] = []
    unknown: list[RecordPlace] = []
    for one in strays:
        if home := next((place for place in homes[one.digest] if place in missing), None):
            missing.discard(home)
            misplaced.append((home, one.place))
        elif homes[one.digest]:
            twice.append(one.place)
        elif one.place in missing:
            missing.discard(one.place)
            changed.append(one.place)
        else:
            unknown.append(one.place)
    return _judge(
        topic,
        produced=len(expected),
        landed=len(right),
        lost=missing,
        twice=twice,
        changed=changed,
        misplaced=misplaced,
        unknown=unknown,
    )


def _audit_sent_topic(topic: str, expected: Mapping[bytes, RecordPlace], landed: Iterable[Landed]) -> TopicAudit:
    found: defaultdict[bytes, list[RecordPlace]] = defaultdict(list)
    for one in landed:
        found[one.digest].append(one.place)
    right = 0
    lost: list[RecordPlace] = []
    twice: list[RecordPlace] = []
    misplaced: list[tuple[RecordPlace, RecordPlace]] = []
    for wanted, home in expected.items():
        places = found.pop(wanted, [])
        # copies in the right partition come first: if there is one, the others are the doubles
        places.sort(key=lambda place: (place.partition != home.partition, place))
        if not places:
            lost.append(home)
        elif places[0].partition == home.partition:
            right += 1
        else:
            misplaced.append((home, places[0]))
        twice += places[1:]
    return _judge(
        topic,
        produced=len(expected),
        landed=right,
        lost=lost,
        twice=twice,
        changed=(),
        misplaced=misplaced,
        unknown=[place for places in found.values() for place in places],
    )


def _judge(
    topic: str,
    *,
    produced: int,
    landed: int,
    lost: Collection[RecordPlace],
    twice: Collection[RecordPlace],
    changed: Collection[RecordPlace],
    misplaced: Collection[tuple[RecordPlace, RecordPlace]],
    unknown: Collection[RecordPlace],
) -> TopicAudit:
    """Return the result for a topic: numbers, and a text for each kind of fault.

    Args:
        misplaced: Place in the ledger and place in a file, of each record.
    """
    told: tuple[tuple[str, Sequence[object]], ...] = (
        ("lost", sorted(lost)),
        ("landed twice", sorted(twice)),
        ("changed", sorted(changed)),
        ("misplaced", [f"{home} stands at {there}" for home, there in sorted(misplaced)]),
        ("never produced", sorted(unknown)),
    )
    return TopicAudit(
        topic=topic,
        produced=produced,
        landed=landed,
        lost=len(lost),
        twice=len(twice),
        changed=len(changed),
        misplaced=len(misplaced),
        unknown=len(unknown),
        findings=tuple(
            f"{topic}: {len(places)} {what}: {join_shown(places, _SHOWN)}" for what, places in told if places
        ),
    )


def read_parquet(folder: Path) -> Iterator[Landed]:
    """Yield the records of all Parquet files below a folder. Raises AuditFailed."""
    for path in sorted(folder.rglob("*.parquet")):
        with _reading(path):
            topic, partition = _find_partition(folder, path)
            # partitioning=None: folder names must not become columns
            table = pq.read_table(path, columns=["offset", "key", "value"], partitioning=None)
            columns = [table[name].to_pylist() for name in ("offset", "key", "value")]
        for offset, key, value in zip(*columns, strict=True):
            yield Landed(place=RecordPlace(topic, partition, offset), digest=digest(key, value))


def read_json_lines(folder: Path) -> Iterator[Landed]:
    """Yield the records of all JSON-lines files below a folder. Raises AuditFailed.

    Files may be compressed.
    """
    paths = [path for pattern in ("*.jsonl", "*.jsonl.gz", "*.jsonl.zst") for path in folder.rglob(pattern)]
    for path in sorted(paths):
        with _reading(path), _open_lines(path) as lines:
            topic, partition = _find_partition(folder, path)
            for number, line in enumerate(lines, 1):
                fields = json.loads(line)
                said = PartitionKey(int(fields["partition"]), fields.get("broker"))
                if (fields["topic"], said) != (topic, partition):
                    raise ValueError(f"line {number} says {fields['topic']}/{said}")
                place = RecordPlace(topic, partition, fields["offset"])
                yield Landed(place=place, digest=digest(_read_bytes(fields, "key"), _read_bytes(fields, "value")))


@contextlib.contextmanager
def _open_lines(path: Path) -> Iterator[Iterable[bytes]]:
    with path.open("rb") as file:
        if path.suffix == ".gz":
            yield gzip.GzipFile(fileobj=file)
        elif path.suffix == ".zst":
            frames = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            yield io.BufferedReader(cast("io.RawIOBase", frames))
        else:
            yield file


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, ValueError, KeyError, zlib.error, zstandard.ZstdError, pa.ArrowException) as error:
        raise AuditFailed(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def _find_partition(folder: Path, path: Path) -> tuple[str, PartitionKey]:
    """Return topic and partition from the hive-style folder names ``topic=T/partition=P``."""
    named = dict(part.split("=", 1) for part in path.relative_to(folder).parts if "=" in part)
    return unquote(named["topic"]), PartitionKey.parse(named["partition"])


def _read_bytes(fields: Mapping[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        return base64.b64decode(fields[f"{name}_base64"], validate=True)
    text = fields[name]
    return None if text is None else str(text).encode()
