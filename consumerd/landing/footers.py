# SPDX-License-Identifier: Apache-2.0
"""Reads landed files' metadata: Parquet footers, and JSON in ``_meta`` beside JSON lines.

Many files at a time are read in threads, since the disk takes most of the time. Blocks. Changes nothing, since daemons
may be at work. If they publish files meanwhile, the list of a chain's files may contradict itself; it is then read once
more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from consumerd.landing.chain import META_FOLDER, FileMetadata, parse_meta_name
from consumerd.landing.coverage import Coverage
from consumerd.landing.metadata import find_metadata_reader, keeps_metadata_beside
from consumerd.landing.ranges import EMPTY
from consumerd.landing.record_fields import MalformedRecord
from consumerd.landing.scan import list_chain
from consumerd.landing.values import LandedChain, LandedFile, Landing

_THREADS: Final = 4
_AT_A_TIME: Final = 64
_LISTINGS: Final = 3

Wanted = Callable[[LandedChain, LandedFile], bool]
"""Function that returns True for the files whose metadata are to be read."""


def read_all(landing: Landing) -> Landing:
    """Return the landed files with the metadata of every file read."""
    return read_footers(landing, lambda _chain, _file: True)


def read_ends(landing: Landing) -> Landing:
    """Return the landed files with the metadata of each chain's last file read.

    The end of every other file is known without reading: it is the offset in the next file's name.
    """
    return read_footers(landing, lambda _chain, file: file.name_end is None)


def read_new(landing: Landing, covered: Coverage) -> Landing:
    """Return all landed files, with metadata of those that a table lacks.

    A table lacks a file that it does not have completely; only the metadata of such files are read.

    ``covered.taken`` has the files that the table has taken completely.
    """
    taken = {chain.ref: covered.taken.get(chain.ref, EMPTY) for chain in landing.chains}
    return read_footers(landing, lambda chain, file: file.position not in taken[chain.ref])


def read_footers(landing: Landing, wanted: Wanted) -> Landing:
    """Return the landed files with the metadata of those files read that ``wanted`` selects.

    If a file's metadata cannot be read, or are those of another file, its field ``damage`` has the reason.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="footer") as pool:
        chains = _read_chains(pool, landing.chains, wanted)
        for _ in range(_LISTINGS - 1):
            odd = [
                place for place, chain in enumerate(chains) if _looks_odd(chain, is_newest=_is_newest(chains, place))
            ]
            if not odd:
                break
            again = _read_chains(pool, [_list_again(chains[place]) for place in odd], wanted)
            if all(chain.files == chains[place].files for place, chain in zip(odd, again, strict=True)):
                break
            for place, chain in zip(odd, again, strict=True):
                chains[place] = chain
    return replace(landing, chains=tuple(chains))


def _read_chains(pool: Executor, chains: Iterable[LandedChain], wanted: Wanted) -> list[LandedChain]:
    known = list(chains)
    work: list[tuple[LandedChain, Mapping[int, list[str]], list[LandedFile]]] = []
    for chain in known:
        unread = [file for file in chain.files if file.metadata is None and wanted(chain, file)]
        names = _list_metadata(chain) if unread and keeps_metadata_beside(chain.record.extension) else {}
        work += [(chain, names, unread[first : first + _AT_A_TIME]) for first in range(0, len(unread), _AT_A_TIME)]
    read: dict[str, LandedFile] = {}
    for files in pool.map(lambda part: [_read_file(part[0], part[1], file) for file in part[2]], work):
        read.update((file.path, file) for file in files)
    return [replace(chain, files=tuple(read.get(file.path, file) for file in chain.files)) for chain in known]


def _read_file(chain: LandedChain, names: Mapping[int, list[str]], file: LandedFile) -> LandedFile:
    folder, extension = Path(chain.folder), chain.record.extension
    read_metadata = find_metadata_reader(extension)
    if read_metadata is None:
        return replace(
            file,
            damage=f"{file.path}: its metadata cannot be read: .{extension} files are of no format that is known here",
        )
    try:
        size, modified_ns = chain.root.files.size_and_mtime(Path(file.path))
        file = replace(file, size=size, landed_ms=modified_ns // 1_000_000)
        metadata = read_metadata(chain.root.files, folder, file.position, names.get(file.position, ()))
    except MalformedRecord as error:
        return replace(file, damage=f"{file.path}: its metadata cannot be read: {error}")
    except OSError as error:
        return replace(file, damage=f"{file.path} cannot be read: {error.strerror or error}")
    wrong = _find_misplacement(chain, file, metadata)
    if wrong is not None:
        return replace(file, damage=f"{file.path}: its metadata say {wrong}; was the file moved or copied here?")
    return replace(file, metadata=metadata, damage=None)


def _find_misplacement(chain: LandedChain, file: LandedFile, metadata: FileMetadata) -> str | None:
    expected = {
        "topic": chain.partition.topic,
        "partition": chain.partition.partition,
        "chain": chain.number,
        "position": file.position,
        "incarnation": chain.record.incarnation,
        "cluster": chain.root.record.cluster,
    }
    for name, value in expected.items():
        found = getattr(metadata, name)
        if found != value:
            return f"{name} {found}, its place says {value}"
    return None


def _list_metadata(chain: LandedChain) -> Mapping[int, list[str]]:
    """List the names in ``_meta`` by position: one listing for a chain of files."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for name in chain.root.files.names(Path(chain.folder, META_FOLDER)):
        position = parse_meta_name(name)
        if position is not None:
            found[position].append(name)
    return found


def _is_newest(chains: list[LandedChain], place: int) -> bool:
    chain, later = chains[place], chains[place + 1 : place + 2]
    return not later or (later[0].partition, later[0].root.order) != (chain.partition, chain.root.order)


def _looks_odd(chain: LandedChain, *, is_newest: bool) -> bool:
    """Return True if this listing can be the result of files published during the listing."""
    ends = [chain.record.origin, *(file.end for file in chain.files)]
    if any(end is not None and end != file.position for end, file in zip(ends, chain.files, strict=False)):
        return True
    damaged = [Path(file.path).name for file in chain.files if file.damage is not None]
    if damaged and not set(damaged) <= set(chain.root.files.names(Path(chain.folder))):
        return True
    return not is_newest and ends[-1] is not None and not chain.sealed


def _list_again(chain: LandedChain) -> LandedChain:
    found = list_chain(chain.root, chain.partition, chain.number, chain.folder, [])
    if found is None:
        return chain
    known = {file.path: file for file in chain.files if file.damage is None}
    return replace(
        found, files=tuple(replace(known.get(file.path, file), name_end=file.name_end) for file in found.files)
    )
