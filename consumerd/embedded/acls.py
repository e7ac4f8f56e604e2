# SPDX-License-Identifier: Apache-2.0
"""ACLs of the embedded broker, as rules in a file.

The file is read again when it has changed.

A rule is a line; ``#`` begins a comment. What no rule allows is denied, as with ``SimpleAclAuthorizer`` of Kafka 1.1::

    allow User:lake Read Topic:orders
    allow User:lake Read Group:lake
    allow User:* Describe Topic:*

Operations: ``Read``, ``Write``, ``Create``, ``Delete``, ``Alter``, ``Describe``, ``DescribeConfigs``,
``ClusterAction``, ``IdempotentWrite``, ``All``. ``Read``, ``Write``, ``Delete`` and ``Alter`` imply ``Describe``.
Resources: ``Topic``, ``Group``, ``TransactionalId`` with a name or ``*``, and ``Cluster:kafka-cluster``. ``allow
User:admin All *`` allows everything on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from consumerd.errors import ConfigError

ANY: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
OPERATIONS: Final = frozenset(
    {
        "Read",
        "Write",
        "Create",
        "Delete",
        "Alter",
        "Describe",
        "DescribeConfigs",
        "ClusterAction",
        "IdempotentWrite",
        "All",
    }
)
RESOURCES: Final = frozenset({"Topic", "Group", "TransactionalId", "Cluster"})
_IMPLYING_DESCRIBE: Final = frozenset({"Read", "Write", "Delete", "Alter"})
_WORDS: Final = 4

_log = structlog.get_logger(__name__)

Allows = Callable[[str, str, str, str], bool]
"""Function that returns True if a principal may do an operation on a resource of this kind and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRule:
    """One rule, which allows an operation.

    ``principal``, ``kind`` and ``name`` are ``*`` for all; a rule for all kinds is for all names.
    """

    principal: str
    operation: str
    kind: str
    name: str

    def allows(self, principal: str, operation: str, kind: str, name: str) -> bool:
        """Return True if the rule allows this."""
        return (
            self.principal in (principal, "User:*")
            and self.kind in (kind, ANY)
            and self.name in (name, ANY)
            and self._covers(operation)
        )

    def _covers(self, operation: str) -> bool:
        implied = operation == "Describe" and self.operation in _IMPLYING_DESCRIBE
        return implied or self.operation in (operation, "All")


def parse_rules(text: str, place: str) -> tuple[AclRule, ...]:
    """Read the rules of a file. Raises ConfigError that names the line.

    Args:
        place: Name of the file, for the error.
    """
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            try:
                rules.append(_parse_rule(words))
            except ValueError as error:
                raise ConfigError(f"{place}, line {number}: {error}") from error
    return tuple(rules)


def _parse_rule(words: list[str]) -> AclRule:
    if len(words) != _WORDS or words[0] != "allow":
        raise ValueError(f"expected `allow User:NAME OPERATION RESOURCE:NAME`, got {' '.join(words)!r}")
    _, principal, operation, resource = words
    if not principal.startswith("User:"):
        raise ValueError(f"expected a principal such as User:lake, got {principal!r}")
    if operation not in OPERATIONS:
        raise ValueError(f"expected an operation of {', '.join(sorted(OPERATIONS))}, got {operation!r}")
    if resource == ANY:
        return AclRule(principal=principal, operation=operation, kind=ANY, name=ANY)
    kind, _, name = resource.partition(":")
    if kind not in RESOURCES or not name:
        raise ValueError(
            f"expected a resource such as Topic:orders, Group:* or Cluster:{CLUSTER_NAME}, got {resource!r}"
        )
    return AclRule(principal=principal, operation=operation, kind=kind, name=name)


class AclFile:
    """The rules in a file, which is looked at anew for each request.

    A file that has become unreadable or wrong keeps its former rules, and is told in the log. Raises ConfigError if it
    is so at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()
        self._rules = parse_rules(self._read(), str(path))

    def allows(self, principal: str, operation: str, kind: str, name: str) -> bool:
        """Return True if a rule allows it."""
        self._refresh()
        return any(rule.allows(principal, operation, kind, name) for rule in self._rules)

    def _refresh(self) -> None:
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._rules = parse_rules(self._read(), str(self._path))
        except ConfigError as error:
            _log.error("acls_unreadable", error=str(error))
            return
        _log.info("acls_read", path=str(self._path), rules=len(self._rules))

    def _read(self) -> str:
        try:
            return self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"acls: {self._path} cannot be read: {error}") from error

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns
