# SPDX-License-Identifier: Apache-2.0
"""What is said of a right that is missing: the node, its ACL, who we are, and the command that mends it."""

from __future__ import annotations

import pytest

from consumerd.zk.port import Acl, Right
from consumerd.zk.rights import Denial

ALL = Right.READ | Right.WRITE | Right.CREATE | Right.DELETE | Right.ADMIN
EVERYBODY_READS = Acl("world", "anyone", Right.READ)
KAFKA = Acl("sasl", "kafka", ALL)
BOB = Acl("sasl", "bob", Right.READ)
DIGEST = Acl("digest", "ann:hash", ALL)
OWNERS = "/consumers/g/owners/t"


def denial(path: str, identity: str, acl: tuple[Acl, ...] | None) -> Denial:
    return Denial(path=path, right=Right.CREATE, acl=acl, identity=identity)


@pytest.mark.parametrize(
    ("acl", "identity", "command"),
    [
        ((KAFKA, EVERYBODY_READS), "sasl:bob", "setAcl {} sasl:kafka:cdrwa,world:anyone:r,sasl:bob:cdrwa"),
        ((KAFKA, BOB), "sasl:bob", "setAcl {} sasl:kafka:cdrwa,sasl:bob:cdrwa"),
        ((KAFKA, EVERYBODY_READS), "world:anyone", "setAcl {} world:anyone:cdrwa"),
        ((DIGEST,), "sasl:bob", None),
        ((KAFKA,), "digest:ann", None),
        ((KAFKA,), "sasl:bob and digest:ann", None),
        (None, "sasl:bob", None),
    ],
)
def test_command_adds_us_to_those_who_have_the_right(
    acl: tuple[Acl, ...] | None, identity: str, command: str | None
) -> None:
    """An ACL is replaced as a whole; one that is not known whole is not printed."""
    found = denial(OWNERS, identity, acl)

    assert found.command() == (None if command is None else command.format(OWNERS))
    assert found.advise().startswith(
        "as its owner: setAcl " if command else "grant the right with setAcl as the node's"
    )


def test_names_of_kerberos_are_those_that_the_server_makes_of_them() -> None:
    """It may cut off host and realm, and takes an ACL with the whole name all the same."""
    assert "servers may cut host and realm off" in denial(OWNERS, "sasl:bob@R", (KAFKA,)).advise()
    assert "servers may cut" not in denial(OWNERS, "sasl:bob", (KAFKA,)).advise()


def test_closed_consumers_are_told_with_their_cause() -> None:
    """Brokers of one release close them; and only the brokers' user can open them."""
    closed = denial("/consumers", "sasl:bob", (KAFKA, EVERYBODY_READS))

    assert closed.command() == "setAcl /consumers world:anyone:cdrwa"
    for part in (
        "/consumers: no permission to create nodes below it: its ACL is sasl:kafka:cdrwa,world:anyone:r",
        "our identity is sasl:bob",
        "brokers of Kafka 1.1 with zookeeper.set.acl=true",
        "setAcl /consumers world:anyone:cdrwa",
    ):
        assert part in str(closed)
