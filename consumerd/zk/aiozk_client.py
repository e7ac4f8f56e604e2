# SPDX-License-Identifier: Apache-2.0
"""The ZooKeeper client: :class:`~consumerd.zk.port.ZkClient` over the protocol classes of aiozk.

No other module imports aiozk. This module uses only aiozk's classes that serialize requests and parse responses, which
work correctly. Aiozk's session, connection, retries, recipes and transactions are not used: they lose track of
sessions, wait without bound, send writes again and miss the end of a connection. ``zk.session`` and ``zk.watch`` do
that work instead. Some of the classes used are not public in aiozk, so exactly one release of aiozk is accepted.
Importing this module fails with any other release.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import ssl
import struct
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self, cast

from aiozk import exc, protocol
from aiozk.protocol.acl import ACL, ID
from aiozk.protocol.primitives import Buffer, Int
from aiozk.protocol.request import Request
from aiozk.protocol.transaction import MultiHeader

from consumerd.aio.parallel import map_bounded
from consumerd.errors import ConfigError, CoordinationError
from consumerd.model import SessionEpoch
from consumerd.telemetry.hooks import Hooks
from consumerd.zk.authentication import SaslTokens
from consumerd.zk.connect_string import parse_connect_string
from consumerd.zk.connection import RequestTooLarge, ZkReply, ZkRequest
from consumerd.zk.node_acl import AclProfile, choose_acl
from consumerd.zk.port import (
    ANY_VERSION,
    Acl,
    BadVersion,
    CheckVersion,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    NotPermitted,
    Operation,
    RequestRefused,
    Right,
    SessionState,
    SetData,
    Stat,
    Watch,
    WatchKind,
)
from consumerd.zk.session import ZkSession
from consumerd.zk.session_codec import Credential, Identity, Welcome
from consumerd.zk.watch import Arming, Change

AIOZK_RELEASE: Final = "0.32.0"

if (_installed := importlib.metadata.version("aiozk")) != AIOZK_RELEASE:
    raise ConfigError(f"needs aiozk {AIOZK_RELEASE} exactly, found {_installed}: pip install aiozk=={AIOZK_RELEASE}")

_ENSURE_ATTEMPTS: Final = 8
_ALL_ZXIDS: Final = 2**63 - 1
_NO_NODE: Final = -101
_NO_AUTH: Final = -102
_INVALID_ACL: Final = -114
_MULTI_ERROR: Final = -1
_ALL_RIGHTS: Final = 31
_ROLLED_BACK: Final = frozenset({0, -2})
"""Codes that a failed multi gives to operations that did not fail themselves.

0 is for those before the failed operation, -2 for those after it.
"""

_ERRORS: Final[dict[int, type[RequestRefused]]] = {
    _NO_NODE: NoNode,
    -103: BadVersion,
    -110: NodeExists,
    -111: NotEmpty,
}
_HINTS: Final = {
    -8: " (ZooKeeper takes no such path: no characters beyond the basic plane, no control characters)",
    _NO_AUTH: " (no permission: check the node's ACL, and cluster.zookeeper_sasl or zookeeper_auth)",
    _INVALID_ACL: " (this connection has no identity that cluster.zookeeper_acl could give the node to)",
    -108: " (an ephemeral node has no children)",
}


class AiozkClient:
    """ZooKeeper client with a session that survives lost connections; ``async with`` keeps it alive.

    Entering the ``async with`` block starts to connect and returns at once. :meth:`wait_connected` waits for the
    connection, and so does each call. Leaving the block closes the session, so that its ephemeral nodes are deleted at
    once. If there is no connection then, the session is left to expire.

    Args:
        now: Clock in seconds by which the lease is measured. It should also count while the machine is suspended
            (``aio.clock.boottime``).
        auth: Scheme and credential (``("digest", b"user:password")``), sent on every connection; None sends none.
        sasl: Authenticates every connection by SASL; None for none.
        tls: TLS to the servers; None for plain text.
        acl: ACLs of the nodes that are created.
        call_timeout_s: Longest wait of each call, in seconds; the session timeout by default.
    """

    def __init__(
        self,
        connect_string: str,
        *,
        session_timeout_s: float,
        now: Callable[[], float],
        random: Callable[[], float],
        auth: tuple[str, bytes] | None = None,
        sasl: SaslTokens | None = None,
        tls: ssl.SSLContext | None = None,
        acl: AclProfile = AclProfile.OPEN,
        call_timeout_s: float | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        if acl is not AclProfile.OPEN and auth is None and sasl is None and tls is None:
            raise ConfigError(
                f"cluster.zookeeper_acl: {acl.value} gives nodes to our identity, and there is none: set "
                "cluster.zookeeper_sasl, or write open"
            )
        self.address: Final = parse_connect_string(connect_string)
        """Servers and chroot of the connect string."""
        names = [] if sasl is None else [sasl.identity]
        names += [] if auth is None else [f"{auth[0]}:{_name_of(auth[1])}"]
        self.identity: Final = " and ".join(names) or "world:anyone"
        self._acl = acl
        self._session = ZkSession(
            self.address.servers,
            AiozkCodec(self.address.chroot or "/"),
            timeout_s=session_timeout_s,
            call_timeout_s=session_timeout_s if call_timeout_s is None else call_timeout_s,
            now=now,
            random=random,
            credentials=() if auth is None else (Credential(*auth),),
            sasl=sasl,
            tls=tls,
            hooks=hooks,
        )
        self._tasks = asyncio.TaskGroup()
        self._runner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._runner = self._tasks.create_task(self._session.run(), name="zookeeper-session")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._session.close()
        finally:
            assert self._runner is not None
            self._runner.cancel()
            # the block's own exception must not end up in an ExceptionGroup; the task group needs only cancellations
            cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
            await self._tasks.__aexit__(*((kind, error, traceback) if cancelled else (None, None, None)))

    async def wait_connected(self, *, patient: bool = False) -> None:
        """Wait until there is a connection to a ZooKeeper server. No timeout; safe to cancel.

        Returns at once if the client is connected. Raises ChrootMissing if the chroot does not exist; other methods may
        still be called then, and find no nodes. Raises IdentityRefused if our identity is refused.

        Args:
            patient: True to wait while servers refuse our identity. It is tried again, and may be mended meanwhile.
        """
        await self._session.wait_connected(patient=patient)

    @property
    def why_away(self) -> str:
        """Reasons for which no server could be used last; empty while connected."""
        return self._session.why_away

    def abandon(self) -> None:
        """Close the connection and never connect again; the server ends the session when it expires."""
        self._session.abandon()

    # -- ZkClient; each method does what the port says

    @property
    def state(self) -> SessionState:  # noqa: D102
        return self._session.state

    async def wait_state(self, seen: SessionState) -> SessionState:  # noqa: D102
        return await self._session.wait_state(seen)

    async def get(self, path: str) -> tuple[bytes, Stat]:  # noqa: D102
        what = f"get {path}"
        reply = await self._read(protocol.GetDataRequest(path=self._full(path), watch=False), what)
        response = _decode(protocol.GetDataResponse, reply, what)
        return response.data or b"", _stat(response.stat)

    async def find(self, path: str) -> tuple[bytes, Stat] | None:  # noqa: D102
        try:
            return await self.get(path)
        except NoNode:
            return None

    async def exists(self, path: str) -> Stat | None:  # noqa: D102
        what = f"exists {path}"
        try:
            reply = await self._read(protocol.ExistsRequest(path=self._full(path), watch=False), what)
        except NoNode:
            return None
        return _stat(_decode(protocol.ExistsResponse, reply, what).stat)

    async def children(self, path: str) -> tuple[list[str], Stat]:  # noqa: D102
        what = f"children of {path}"
        reply = await self._read(protocol.GetChildren2Request(path=self._full(path), watch=False), what)
        response = _decode(protocol.GetChildren2Response, reply, what)
        if None in response.children:
            raise CoordinationError(f"{what}: a name is null")
        return sorted(response.children), _stat(response.stat)

    async def get_acl(self, path: str) -> tuple[Acl, ...]:  # noqa: D102
        what = f"get the ACL of {path}"
        reply = await self._read(protocol.GetACLRequest(path=self._full(path)), what)
        response = _decode(protocol.GetACLResponse, reply, what)
        return tuple(Acl(one.id.scheme or "", one.id.id or "", Right(one.perms & _ALL_RIGHTS)) for one in response.acl)

    async def create(  # noqa: D102
        self, path: str, data: bytes, *, ephemeral: bool = False, epoch: SessionEpoch | None = None
    ) -> None:
        await self._write(self._request(Create(path, data, ephemeral)), f"create {path}", epoch)

    async def set(  # noqa: D102
        self, path: str, data: bytes, *, version: int = ANY_VERSION, epoch: SessionEpoch | None = None
    ) -> Stat:
        what = f"set {path}"
        reply = await self._write(self._request(SetData(path, data, version)), what, epoch)
        return _stat(_decode(protocol.SetDataResponse, reply, what).stat)

    async def delete(  # noqa: D102
        self, path: str, *, version: int = ANY_VERSION, epoch: SessionEpoch | None = None
    ) -> None:
        await self._write(self._request(Delete(path, version)), f"delete {path}", epoch)

    async def multi(  # noqa: D102
        self, operations: Sequence[Operation], *, epoch: SessionEpoch | None = None
    ) -> list[Stat | None]:
        if not operations:
            return []
        what = f"multi of {len(operations)} operations on {operations[0].path}, ..."
        request = protocol.TransactionRequest()
        for operation in operations:
            request.add(self._request(operation))
        reply = await self._write(request, what, epoch)
        results = _decode(_MultiResponse, reply, what).results
        if len(results) != len(operations):
            raise CoordinationError(f"{what}: expected as many results, got {len(results)}")
        codes = [result if isinstance(result, int) else 0 for result in results]
        for index, code in enumerate(codes):
            if code not in _ROLLED_BACK:
                operation = operations[index]
                raise MultiFailed(index, _error(code, f"{type(operation).__name__} {operation.path}"))
        if any(isinstance(result, int) for result in results):
            raise RequestRefused(f"{what}: rolled back, the server does not say why")
        return [_stat(result.stat) if isinstance(result, protocol.SetDataResponse) else None for result in results]

    async def ensure_path(self, path: str, data: bytes = b"") -> None:  # noqa: D102
        # two round trips at any depth: one for all stats, and one transaction to create what is missing
        names = path.strip("/").split("/") if path != "/" else []
        ancestors = ["/" + "/".join(names[:depth]) for depth in range(1, len(names) + 1)]
        for left in reversed(range(_ENSURE_ATTEMPTS)):
            stats = await map_bounded(ancestors, self.exists)
            missing = [ancestor for ancestor, stat in stats.items() if stat is None]
            if not missing or stats[path] is not None:
                return
            try:
                await self.multi([Create(one, data if one == path else b"") for one in missing])
            except MultiFailed as error:
                if not left or not isinstance(error.cause, NodeExists | NoNode):
                    raise error.cause from error
            else:
                return

    def watch(self, path: str, kind: WatchKind, dirty: Callable[[], None]) -> Watch:  # noqa: D102
        return self._session.watches.add(self._full(path), kind, dirty)

    # -- how

    def _full(self, path: str) -> str:
        if not path.startswith("/") or (path != "/" and path.endswith("/")):
            raise ValueError(f"path {path!r}: expected /, or a path that begins with / and does not end with it")
        return self.address.chroot + path if path != "/" else self.address.chroot or "/"

    def _request(self, operation: Operation) -> ZkRequest:
        request: ZkRequest
        match operation:
            case Create(path, data, ephemeral):
                flags = protocol.CreateRequest.EPHEMERAL_FLAG if ephemeral else 0
                acl = [_make_acl(one) for one in choose_acl(self._acl, path)]
                request = protocol.CreateRequest(path=self._full(path), data=data, acl=acl, flags=flags)
            case SetData(path, data, version):
                request = protocol.SetDataRequest(path=self._full(path), data=data, version=version)
            case Delete(path, version):
                request = protocol.DeleteRequest(path=self._full(path), version=version)
            case CheckVersion(path, version):
                request = protocol.CheckVersionRequest(path=self._full(path), version=version)
        return request

    async def _read(self, request: ZkRequest, what: str) -> ZkReply:
        return _checked(await self._session.read(request, what), what)

    async def _write(self, request: ZkRequest, what: str, epoch: SessionEpoch | None) -> ZkReply:
        try:
            return _checked(await self._session.write(request, what, epoch), what)
        except RequestTooLarge as error:
            raise RequestTooLarge(f"{what}: {error}") from None


class AiozkCodec:
    """Encodes and decodes the requests that a session sends by itself, with aiozk's classes.

    These requests are connect, authenticate, probe, set watches, close, and the check of the chroot. Requests of
    callers, such as reads and writes, do not pass through this class. It implements
    :class:`~consumerd.zk.session.SessionCodec`.
    """

    def __init__(self, root: str) -> None:
        self.root_path: Final = root

    def connect(self, identity: Identity, *, timeout_s: float, last_zxid: int) -> bytes:  # noqa: D102
        return cast(
            "bytes",
            protocol.ConnectRequest(
                protocol_version=0,
                last_seen_zxid=last_zxid,
                timeout=round(timeout_s * 1000),
                session_id=identity.session_id,
                password=identity.password,
                read_only=False,
            ).serialize(),
        )

    def read_welcome(self, frame: bytes) -> Welcome:  # noqa: D102
        response = _parse(protocol.ConnectResponse, frame)
        return Welcome(Identity(response.session_id, response.password or b""), response.timeout / 1000)

    def authenticate(self, credential: Credential) -> ZkRequest:  # noqa: D102
        return cast("ZkRequest", protocol.AuthRequest(type=0, scheme=credential.scheme, auth=credential.value))

    def sasl(self, token: bytes) -> ZkRequest:  # noqa: D102
        return cast("ZkRequest", _SaslRequest(token=token))

    def read_sasl(self, body: bytes) -> bytes | None:  # noqa: D102
        try:
            token, _ = Buffer.parse(body, 0)
        except (struct.error, IndexError) as error:
            raise ValueError(f"{len(body)} bytes are no answer to a token: {error}") from error
        return cast("bytes | None", token)

    def root(self) -> ZkRequest:  # noqa: D102
        return cast("ZkRequest", protocol.ExistsRequest(path=self.root_path, watch=False))

    def probe(self) -> ZkRequest:  # noqa: D102
        return cast("ZkRequest", protocol.SyncRequest(path=self.root_path))

    def arm(self, arming: Arming) -> ZkRequest:  # noqa: D102
        return cast(
            "ZkRequest",
            protocol.SetWatchesRequest(
                relative_zxid=_ALL_ZXIDS,
                data_watches=arming.data,
                exist_watches=arming.exist,
                child_watches=arming.children,
            ),
        )

    def close(self) -> ZkRequest:  # noqa: D102
        return cast("ZkRequest", protocol.CloseRequest())

    def read_change(self, body: bytes) -> tuple[Change, str] | None:  # noqa: D102
        event = _parse(protocol.WatchEvent, body)
        # events of other types are about the session, and no server sends them
        return (Change(event.type), event.path) if event.type in {change.value for change in Change} else None


class _SaslRequest(Request):  # type: ignore[misc]  # aiozk's classes carry no types
    """A token of a SASL authentication; aiozk's own class cannot be serialised."""

    opcode = 102
    parts = (("token", Buffer),)


class _MultiResponse:
    """Results of a multi: a response, or an error code, for each operation.

    aiozk's own class prints error codes that it does not know on the standard output, which belongs to a sink.
    """

    def __init__(self, results: list[object]) -> None:
        self.results = results

    @classmethod
    def deserialize(cls, body: bytes) -> Self:
        results: list[object] = []
        header, offset = MultiHeader.parse(body, 0)
        while not header.done:
            kind = Int if header.type == _MULTI_ERROR else protocol.response_xref[header.type]
            result, offset = kind.parse(body, offset)
            results.append(result)
            header, offset = MultiHeader.parse(body, offset)
        return cls(results)


def _parse(kind: Any, body: bytes) -> Any:  # aiozk's classes carry no types
    """Deserialise a body. Raises ValueError if it is malformed."""
    try:
        return kind.deserialize(body)
    except (struct.error, IndexError, KeyError) as error:
        raise ValueError(f"{len(body)} bytes are no {kind.__name__}: {error}") from error


def _decode(kind: Any, reply: ZkReply, what: str) -> Any:
    try:
        return _parse(kind, reply.body)
    except ValueError as error:
        raise CoordinationError(f"{what}: {error}") from error


def _checked(reply: ZkReply, what: str) -> ZkReply:
    if reply.error:
        raise _error(reply.error, what)
    return reply


def _name_of(credential: bytes) -> str:
    """Return the user of ``user:password``; anything else may be secret as a whole."""
    name, separator, _ = credential.partition(b":")
    return name.decode(errors="replace") if separator else "(unnamed)"


def _error(code: int, what: str) -> RequestRefused:
    if code == _NO_AUTH:
        # every request is named "<verb> ... <path>"
        return NotPermitted(f"{what}: NoAuth {code}{_HINTS[code]}", what.rpartition(" ")[2])
    known = exc.response_error_xref.get(code)
    name = "unknown error" if known is None else known.__name__
    return _ERRORS.get(code, RequestRefused)(f"{what}: {name} {code}{_HINTS.get(code, '')}")


def _make_acl(one: Acl) -> Any:
    return ACL(perms=int(one.rights), id=ID(scheme=one.scheme, id=one.id))


def _stat(stat: Any) -> Stat:
    return Stat(
        czxid=stat.created_zxid,
        mzxid=stat.last_modified_zxid,
        pzxid=stat.last_modified_children,
        ctime_ms=stat.created,
        mtime_ms=stat.modified,
        version=stat.version,
        cversion=stat.child_version,
        ephemeral_owner=stat.ephemeral_owner,
        data_length=stat.data_length,
        num_children=stat.num_children,
    )
