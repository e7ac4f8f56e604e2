# SPDX-License-Identifier: Apache-2.0
"""Requests of the job ``erase``: a topic, and keys or a predicate.

Pure, except that it reads the file of keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from consumerd.config.pipeline import Erase
from consumerd.errors import ConfigError
from consumerd.model import find_topic_fault

_MAX_REPORTED_DIGESTS: Final = 1000
"""Limit of the key digests that a report lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequest:
    """Request of the job ``erase``: a topic, and keys or a predicate.

    Attributes:
        keys: keys as bytes; empty for a predicate.
        where: predicate in Spark SQL; None for keys.
        source: table whose columns the predicate uses.
    """

    topic: str
    keys: tuple[bytes, ...] = ()
    where: str | None = None
    source: Literal["bronze", "silver"] = "bronze"

    @property
    def key_array(self) -> pa.Array:
        """The keys as an Arrow array."""
        return pa.array(self.keys, pa.binary())

    def describe(self) -> dict[str, object]:
        """Return the request for a report, without keys: only their SHA-256."""
        if self.where is not None:
            return {"where": self.where, "in": self.source}
        digests = sorted(hashlib.sha256(key).hexdigest() for key in self.keys)
        return {"keys": len(digests), "sha256": digests[:_MAX_REPORTED_DIGESTS]}


def read_request(erase: Erase, *, declared: bool) -> ErasureRequest:
    """Return the request of the job ``erase`` that the settings make.

    Args:
        declared: True if the topic is declared under ``pipeline.silver``.

    Raises ConfigError.
    """
    if erase.topic is None:
        raise ConfigError("pipeline.erase.topic: missing; name the topic whose records are erased, with --topic TOPIC")
    if fault := find_topic_fault(erase.topic):
        raise ConfigError(f"pipeline.erase.topic: {fault}")
    if erase.where is not None:
        if not erase.where.strip():
            raise ConfigError("pipeline.erase.where: empty; give a predicate, such as --where 'value.customer = 17'")
        source = erase.where_in or ("silver" if declared else "bronze")
        return ErasureRequest(topic=erase.topic, where=erase.where, source=source)
    keys = tuple(dict.fromkeys(_read_keys(erase)))
    if not keys:
        raise ConfigError(
            f"pipeline.erase: it does not say which records of {erase.topic}; give --key, --keys-file or --where"
            if erase.keys_file is None
            else f"{erase.keys_file}: there is no key in it"
        )
    return ErasureRequest(topic=erase.topic, keys=keys)


def _read_keys(erase: Erase) -> Iterator[bytes]:
    if erase.key is not None:
        yield erase.key.encode()
    if erase.key_hex is not None:
        yield bytes.fromhex(erase.key_hex)
    if erase.keys_file is not None:
        yield from _read_file(erase.keys_file, are_hex=erase.keys_are_hex)


def _read_file(path: Path, *, are_hex: bool) -> Iterator[bytes]:
    """Yield the keys of a file, one per line. Raises ConfigError."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"pipeline.erase.keys_file: {path}: {error.strerror or error}") from error
    for number, line in enumerate(lines, 1):
        text = line.removesuffix(b"\r")
        if not text:
            continue
        try:
            yield bytes.fromhex(text.decode("ascii")) if are_hex else text
        except ValueError:
            raise ConfigError(f"{path}: line {number} is not made of hexadecimal digits") from None
