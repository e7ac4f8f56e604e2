# SPDX-License-Identifier: Apache-2.0
"""The generation of a cluster, found from the brokers registered in ZooKeeper.

Kafka 0.6/0.7 and Kafka 0.8+ keep groups, owners and positions under the same paths in different formats. A member of
one generation that registers in a group of the other stops every rebalance of that group, since no member can read all
registrations. So the generation is determined before anything is written, from ``/brokers/ids/*``, where each broker is
registered in the format of its generation. Topics are less reliable: their nodes outlive the brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.aio.parallel import map_bounded
from consumerd.errors import UnsupportedGeneration
from consumerd.model import Generation
from consumerd.telemetry.wording import join_shown
from consumerd.zk.layout import BROKER_IDS, broker_path
from consumerd.zk.listing import list_names
from consumerd.zk.port import ZkClient
from consumerd.zk.znodes import MalformedZnode, find_broker_id, find_generation

_SHOWN: Final = 3
_LONGEST_QUOTE: Final = 80
"""Characters of a registration that a message quotes, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredBrokers:
    """Registrations under ``/brokers/ids`` by generation: paths, with their content."""

    modern: frozenset[str] = frozenset()
    legacy: Mapping[str, str] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Registrations of neither generation, each with its fault."""

    @property
    def generation(self) -> Generation | None:
        """The cluster's generation; None while no readable broker is registered.

        One legacy registration makes the cluster legacy: two generations under one chroot are a mistake in the settings
        of some broker, and a group there may be of either one.
        """
        if self.legacy:
            return Generation.LEGACY
        return Generation.MODERN if self.modern else None

    def require_modern(self, address: str, *, trusted: bool = False) -> None:
        """Raise UnsupportedGeneration for a cluster with brokers of 0.6 or 0.7.

        Args:
            address: The connect string, for the message.
            trusted: The settings say that the cluster is modern: legacy brokers beside modern ones are ignored.
        """
        if not self.legacy or (trusted and self.modern):
            return
        seen = join_shown([f"{path} holds {text!r}" for path, text in sorted(self.legacy.items())], _SHOWN)
        beside = ""
        if self.modern:
            beside = f" Brokers of 0.8 or later are registered beside them ({join_shown(sorted(self.modern), _SHOWN)})."
        raise UnsupportedGeneration(
            f"cluster.zookeeper: brokers of Kafka 0.6 or 0.7 are registered at {address}: {seen}.{beside} consumerd "
            "reads brokers of 0.8 and later only, and has written nothing there: a registration of ours would stop the "
            "rebalances of the groups' Java members. Name the ZooKeeper (and chroot) of a cluster of 0.8 or later. "
            "Where both generations share a chroot and this group has no member of 0.7, set cluster.generation to "
            "modern"
        )


async def read_registered_brokers(zk: ZkClient) -> RegisteredBrokers:
    """Read all broker registrations, by generation. Raises CoordinationError."""
    ids = [broker for name in await list_names(zk, BROKER_IDS) if (broker := find_broker_id(name)) is not None]
    nodes = await map_bounded(sorted(map(broker_path, ids)), zk.find)
    modern: set[str] = set()
    legacy: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    for path, node in nodes.items():
        if node is None:
            continue  # it left meanwhile
        try:
            generation = find_generation(node[0])
        except MalformedZnode as error:
            unreadable[path] = str(error)
            continue
        if generation is Generation.LEGACY:
            legacy[path] = node[0].decode()[:_LONGEST_QUOTE]
        else:
            modern.add(path)
    return RegisteredBrokers(modern=frozenset(modern), legacy=legacy, unreadable=unreadable)


async def require_modern(zk: ZkClient, address: str, *, trusted: bool = False) -> None:
    """Check the generation before anything is read by modern rules.

    Raises UnsupportedGeneration, CoordinationError.
    """
    (await read_registered_brokers(zk)).require_modern(address, trusted=trusted)
