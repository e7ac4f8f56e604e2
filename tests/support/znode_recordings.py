# SPDX-License-Identifier: Apache-2.0
"""Registries recorded from real systems (``tests/vectors/znodes``), put into a ZooKeeper of a test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kazoo.client import KazooClient

FOLDER: Final = Path(__file__).parents[1] / "vectors" / "znodes"
LEGACY: Final = tuple(
    sorted(f"{path.parent.name}/{path.name}" for path in FOLDER.glob("*/*.json") if path.parent.name != FOLDER.name)
)
"""Recordings of Kafka 0.7.2 and Jafka 3.0.6."""


@dataclass(frozen=True, slots=True)
class RecordedNode:
    """A node as it was dumped."""

    data: bytes
    ephemeral: bool


def load_legacy(name: str) -> Mapping[str, RecordedNode]:
    """Return a recording of the 0.7 generation by path."""
    nodes = json.loads((FOLDER / name).read_text())
    return {
        path: RecordedNode((node["value"] or "").encode(), bool(node["ephemeral"]))
        for path, node in sorted(nodes.items())
        if path != "/"
    }


def put_nodes(client: KazooClient, nodes: Mapping[str, RecordedNode]) -> None:
    """Make the nodes, ephemeral ones in the client's session."""
    for path, node in nodes.items():
        if node.ephemeral:
            client.create(path, node.data, ephemeral=True, makepath=True)
        else:
            client.ensure_path(path)
            client.set(path, node.data)
