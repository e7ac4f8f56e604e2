# SPDX-License-Identifier: Apache-2.0
"""Names below a node that need not be there."""

from __future__ import annotations

from collections.abc import Sequence

from consumerd.zk.port import NoNode, ZkClient


async def list_names(zk: ZkClient, path: str) -> Sequence[str]:
    """Return the names of a node's children, sorted; none where there is no such node. Raises CoordinationError."""
    try:
        names, _ = await zk.children(path)
    except NoNode:
        return ()
    return names
