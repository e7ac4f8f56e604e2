# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files: an offset per partition, as Kafka's OffsetCheckpointFile writes them.

::

    0                      the version
    2                      number of entries
    orders 0 4711          topic, partition, offset
    clicks 3 17

A file is replaced as a whole. An unreadable one counts as empty: the work that it would have saved is done again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from consumerd.embedded.log.files import OsLogFiles, find_content, write_file
from consumerd.model import TopicPartition

_VERSION: Final = "0"


def read_checkpoint(path: Path, files: OsLogFiles) -> dict[TopicPartition, int]:
    """Return the offsets in a checkpoint file; none if it does not exist. Raises OSError."""
    data = find_content(path, files)
    if data is None:
        return {}
    try:
        version, count, *lines = data.decode().splitlines()
        offsets = {}
        for line in lines:
            topic, partition, offset = line.split()
            offsets[TopicPartition.modern(topic, int(partition))] = int(offset)
    except ValueError:
        return {}
    return offsets if version == _VERSION and count == str(len(lines)) else {}


def write_checkpoint(path: Path, offsets: Mapping[TopicPartition, int], files: OsLogFiles) -> None:
    """Replace a checkpoint file. Raises OSError.

    After an error, the file is the old or the new one.
    """
    lines = [_VERSION, str(len(offsets))]
    lines += (f"{one.topic} {one.partition} {offset}" for one, offset in sorted(offsets.items()))
    beside = path.with_name(path.name + ".tmp")
    write_file(beside, "".join(f"{line}\n" for line in lines).encode(), files)
    files.rename(beside, path)
    files.sync_folder(path.parent)
