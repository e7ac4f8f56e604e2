# SPDX-License-Identifier: Apache-2.0
"""Frames of a ZooKeeper session: their values, and the interface that encodes and decodes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from consumerd.zk.connection import ZkRequest
from consumerd.zk.watch import Arming, Change


@dataclass(frozen=True, slots=True)
class Credential:
    """Credential of a ZooKeeper session, sent on every connection.

    ``scheme`` is ZooKeeper's name of the method of authentication. For ``digest`` the value is ``user:password``.
    """

    scheme: str
    value: bytes

    def __repr__(self) -> str:
        return f"Credential(scheme={self.scheme!r}, value=...)"


@dataclass(frozen=True, slots=True)
class Identity:
    """Id and password of a ZooKeeper session; id 0 asks for a new session."""

    session_id: int = 0
    password: bytes = bytes(16)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The ZooKeeper server's answer to the request to connect.

    Session id 0 says that the session to be continued is over. ``timeout_s`` is the session timeout, in seconds, that
    the server has chosen.
    """

    identity: Identity
    timeout_s: float


class SessionCodec(Protocol):
    """Interface that encodes and decodes the frames of a ZooKeeper session.

    The methods ``read_...`` raise ValueError for malformed bytes.
    """

    @property
    def root_path(self) -> str:
        """Path of our part of ZooKeeper's tree: the chroot, or ``/`` without one."""

    def connect(self, identity: Identity, *, timeout_s: float, last_zxid: int) -> bytes:
        """Return the first frame of a connection, which continues or begins a session.

        Args:
            identity: Session to continue; id 0 asks for a new one.
            timeout_s: Session timeout to ask for, in seconds.
            last_zxid: Newest transaction id that this client has seen in a response.
        """

    def read_welcome(self, frame: bytes) -> Welcome:
        """Parse the server's first frame on a connection, its answer to the request to connect."""

    def authenticate(self, credential: Credential) -> ZkRequest:
        """Return the request that authenticates a connection with a credential."""

    def sasl(self, token: bytes) -> ZkRequest:
        """Return the request with a token of a SASL authentication."""

    def read_sasl(self, body: bytes) -> bytes | None:
        """Parse the answer to a token: the server's token, or None for its null."""

    def root(self) -> ZkRequest:
        """Return the request that asks if the chroot (or ``/``) exists."""

    def probe(self) -> ZkRequest:
        """Return a cheap request that only the ensemble's leader can answer: ``sync``."""

    def arm(self, arming: Arming) -> ZkRequest:
        """Return the SetWatches request that sets these watches of znodes."""

    def close(self) -> ZkRequest:
        """Return the request that ends the session."""

    def read_change(self, body: bytes) -> tuple[Change, str] | None:
        """Parse a watch event; return the kind of change and the znode's path.

        Returns None for an event about the session instead of a node.
        """
