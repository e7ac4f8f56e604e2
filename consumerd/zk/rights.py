# SPDX-License-Identifier: Apache-2.0
"""Tests which rights ACLs give to this ZooKeeper session, and describes the missing ones.

Only the server can judge: it maps identities by rules of its own (SASL, x509, a superuser), so rights are not computed
here. Instead, a right is tested by a request that always fails: with NoAuth if the right is missing, else for another
reason:

- WRITE: a set with an impossible version. ACLs are checked before versions, so it ends as NoAuth or as BadVersion.
- CREATE and DELETE of children: a ``multi`` that creates a child, deletes it, and then checks an impossible version. It
  always fails as a whole; the index of the failed operation tells which right is missing. Nothing is written, no watch
  fires.

A right depends only on the ACL and the identity. So each distinct ACL is tested once. A right that the ACL gives to
``world:anyone``, as is usual, is known from the ACL and needs no test.

Sources: ``PrepRequestProcessor.java`` (order of the checks, in 3.4 and 3.9), "ZooKeeper access control using ACLs".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.aio.sharing import SharedReads
from consumerd.errors import CoordinationError
from consumerd.zk.layout import CONSUMERS
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
    """A right that this ZooKeeper session lacks at a znode, with the node's ACL.

    ``acl`` is None if the session may not read the ACL. ``identity`` is the session's name in ACLs.
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
            f"{self.path}: no permission to {wanted}: its ACL {acl}, our identity is {self.identity}; {self._remedy()}"
        )

    def _remedy(self) -> str:
        if self.path == CONSUMERS:
            return (
                "brokers of Kafka 1.1 with zookeeper.set.acl=true close it to every consumer. As their user, in zkCli.sh: "
                f"{self.command()}; or create {CONSUMERS}/GROUP there, and open that"
            )
        return (
            "grant it there (setAcl, as its owner), or set cluster.zookeeper_sasl or zookeeper_auth to an identity that "
            "has it"
        )

    def command(self) -> str | None:
        """Return the command of ``zkCli.sh`` that adds all rights for us to the ACL.

        None if the whole command is not known: hashes of passwords, for example, are not shown.
        """
        if self.path == CONSUMERS or self.identity == ":".join(_ANYONE):
            return f"setAcl {self.path} world:anyone:cdrwa"
        is_told = self.identity.startswith("sasl:") and " " not in self.identity
        if not is_told or self.acl is None or any(one.scheme == "digest" for one in self.acl):
            return None
        others = [str(one) for one in self.acl if f"{one.scheme}:{one.id}" != self.identity]
        return f"setAcl {self.path} {','.join([*others, f'{self.identity}:cdrwa'])}"

    def advise(self) -> str:
        """Return what to do, with the command that grants the right if it is known."""
        command = self.command()
        grant = "grant the right with setAcl as the node's owner" if command is None else f"as its owner: {command}"
        if command is not None and "@" in command:
            grant += (
                " (servers may cut host and realm off the name: write it as the ACL of a node that members have made "
                "shows it)"
            )
        return f"{grant}; or give the members credentials that have it. All members of a group need the same rights"


def describe_acl(acl: tuple[Acl, ...]) -> str:
    """Return an ACL as ZooKeeper's own shell writes it, without hashes of passwords."""
    return ",".join(map(str, acl)) or "empty"


@dataclass(frozen=True, slots=True)
class _Found:
    """A node that exists; ``acl`` is None if it may not be read."""

    acl: tuple[Acl, ...] | None


class SessionRights:
    """Tests which rights ACLs give to this client, and remembers the results."""

    def __init__(self, zk: ZkClient) -> None:
        self._zk = zk
        self._proven: dict[tuple[tuple[Acl, ...], Right], bool] = {}
        # topics share the folders above theirs
        self._read = SharedReads[str, _Found | None](self._read_node)

    async def find_denial(self, path: str, *rights: Right) -> Denial | None:
        """Return the first of ``rights`` that a znode's ACL denies this client, or None.

        Raises NoNode, CoordinationError.
        """
        found = await self._read(path)
        if found is None:
            raise NoNode(f"{path}: there is no such node")
        return await self._judge(path, found, rights)

    async def find_denial_below(self, folder: str, *rights: Right) -> Denial | None:
        """Return a right that this client lacks to use nodes in a folder, or None.

        If the folder exists, this is the first of ``rights`` that its ACL denies. If not, the nearest existing ancestor
        must give CREATE, so that the folder can be created; a Denial of CREATE is returned otherwise. Raises
        CoordinationError.
        """
        names = folder.strip("/").split("/")
        ancestors = ["/" + "/".join(names[:depth]) for depth in range(len(names), 0, -1)]
        found = await map_bounded([*ancestors, "/"], self._read)
        for path, acl in found.items():
            if acl is not None:
                # a folder that we create gets our ACL, so only its creation can be denied
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
    """Describe the cause of a refused request: the node, its ACL, our identity.

    Raises nothing.

    Args:
        path: Znode of the refused request.
        right: Permission that the request needs.
    """
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
