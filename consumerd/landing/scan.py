# SPDX-License-Identifier: Apache-2.0
"""Reads a landing zone's names: roots, chains, files. Of what is within files only the small records at chains' beginnings.

A folder is not listed in one moment: a file that is published meanwhile may be seen though its predecessor is not. So
what looks like a hole is for whoever reads footers to look at again (``footers``); names alone tell of none.

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
    is_hidden,
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
    """Read the names below one or more roots, of some topics or all.

    Raises ConfigError where a path is no landing root, or roots are of different clusters or the same one twice;
    OSError.
    """
    roots = read_roots(paths, files=files)
    findings: list[Finding] = []
    hidden: list[str] = []
    chains = [
        chain
        for root in roots
        for partition in list_partitions(root, topics, findings)
        for chain in _chains(root, *partition, findings, hidden)
    ]
    chains.sort(key=lambda chain: (chain.partition, chain.root.order, chain.number))
    return Landing(roots=roots, chains=tuple(chains), findings=tuple(findings), hidden=tuple(hidden))


def read_roots(paths: Sequence[str | Path], *, files: ReadableFiles = LOCAL_FILES) -> tuple[LandingRoot, ...]:
    """Read whose paths these are. Raises ConfigError, OSError."""
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
                f"{root.path} is of cluster {root.record.cluster} and {first.path} of {first.record.cluster}: offsets of different "
                "clusters are different records; run the job once for each, with tables of its own (pipeline.path)"
            )
        for other in roots[:number]:
            if other.record.root == root.record.root:
                raise ConfigError(
                    f"{other.path} and {root.path} are the same landing root, {root.record.root}: name it once"
                )
    return tuple(roots)


def list_chain(
    root: LandingRoot, partition: TopicPartition, number: int, folder: str
) -> tuple[LandedChain | None, list[Finding], list[str]]:
    """Read one chain's names: the chain (None where its record is missing or damaged), what is amiss, and hidden names."""
    findings: list[Finding] = []
    names = _names(root, folder)
    hidden = [f"{folder}/{name}" for name in names if is_hidden(name)]
    record = _read_chain_record(root.files, folder, names, partition, number, findings)
    if record is None:
        return None, findings, hidden
    found: list[tuple[int, str]] = []
    for name in names:
        position = parse_data_name(name, record.extension)
        if position is not None:
            found.append((position, name))
        elif not name.startswith(("_", ".")):
            findings.append(_foreign(f"{folder}/{name}", f"no .{record.extension} file of a chain"))
    found.sort()
    files = tuple(
        LandedFile(path=f"{folder}/{name}", position=position, name_end=end)
        for (position, name), end in zip(found, [*(start for start, _ in found[1:]), None], strict=False)
    )
    chain = LandedChain(root=root, partition=partition, number=number, folder=folder, record=record, files=files)
    return chain, findings, hidden


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
    """Yield partitions with their folders; a folder that no sink would name so becomes a finding."""
    for topic_name in _names(root, str(root.path)):
        topic = unquote(topic_name.removeprefix(_TOPIC))
        if topics is not None and topic not in topics:
            continue
        topic_folder = str(root.path / topic_name)
        if not topic_name.startswith(_TOPIC):
            if not topic_name.startswith(("_", ".")):
                findings.append(_foreign(topic_folder, "no topic's folder"))
            continue
        for name in _names(root, topic_folder):
            folder = f"{topic_folder}/{name}"
            try:
                partition = TopicPartition(topic, PartitionKey.parse(unquote(name.removeprefix(_PARTITION))))
            except ValueError:
                partition = None
            if partition is None or partition_folder(partition) != (topic_name, name):
                if not name.startswith(("_", ".")):
                    findings.append(_foreign(folder, "no partition's folder"))
                continue
            yield partition, folder


def _chains(
    root: LandingRoot, partition: TopicPartition, home: str, findings: list[Finding], hidden: list[str]
) -> Iterator[LandedChain]:
    for name in _names(root, home):
        number = parse_chain_folder(name)
        if number is None:
            if not name.startswith(("_", ".")):
                findings.append(_foreign(f"{home}/{name}", "no chain's folder"))
            continue
        chain, found, leftovers = list_chain(root, partition, number, f"{home}/{name}")
        findings += found
        hidden += leftovers
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
            return None  # its maker died before it published the record, or is about to
        kind = FindingKind.CHAIN_RECORD_MISSING
        detail = f"{folder} has files and no {CHAIN_RECORD}: nobody knows which making of {partition} they are of"
    except MalformedRecord as error:
        kind, detail = FindingKind.CHAIN_RECORD_DAMAGED, describe_malformed(path, error)
    findings.append(
        Finding(
            kind=kind,
            severity=Severity.ERROR,
            detail=detail,
            topic=partition.topic,
            partition=str(partition.partition),
            chain=number,
            path=path,
        )
    )
    return None


def _names(root: LandingRoot, folder: str) -> list[str]:
    try:
        return root.files.names(Path(folder))
    except NotADirectoryError:
        return []


def _foreign(path: str, what: str) -> Finding:
    return Finding(
        kind=FindingKind.FOREIGN_NAME,
        severity=Severity.WARNING,
        detail=f"{path} is {what}, and is passed over",
        path=path,
    )
