# SPDX-License-Identifier: Apache-2.0
"""ACLs of the nodes that this process creates. Pure.

In a group with Java members, all members must be able to claim and commit: a member that is registered and may not
starves the others. So what consumerd creates carries what Java members create it with. A Java high-level consumer of
0.9 and later that has a JAAS section ``Client`` (user ``lake``) makes these nodes below ``/consumers/G``:

| node | without JAAS | with JAAS |
|---|---|---|
| ``G``, ``ids`` and below | ``world:anyone:cdrwa`` | ``world:anyone:cdrwa`` |
| ``owners`` and below | ``world:anyone:cdrwa`` | ``sasl:lake:cdrwa``, ``world:anyone:r`` |
| ``offsets`` and below | ``world:anyone:cdrwa`` | ``sasl:lake:cdrwa``, ``world:anyone:r`` |

Java members of 0.8 create open nodes in both cases. Sources: KIP-38; dumps of real groups of 0.10.2.2 and 1.1.1.
"""

from __future__ import annotations

import enum
from typing import Final

from consumerd.zk.layout import CONSUMERS
from consumerd.zk.port import Acl, Right

_ALL: Final = Right.READ | Right.WRITE | Right.CREATE | Right.DELETE | Right.ADMIN
_OPEN: Final = (Acl("world", "anyone", _ALL),)
_PRIVATE: Final = (Acl("auth", "", _ALL),)
"""All rights for the creator: ZooKeeper puts in the identities of its connection."""
_READABLE: Final = (*_PRIVATE, Acl("world", "anyone", Right.READ))
_OWNED: Final = frozenset({"owners", "offsets", "consumerd"})
"""Parts of a group that only its members change."""


class AclProfile(enum.Enum):
    """ACLs of the nodes that a process creates: the values of ``cluster.zookeeper_acl``."""

    OPEN = "open"
    """Everybody may use them."""
    JAVA = "java"
    """As Java members do with SASL: claims and positions are ours, everybody may read."""
    PRIVATE = "private"
    """The whole group is ours, and others may not read it."""


def choose_acl(profile: AclProfile, path: str) -> tuple[Acl, ...]:
    """Return the ACL with which a node is created.

    Args:
        path: Path of the node, without the chroot.
    """
    parts = path.split("/")
    if profile is AclProfile.OPEN or len(parts) <= 2 or f"/{parts[1]}" != CONSUMERS:
        return _OPEN
    if profile is AclProfile.PRIVATE:
        return _PRIVATE
    return _READABLE if len(parts) > 3 and parts[3] in _OWNED else _OPEN
