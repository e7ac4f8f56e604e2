# SPDX-License-Identifier: Apache-2.0
"""Reads a landing folder as a stranger would: by its names and metadata, with pyarrow and json alone.

Nothing of consumerd is imported, so that a mistake in its notion of a chain cannot hide here. What is expected of the
folder is written down once more, in code: see :func:`read_landing`.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

_DATA_NAME = re.compile(r"([0-9]{20})\.(jsonl|jsonl\.gz|jsonl\.zst|parquet)")

_TOPIC_ID_LENGTH: Final = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedRecord:
    """One record as it was found. ``timestamp`` in ms, or None."""

    offset: int
    next_offset: int
    index: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True, kw_only=True)
class LandedFile:
    """One data file, with what it says of itself."""

    path: Path
    position: int
    metadata: dict[str, Any]
    records: list[LandedRecord]

    @property
    def next_offset(self) -> int:
        """Where the chain goes on."""
        return int(self.metadata["next_offset"])

    @property
    def is_seal(self) -> bool:
        """Whether it ends the chain for good."""
        return self.metadata.get("sealed") is True


@dataclass(slots=True, kw_only=True)
class LandedChain:
    """One chain; ``record`` is its ``_chain.json``."""

    number: int
    record: dict[str, Any]
    files: list[LandedFile]

    @property
    def origin(self) -> int:
        """Where it begins."""
        return int(self.record["origin"])

    @property
    def incarnation(self) -> tuple[int | str, int]:
        """Of which making of the topic its records are, and after how many truncations of the log."""
        return _read_incarnation(self.record)

    @property
    def log(self) -> str:
        """The incarnation in one word: ``7``, or ``7.1`` after a truncation."""
        making, truncations = self.incarnation
        return f"{making}.{truncations}" if truncations else str(making)

    @property
    def end(self) -> int:
        """The position of the next file."""
        return self.files[-1].next_offset if self.files else self.origin

    @property
    def is_sealed(self) -> bool:
        """Whether no file can follow any more."""
        return bool(self.files) and self.files[-1].is_seal


@dataclass(slots=True, kw_only=True)
class LandedPartition:
    """Everything of one partition, and what is wrong with it: each list should be empty.

    ``overlaps``: files that share offsets, or records that are there twice. ``unexplained``: offsets that no record, no
    gap and no file covers, and chains that nothing explains. ``damaged``: what contradicts itself or cannot be read.
    """

    topic: str
    partition: str
    chains: list[LandedChain] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[LandedRecord]:
        """All records of all chains, in order."""
        return [record for chain in self.chains for file in chain.files for record in file.records]

    @property
    def offsets(self) -> list[int]:
        """The offsets of all records."""
        return [record.offset for record in self.records]

    @property
    def gaps(self) -> list[dict[str, Any]]:
        """All gaps of all files."""
        return [gap for chain in self.chains for file in chain.files for gap in file.metadata["gaps"]]

    @property
    def end(self) -> int:
        """The newest chain's end."""
        return self.chains[-1].end

    def find_lost(self, expected: Iterable[int]) -> list[int]:
        """Return those of the expected offsets that neither a record nor a gap of any chain tells of."""
        known = set(self.offsets)
        known.update(offset for gap in self.gaps for offset in range(gap["start"], gap["end"]))
        return [offset for offset in expected if offset not in known]

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong."""
        return [*self.overlaps, *self.unexplained, *self.damaged]


@dataclass(slots=True, kw_only=True)
class Landing:
    """A landing folder. ``leftovers`` are hidden names: no harm, but of interest."""

    root: dict[str, Any] | None
    partitions: dict[tuple[str, str], LandedPartition]
    leftovers: list[Path]

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong anywhere."""
        return [problem for partition in self.partitions.values() for problem in partition.problems]


def read_landing(path: Path) -> Landing:
    """Read a landing folder and check every chain in it.

    A chain's files must follow each other without overlap or hole, from its origin on; a file's records must lie between
    its position and its ``next_offset`` in rising order, and every offset in between must be a record or in a gap.

    Chains are numbered from 1 on; every one but the newest ends with a seal, and nothing follows a seal. Each is there for
    a reason that shows: the topic was made again, its log was truncated (a higher ``.k`` of the incarnation: where other
    members land in folders of their own, what lies in between is there), an operator asked for it (``request_id``), or it goes on where the one before was sealed.
    Records of one incarnation are in two chains only where an operator has asked for it.
    """
    root = path / "_consumerd.json"
    landing = Landing(
        root=json.loads(root.read_bytes()) if root.exists() else None,
        partitions={},
        leftovers=sorted(found for found in path.rglob(".*.tmp")),
    )
    for folder in sorted(path.glob("topic=*/partition=*")):
        topic = unquote(folder.parent.name.removeprefix("topic="))
        name = unquote(folder.name.removeprefix("partition="))
        partition = LandedPartition(topic=topic, partition=name)
        numbered = {int(found.name.removeprefix("chain=")): found for found in folder.glob("chain=*")}
        for number in sorted(numbered):
            _read_chain(partition, number, numbered[number])
        _check_succession(partition)
        _find_repeated(partition)
        if partition.chains:
            landing.partitions[topic, name] = partition
    return landing


def _read_chain(partition: LandedPartition, number: int, folder: Path) -> None:
    record = folder / "_chain.json"
    found = sorted(path for path in folder.iterdir() if _DATA_NAME.fullmatch(path.name))
    if not record.exists():
        if found:
            partition.damaged.append(f"{folder}: files without _chain.json")
        return
    chain = LandedChain(number=number, record=json.loads(record.read_bytes()), files=[])
    partition.chains.append(chain)
    for path in found:
        try:
            chain.files.append(_read_file(path))
        except (ValueError, KeyError, OSError, pa.ArrowException) as error:
            partition.damaged.append(f"{path}: {type(error).__name__}: {error}")
    end = chain.origin
    for file in chain.files:
        if file.position < end:
            partition.overlaps.append(f"{file.path}: begins below {end}, where the file before it ends")
        elif file.position > end:
            partition.unexplained.append(f"{file.path}: no file from {end} on")
        end = max(end, file.next_offset)
        _check_file(partition, chain, file)


def _read_file(path: Path) -> LandedFile:
    if path.suffix == ".parquet":
        metadata, records = _read_parquet(path)
    else:
        metadata, records = _read_jsonl(path)
    return LandedFile(path=path, position=int(path.name[:20]), metadata=metadata, records=records)


def _read_parquet(path: Path) -> tuple[dict[str, Any], list[LandedRecord]]:
    table = pq.read_table(path, partitioning=None)
    footer = pq.read_metadata(path).metadata or {}
    columns = {name: table[name].to_pylist() for name in ("offset", "next_offset", "index", "key", "value", "headers")}
    timestamps = table["timestamp"].cast(pa.int64()).to_pylist()
    records = [
        LandedRecord(
            offset=columns["offset"][row],
            next_offset=columns["next_offset"][row],
            index=columns["index"][row],
            timestamp=timestamps[row],
            key=columns["key"][row],
            value=columns["value"][row],
            headers=tuple((_as_text(header["key"]), header["value"]) for header in columns["headers"][row] or ()),
        )
        for row in range(len(table))
    ]
    return json.loads(footer[b"consumerd"]), records


def _read_jsonl(path: Path) -> tuple[dict[str, Any], list[LandedRecord]]:
    raw = path.read_bytes()
    sha256 = hashlib.sha256(raw).hexdigest()
    data = _decompress(raw, path.suffix)
    if data and not data.endswith(b"\n"):
        raise ValueError("the last line is cut")
    candidates = [json.loads(meta.read_bytes()) for meta in (path.parent / "_meta").glob(f"{path.name[:20]}.*.json")]
    matching = [meta for meta in candidates if (meta["size"], meta["sha256"]) == (len(raw), sha256)]
    modified = [meta for meta in matching if meta["modified_ns"] == path.stat().st_mtime_ns]
    if not modified:
        raise ValueError(f"{len(candidates)} metadata files, none matches")
    return modified[0], [_read_line(json.loads(line)) for line in data.splitlines()]


def _decompress(data: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.decompress(data)
    if suffix == ".zst":
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as frames:
            return frames.read()
    return data


def _read_line(line: dict[str, Any]) -> LandedRecord:
    return LandedRecord(
        offset=line["offset"],
        next_offset=line["next_offset"],
        index=line["index"],
        timestamp=line["timestamp"],
        key=_read_bytes(line, "key"),
        value=_read_bytes(line, "value"),
        headers=tuple((header["key"], _read_bytes(header, "value")) for header in line["headers"]),
    )


def _read_bytes(fields: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        return base64.b64decode(fields[f"{name}_base64"], validate=True)
    text = cast("str | None", fields[name])
    return None if text is None else text.encode()


def _as_text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode()


def _read_partition(record: dict[str, Any]) -> str:
    """Return a partition as its folder is named, from a record of format 1 or 2."""
    if record["format"] == 1:
        return str(record["partition"])
    number, broker = record["partition"], record.get("broker")
    if record["format"] != 2 or not isinstance(number, int):
        raise ValueError(f"format {record['format']}, partition {number!r}")
    return str(number) if broker is None else f"{broker}-{number}"


def _read_incarnation(record: dict[str, Any]) -> tuple[int | str, int]:
    """Return czxid, or topic id, and truncation of a record of format 1 or 2."""
    if record["format"] == 1:
        making, _, truncations = str(record["incarnation"]).partition(".")
        return int(making), int(truncations or 0)
    making = str(record["incarnation"])
    return making if len(making) == _TOPIC_ID_LENGTH else int(making), int(record["truncation"])


def _check_file(partition: LandedPartition, chain: LandedChain, file: LandedFile) -> None:
    metadata, path = file.metadata, file.path
    expected = {
        "topic": partition.topic,
        "chain": chain.number,
        "position": file.position,
        "count": len(file.records),
        "first_offset": file.records[0].offset if file.records else None,
        "last_offset": file.records[-1].offset if file.records else None,
    }
    for name, value in expected.items():
        if metadata[name] != value:
            partition.damaged.append(f"{path}: its metadata says {name} {metadata[name]!r}, it is {value!r}")
    said = _read_partition(metadata), _read_incarnation(metadata)
    if said != (partition.partition, chain.incarnation):
        partition.damaged.append(f"{path}: its metadata says {said}, it is {partition.partition}, {chain.incarnation}")
    places = [(record.offset, record.index) for record in file.records]
    if any(here >= there for here, there in itertools.pairwise(places)):
        partition.overlaps.append(f"{path}: its records do not rise")
    if places and not (file.position <= places[0][0] and places[-1][0] < file.next_offset):
        partition.overlaps.append(f"{path}: it has records outside of [{file.position}, {file.next_offset})")
    partition.unexplained += [f"{path}: nothing is said of {hole}" for hole in _holes(file)]
    partition.unexplained += _miscounted(partition, file)


def _holes(file: LandedFile) -> Iterator[str]:
    spans = [(record.offset, record.next_offset) for record in file.records]
    spans += [(gap["start"], gap["end"]) for gap in file.metadata["gaps"]]
    covered = file.position
    for start, end in sorted(spans):
        if start > covered:
            yield f"[{covered}, {start})"
        covered = max(covered, end)
    if covered < file.next_offset:
        yield f"[{covered}, {file.next_offset})"


def _miscounted(partition: LandedPartition, file: LandedFile) -> list[str]:
    """Where offsets count records: their number and the gaps' must add up to the span."""
    if "-" in partition.partition:
        return []
    passed = sum(gap["offsets"] for gap in file.metadata["gaps"])
    span = file.next_offset - file.position
    if len(file.records) + passed == span:
        return []
    return [f"{file.path}: {len(file.records)} records and {passed} passed over, of {span} offsets"]


def _check_succession(partition: LandedPartition) -> None:
    chains = partition.chains
    if [chain.number for chain in chains] != list(range(1, len(chains) + 1)):
        partition.damaged.append(f"{partition.topic}/{partition.partition}: chains {[one.number for one in chains]}")
    for chain in chains:
        for file in chain.files:
            if file.is_seal and (file is not chain.files[-1] or file.records or file.next_offset != file.position):
                partition.damaged.append(f"{file.path}: a seal that ends nothing")
    for before, chain in itertools.pairwise(chains):
        if not before.is_sealed:
            partition.damaged.append(f"{partition.topic}/{partition.partition}: chain {before.number} is not sealed")
        if not _is_explained(before, chain):
            partition.unexplained.append(
                f"{partition.topic}/{partition.partition}: chain {chain.number} begins at {chain.origin} of "
                f"{chain.incarnation} ({chain.record['reason']}), chain {before.number} ended at {before.end} of "
                f"{before.incarnation}"
            )


def _is_explained(before: LandedChain, chain: LandedChain) -> bool:
    (making, truncations), (former_making, former_truncations) = chain.incarnation, before.incarnation
    if making != former_making:
        # topic ids are random
        return not isinstance(making, int) or not isinstance(former_making, int) or making > former_making
    if truncations != former_truncations:
        return truncations > former_truncations
    if chain.record["reason"] == "sealed":
        return chain.origin == before.end and chain.record.get("request_id") == before.record.get("request_id")
    return chain.record.get("request_id") is not None


def _find_repeated(partition: LandedPartition) -> None:
    seen: dict[tuple[tuple[int | str, int], int, int], LandedChain] = {}
    for chain in partition.chains:
        for file in chain.files:
            for record in file.records:
                identity = (chain.incarnation, record.offset, record.index)
                first = seen.get(identity, chain)
                if first is not chain and first.record.get("request_id") == chain.record.get("request_id"):
                    partition.overlaps.append(f"{file.path}: {identity} is in chain {first.number}, too")
                seen[identity] = chain
