# SPDX-License-Identifier: Apache-2.0
"""Our identity at brokers as ACLs name it, and advice for missing rights.

Pure. Sources: Kafka documentation, "Authorization and ACLs" (operations, resources, options of ``kafka-acls``);
``SaslServerAuthenticator`` and ``KerberosShortNamer`` for the names of principals.
"""

from __future__ import annotations

import enum
import shlex
from dataclasses import dataclass
from typing import Final


class Resource(enum.Enum):
    """Kind of resource in an ACL; the value is the option of ``kafka-acls`` for it."""

    TOPIC = "--topic"
    GROUP = "--group"
    CLUSTER = "--cluster"


_LABELS: Final = {Resource.TOPIC: "Topic:{}", Resource.GROUP: "Group:{}", Resource.CLUSTER: "Cluster:kafka-cluster"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Identity of this process at brokers.

    Attributes:
        name: Name in ACLs, such as ``User:lake``; empty if it is unknown.
        words: Further description, such as the file of the client certificate; empty for none.
        reach: Options by which ``kafka-acls`` reaches the cluster; empty if unknown.
    """

    name: str = ""
    words: str = ""
    reach: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.name and self.words:
            return f"{self.name} ({self.words})"
        return self.name or self.words or "our principal"

    def advise(self, operation: str, resource: Resource, name: str = "") -> str:
        """Return the advice to allow an operation.

        It has the command that does so, if our name is known.

        Example: "allow `Read` on `Topic:orders` for User:lake: `kafka-acls --authorizer-properties
        zookeeper.connect=zk1:2181 --add --allow-principal User:lake --operation Read --topic orders`".

        Args:
            operation: Operation in the ACL, such as ``Read``.
            name: Name of the topic or group; empty for the cluster.
        """
        advice = f"allow `{operation}` on `{_LABELS[resource].format(name)}` for {self}"
        if not self.name or not self.reach:
            return advice
        words = ["kafka-acls", *self.reach, "--add", "--allow-principal", self.name, "--operation", operation]
        words.append(resource.value)
        if name:
            words.append(name)
        return f"{advice}: `{shlex.join(words)}`"


OUR_PRINCIPAL: Final = Principal()
"""Principal of a process that does not know its own."""


def short_name(principal: str) -> str:
    """Return the user's name of a Kerberos principal by the default rule of Kafka.

    It is the first part: ``lake`` of ``lake@EXAMPLE.COM`` and of ``lake/host@EXAMPLE.COM``. Brokers with other rules
    (``sasl.kerberos.principal.to.local.rules``) may have another name.
    """
    return principal.partition("@")[0].partition("/")[0]
