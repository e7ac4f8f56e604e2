# SPDX-License-Identifier: Apache-2.0
"""JSON documents that commands write and read.

A document has a head, and one list with an element per line::

    {"format": "consumerd offsets", "version": 1, "group": "lake", "offsets": [
      {"topic": "orders", "partition": "0", "position": 42},
      {"topic": "orders", "partition": "1", "position": 7}
    ]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from consumerd.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentKind:
    """One kind of document.

    Attributes:
        name: Value of ``format`` in the document.
        version: Value of ``version``; a document with another one is refused.
        command: The command that writes such documents, for errors.
        rows: Key of the document's list.
    """

    name: str
    version: int
    command: str
    rows: str

    def encode(self, head: Mapping[str, object], rows: Iterable[Mapping[str, object]]) -> str:
        """Return a document as JSON text.

        Args:
            head: Values beside ``format``, ``version`` and the list.
            rows: Elements of the list.
        """
        begin = json.dumps({"format": self.name, "version": self.version, **head})
        lines = ",\n".join(f"  {json.dumps(one)}" for one in rows)
        return f'{begin[:-1]}, "{self.rows}": [\n{lines}\n]}}\n'

    def parse(self, text: str, source: str) -> Mapping[str, object]:
        """Read a document of this kind and version. Raises ConfigError.

        Args:
            source: Name of the file, for errors.
        """
        try:
            document: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{source}: expected JSON as `{self.command}` writes it: {error}") from error
        if not isinstance(document, dict) or document.get("format") != self.name:
            raise ConfigError(f"{source}: expected a document as `{self.command}` writes it")
        if document.get("version") != self.version:
            raise ConfigError(f"{source}: version: expected {self.version}; written by a newer release?")
        return document

    def find_rows(self, document: Mapping[str, object], source: str) -> list[object]:
        """Return the list of a document. Raises ConfigError if it has none."""
        rows = document.get(self.rows)
        if not isinstance(rows, list):
            raise ConfigError(f"{source}: {self.rows}: expected a list")
        return rows
