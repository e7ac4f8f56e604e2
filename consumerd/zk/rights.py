# SPDX-License-Identifier: Apache-2.0
"""Finds out what ACLs let this session do, and says so in words.

The server is the only judge: identities are mapped by rules of its own (SASL, x509, a superuser), so none is computed
here. A right is proven by a request that the server must refuse for another reason if it permits it:

- WRITE: a set with an impossible version. ACLs are checked before versions, so it ends as NoAuth or as BadVersion.
- CREATE and DELETE of children: a ``multi`` that creates a child, deletes it, and then checks an impossible version. It
  always fails as a whole; the index of the failure tells how far the rights go. Nothing is written, no watch fires.

A right depends on nothing but the ACL and the identity. So each distinct ACL is tried once, and the usual one
(``world:anyone`` may do anything) not at all: what is left are reads.

Sources: ``PrepRequestProcessor.java`` (order of the checks, in 3.4 and 3.9), "ZooKeeper access control using ACLs".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.aio.sharing import SharedReads
from consumerd.errors import CoordinationError
from consumerd.zk.port import (
    Acl,
    BadVersion,
    CheckVersion,
    Create,
    Delete,
    MultiFailed,
    NoNode,
    NotPermitted,
    Operation,
    Right,
    ZkClient,
)

_IMPOSSIBLE_VERSION: Final = 2**31 - 1
_PROBE_NAME: Final = ".consumerd-rights"
_ANYONE: Final = ("world", "anyone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """A right that this session lacks, with everything that an operator needs to grant it.

    ``acl`` is None where it may not be read.
    """

    path: str
    right: Right
    acl: tuple[Acl, ...] | None
    identity: str

    def __str__(self) -> str:
        wanted = {
            Right.READ: "read it",
            Right.WRITE: "write it",
            Right.CREATE: "create nodes below it",
            Right.DELETE: "delete nodes below it",
        }.get(self.right, str(self.right))
        acl = "may not be read" if self.acl is None else f"is {describe_acl(self.acl)}"
        return (
            f"{self.path}: no permission to {wanted}: its ACL {acl}, our identity is {self.identity}; grant it there "
            "(setAcl, as its owner), or set cluster.zookeeper_auth to an identity that has it"
        )


def describe_acl(acl: tuple[Acl, ...]) -> str:
    """Return an ACL as ZooKeeper's own shell writes it, without hashes of passwords."""
    return ",".join(map(str, acl)) or "empty"


@dataclass(frozen=True, slots=True)
class _Found:
    """A node that exists; ``acl`` is None where it may not be read."""

    acl: tuple[Acl, ...] | None


class SessionRights:
    """Answers whether this client may do something; what it has learned holds as long as its identity."""

    def __init__(self, zk: ZkClient) -> None:
        self._zk = zk
        self._proven: dict[tuple[tuple[Acl, ...], Right], bool] = {}
        # topics share the folders above theirs
        self._read = SharedReads[str, _Found | None](self._read_node)

    async def find_denial(self, path: str, *rights: Right) -> Denial | None:
        """Return the first of ``rights`` that a node denies. Raises NoNode where there is none, CoordinationError."""
        found = await self._read(path)
        if found is None:
            raise NoNode(f"{path}: there is no such node")
        return await self._judge(path, found, rights)

    async def find_denial_below(self, folder: str, *rights: Right) -> Denial | None:
        """Return the first of ``rights`` that a folder denies to who makes nodes in it. Raises CoordinationError.

        Where the folder is missing, its nearest ancestor decides whether it can be made. All of them are read at once.
        """
        names = folder.strip("/").split("/")
        ancestors = ["/" + "/".join(names[:depth]) for depth in range(len(names), 0, -1)]
        found = await map_bounded([*ancestors, "/"], self._read)
        for path, acl in found.items():
            if acl is not None:
                # below a folder that we are to make, we are the ones to say who may do what
                return await self._judge(path, acl, rights if path == folder else (Right.CREATE,))
        raise NoNode("/: there is no such node")

    async def _read_node(self, path: str) -> _Found | None:
        try:
            return _Found(await self._zk.get_acl(path))
        except NotPermitted:
            return _Found(None)
        except NoNode:
            return None

    async def _judge(self, path: str, found: _Found, rights: Sequence[Right]) -> Denial | None:
        for right in rights:
            if not await self._has(path, found.acl, right):
                return Denial(path=path, right=right, acl=found.acl, identity=self._zk.identity)
        return None

    async def _has(self, path: str, acl: tuple[Acl, ...] | None, right: Right) -> bool:
        if acl is None:
            return await self._prove(path, right)
        if any((one.scheme, one.id) == _ANYONE and right in one.rights for one in acl):
            return True
        if (acl, right) not in self._proven:
            self._proven[acl, right] = await self._prove(path, right)
        return self._proven[acl, right]

    async def _prove(self, path: str, right: Right) -> bool:
        if right is Right.WRITE:
            try:
                await self._zk.set(path, b"", version=_IMPOSSIBLE_VERSION)
            except NotPermitted:
                return False
            except BadVersion:
                return True
            raise CoordinationError(f"{path}: a write with an impossible version was taken")
        child = f"{path.rstrip('/')}/{_PROBE_NAME}"
        steps: list[Operation] = [Create(child, b"")]
        if right is Right.DELETE:
            steps.append(Delete(child))
        try:
            await self._zk.multi([*steps, CheckVersion(path, _IMPOSSIBLE_VERSION)])
        except MultiFailed as error:
            if error.index == len(steps):
                return True
            if isinstance(error.cause, NotPermitted):
                return False
            raise error.cause from error
        raise CoordinationError(f"{path}: a check of an impossible version was passed")


async def explain_refusal(zk: ZkClient, path: str, right: Right) -> str:
    """Say why a request was refused for an ACL: the node that decided it, its ACL, our identity. Raises nothing."""
    try:
        while True:
            try:
                acl: tuple[Acl, ...] | None = await zk.get_acl(path)
                break
            except NoNode:
                if path == "/":
                    raise
                path = path.rpartition("/")[0] or "/"
    except CoordinationError:
        acl = None
    return str(Denial(path=path, right=right, acl=acl, identity=zk.identity))
