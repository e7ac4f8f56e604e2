# SPDX-License-Identifier: Apache-2.0
"""Reads the names of all landed files: landing folders, chains, files.

Of file contents it reads only the small records at the beginning of chains.

A folder is not listed at one moment: a file that is published meanwhile may be seen though its predecessor is not. So
names alone prove no missing file; readers of footers list such a chain again (``footers``).

Blocks; changes nothing, since daemons may be at work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from consumerd.errors import ConfigError
from consumerd.landing.chain import (
    CHAIN_RECORD,
    HIDDEN_PREFIX,
    META_FOLDER,
    ROOT_RECORD,
    ChainRecord,
    RootRecord,
    parse_chain_folder,
    parse_data_name,
    partition_folder,
)
from consumerd.landing.filesystem import LOCAL_FILES, ReadableFiles
from consumerd.landing.findings import Finding, FindingKind, Severity
from consumerd.landing.record_fields import MalformedRecord, describe_malformed
from consumerd.landing.values import LandedChain, LandedFile, Landing, LandingRoot
from consumerd.model import PartitionKey, TopicPartition

_TOPIC: Final = "topic="
_PARTITION: Final = "partition="


def scan_landing(
    paths: Sequence[str | Path], *, topics: Collection[str] | None = None, files: ReadableFiles = LOCAL_FILES
) -> Landing:
    """Return the chains of files below one or more paths of sinks.

    Files are known by their names only; nothing but the small records at the beginning of chains is read. Raises
    ConfigError for a path without ``_consumerd.json``, for paths of different clusters, and for a path given twice.
    Raises OSError.

    Args:
        topics: Topics to list; None for all.
        files: The store of the files.
    """
    roots = read_roots(paths, files=files)
    findings: list[Finding] = []
    chains = [
        chain
        for root in roots
        for partition in list_partitions(root, topics, findings)
        for chain in _chains(root, *partition, findings)
    ]
    chains.sort(key=lambda chain: (chain.partition, chain.root.order, chain.number))
    return Landing(roots=roots, chains=tuple(chains), findings=tuple(findings))


def read_roots(paths: Sequence[str | Path], *, files: ReadableFiles = LOCAL_FILES) -> tuple[LandingRoot, ...]:
    """Return each sink's path with the group and cluster that own it.

    Raises ConfigError, OSError.
    """
    if not paths:
        raise ConfigError("no landing path is given")
    roots = [
        LandingRoot(path=Path(path).absolute(), record=_read_root(files, Path(path)), order=order, files=files)
        for order, path in enumerate(paths)
    ]
    first = roots[0]
    for number, root in enumerate(roots):
        if root.record.cluster != first.record.cluster:
            raise ConfigError(
                f"{root.path} is of cluster {root.record.cluster} and {first.path} of {first.record.cluster}: offsets "
                f"of different "
                "clusters are different records; run the job once for each, with tables of its own (pipeline.path)"
            )
        for other in roots[:number]:
            if other.record.root == root.record.root:
                raise ConfigError(
                    f"{other.path} and {root.path} are the same landing root, {root.record.root}: name it once"
                )
    return tuple(roots)


def list_chain(
    root: LandingRoot, partition: TopicPartition, number: int, folder: str, findings: list[Finding]
) -> LandedChain | None:
    """Return one chain of landed files, by the files' names.

    None if the chain's ``_chain.json`` is missing or cannot be read.

    Args:
        number: Number of the chain among those of the partition, from 1.
        folder: Path of the chain's folder.
        findings: Faults that are found are appended to this list.
    """
    names = _names(root, folder)
    record = _read_chain_record(root.files, folder, names, partition, number, findings)
    if record is None:
        return None
    found: list[tuple[int, str]] = []
    for name in names:
        position = parse_data_name(name, record.extension)
        if position is not None:
            found.append((position, name))
        else:
            _note_foreign(findings, f"{folder}/{name}", f"no .{record.extension} file of a chain")
    found.sort()
    files = tuple(
        LandedFile(path=f"{folder}/{name}", position=position, name_end=end)
        for (position, name), end in zip(found, [*(start for start, _ in found[1:]), None], strict=False)
    )
    return LandedChain(root=root, partition=partition, number=number, folder=folder, record=record, files=files)


def _read_root(files: ReadableFiles, path: Path) -> RootRecord:
    try:
        return RootRecord.parse(files.read(path / ROOT_RECORD))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(f"{path} is no landing path: there is no {ROOT_RECORD} (is the volume mounted?)") from error
    except MalformedRecord as error:
        raise ConfigError(describe_malformed(str(path / ROOT_RECORD), error)) from error


def list_partitions(
    root: LandingRoot, topics: Collection[str] | None, findings: list[Finding]
) -> Iterator[tuple[TopicPartition, str]]:
    """Yield the partitions below a sink's path, each with the path of its folder.

    Args:
        topics: Topics to list; None for all.
        findings: A folder whose name no sink would create is appended to this list.
    """
    for topic_name in _names(root, str(root.path)):
        topic = unquote(topic_name.removeprefix(_TOPIC))
        if topics is not None and topic not in topics:
            continue
        topic_folder = str(root.path / topic_name)
        if not topic_name.startswith(_TOPIC):
            _note_foreign(findings, topic_folder, "no topic's folder")
            continue
        for name in _names(root, topic_folder):
            folder = f"{topic_folder}/{name}"
            try:
                partition = TopicPartition(topic, PartitionKey.parse(unquote(name.removeprefix(_PARTITION))))
            except ValueError:
                partition = None
            if partition is None or partition_folder(partition) != (topic_name, name):
                _note_foreign(findings, folder, "no partition's folder")
                continue
            yield partition, folder


def _chains(root: LandingRoot, partition: TopicPartition, home: str, findings: list[Finding]) -> Iterator[LandedChain]:
    for name in _names(root, home):
        number = parse_chain_folder(name)
        if number is None:
            _note_foreign(findings, f"{home}/{name}", "no chain's folder")
            continue
        chain = list_chain(root, partition, number, f"{home}/{name}", findings)
        if chain is not None:
            yield chain


def _read_chain_record(
    files: ReadableFiles,
    folder: str,
    names: Collection[str],
    partition: TopicPartition,
    number: int,
    findings: list[Finding],
) -> ChainRecord | None:
    path = f"{folder}/{CHAIN_RECORD}"
    try:
        return ChainRecord.parse(files.read(Path(path)))
    except FileNotFoundError:
        if all(name.startswith((HIDDEN_PREFIX, META_FOLDER)) for name in names):
            return None  # its writer died before it published the record, or is about to publish it
        kind = FindingKind.CHAIN_RECORD_MISSING
        detail = f"{folder} has files and no {CHAIN_RECORD}: the incarnation of {partition} is unknown"
    except MalformedRecord as error:
        kind, detail = FindingKind.CHAIN_RECORD_DAMAGED, describe_malformed(path, error)
    findings.append(
        Finding(
            kind=kind,
            severity=Severity.CRITICAL,
            detail=detail,
            topic=partition.topic,
            partition=str(partition.partition),
            chain=number,
            where=path,
        )
    )
    return None


def _names(root: LandingRoot, folder: str) -> list[str]:
    try:
        return root.files.names(Path(folder))
    except NotADirectoryError:
        return []


def _note_foreign(findings: list[Finding], path: str, what: str) -> None:
    """Add a finding for a name that no sink creates.

    Names that begin with a dot or an underscore are passed over.
    """
    if not path.rpartition("/")[2].startswith(("_", ".")):
        detail = f"{path} is {what}, and is passed over"
        findings.append(Finding(kind=FindingKind.FOREIGN_NAME, severity=Severity.WARNING, detail=detail, where=path))
