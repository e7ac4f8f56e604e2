# SPDX-License-Identifier: Apache-2.0
"""Committed records of a topic, as Kafka's own consumer reads them with ``isolation.level=read_committed``."""

from __future__ import annotations

import subprocess
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.kafka import compile_java, java_command

_READER: Final = Path(__file__).parent.parent / "interop" / "CommittedReader.java"
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class Committed:
    """A record that Kafka's consumer has delivered."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: bytes


def read_committed(bootstrap: str, topic: str, *, release: str = "1.1.1") -> list[Committed]:
    """Return the committed records of a topic, up to the last stable offsets, in the order of each partition.

    ``release`` is that of the consumer.
    """
    classes = compile_java(release, [_READER])
    command = java_command(release, _READER.stem, bootstrap, topic, heap="128m", classes=classes, brisk=True)
    done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return [_read(line) for line in done.stdout.decode().splitlines()]


def values_of(records: list[Committed], partition: int) -> list[bytes | None]:
    """Return the values of one partition."""
    return [one.value for one in records if one.partition == partition]


def _read(line: str) -> Committed:
    partition, offset, timestamp, *texts = line.split(" ")
    key, value, headers = (None if text == "-" else b64decode(text) for text in texts)
    return Committed(int(partition), int(offset), int(timestamp), key, value, headers or b"")
