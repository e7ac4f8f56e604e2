# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of MirrorMaker 2: translated positions of groups, as records that Java programs read.

``RemoteClusterUtils.translateOffsets`` reads the topic ``<alias>.checkpoints.internal`` of the target, partition 0. It
takes the last record of each group and partition, and returns the target offset. ``alias`` is the name that
MirrorMaker 2 gives the source cluster.

| part | fields |
|---|---|
| key | group: STRING, target topic: STRING, target partition: INT32 |
| value | version: INT16 (0), source position: INT64, target offset: INT64, metadata: STRING |

All numbers are big-endian; a STRING is its length in bytes (INT16), then UTF-8.

Source: ``Checkpoint.java`` of ``connect-mirror-client``, the same from 2.4 to 4.3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from consumerd.errors import CorruptMessageError

_VERSION: Final = 0
_LENGTH: Final = struct.Struct(">h")
_PARTITION: Final = struct.Struct(">i")
_OFFSETS: Final = struct.Struct(">hqq")
_LONGEST: Final = 2**15 - 1
"""Largest number of bytes in a STRING."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Translated position of a group in one partition.

    Attributes:
        group: group's id, the same in both clusters.
        topic: topic in the target.
        partition: its partition.
        source: position in the source.
        target: offset in the target of the record that the group reads next.
        metadata: text that the group has committed with its position.
    """

    group: str
    topic: str
    partition: int
    source: int
    target: int
    metadata: str = ""


def name_checkpoints_topic(alias: str) -> str:
    """Return the topic of the checkpoints of a source cluster."""
    return f"{alias}.checkpoints.internal"


def encode_checkpoint(checkpoint: Checkpoint) -> tuple[bytes, bytes]:
    """Return key and value of a checkpoint's record.

    Raises ValueError for a text of more than 32767 bytes.
    """
    key = b"".join(
        (_encode_text(checkpoint.group), _encode_text(checkpoint.topic), _PARTITION.pack(checkpoint.partition))
    )
    offsets = _OFFSETS.pack(_VERSION, checkpoint.source, checkpoint.target)
    return key, offsets + _encode_text(checkpoint.metadata)


def decode_checkpoint(key: bytes, value: bytes) -> Checkpoint:
    """Return the checkpoint in a record. Raises CorruptMessageError for any other bytes."""
    try:
        group, at = _decode_text(key, 0)
        topic, at = _decode_text(key, at)
        (partition,) = _PARTITION.unpack(key[at:])
        version, source, target = _OFFSETS.unpack_from(value)
        metadata, end = _decode_text(value, _OFFSETS.size)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise CorruptMessageError(
            f"no checkpoint of MirrorMaker 2: key {key[:100]!r}, value {value[:100]!r}"
        ) from error
    if version != _VERSION:
        raise CorruptMessageError(f"a checkpoint of MirrorMaker 2 has version {version}; only {_VERSION} is known")
    if end != len(value):
        raise CorruptMessageError(f"a checkpoint of MirrorMaker 2 is followed by {len(value) - end} bytes")
    return Checkpoint(group=group, topic=topic, partition=partition, source=source, target=target, metadata=metadata)


def _encode_text(text: str) -> bytes:
    data = text.encode()
    if len(data) > _LONGEST:
        raise ValueError(f"expected a text of at most {_LONGEST} bytes, got {len(data)}")
    return _LENGTH.pack(len(data)) + data


def _decode_text(data: bytes, at: int) -> tuple[str, int]:
    """Return a text and the position after it. Raises ValueError, struct.error."""
    (length,) = _LENGTH.unpack_from(data, at)
    end = at + _LENGTH.size + length
    if length < 0 or end > len(data):
        raise ValueError(f"a text of {length} bytes is not all there")
    return data[at + _LENGTH.size : end].decode(), end
