# SPDX-License-Identifier: Apache-2.0
"""Our identity as ACLs name it, and the command that gives it a right."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import trustme

from consumerd.access.address import ClusterAddress, TlsFiles
from consumerd.access.principal import OUR_PRINCIPAL, Principal, Resource, short_name
from consumerd.access.sasl_login import SaslLogin

LAKE = SaslLogin(mechanism="SCRAM-SHA-256", username="lake", password="p")


@pytest.mark.parametrize(
    ("resource", "name", "shown", "option"),
    [
        (Resource.TOPIC, "orders", "`Read` on `Topic:orders`", ["--topic", "orders"]),
        (Resource.GROUP, "the lake's", "`Read` on `Group:the lake's`", ["--group", "the lake's"]),
        (Resource.CLUSTER, "", "`Read` on `Cluster:kafka-cluster`", ["--cluster"]),
    ],
)
def test_advice_has_the_command_that_gives_the_right(
    resource: Resource, name: str, shown: str, option: list[str]
) -> None:
    """Its words survive a shell."""
    principal = ClusterAddress(zookeeper="zk1:2181/kafka", client_id="c", sasl=LAKE).principal

    advice = principal.advise("Read", resource, name)

    assert advice.startswith(f"allow {shown} for User:lake: `kafka-acls ")
    words = shlex.split(advice.partition(": `")[2].removesuffix("`"))
    reach = ["--authorizer-properties", "zookeeper.connect=zk1:2181/kafka"]
    allow = ["--add", "--allow-principal", "User:lake", "--operation", "Read"]
    assert ["kafka-acls", *reach, *allow, *option] == words


def test_a_cluster_without_zookeeper_is_reached_by_its_brokers() -> None:
    """The tool needs credentials of an administrator there."""
    principal = ClusterAddress(bootstrap="b1:9093,b2:9093", client_id="c", sasl=LAKE).principal

    assert "--bootstrap-server b1:9093,b2:9093 --command-config admin.properties" in principal.advise(
        "Read", Resource.TOPIC, "t"
    )


@pytest.mark.parametrize(
    ("address", "shown", "name"),
    [
        (ClusterAddress(zookeeper="z:1", client_id="c"), "User:ANONYMOUS (neither", "User:ANONYMOUS"),
        (
            ClusterAddress(zookeeper="z:1", client_id="c", tls=TlsFiles(certificate=Path("/c.pem"))),
            "the subject of the certificate /c.pem",
            "",
        ),
        (ClusterAddress(zookeeper="z:1", client_id="c", sasl=LAKE), "User:lake", "User:lake"),
        (
            ClusterAddress(
                zookeeper="z:1", client_id="c", sasl=SaslLogin(mechanism="GSSAPI", principal="lake/host@EXAMPLE.COM")
            ),
            "User:lake (the Kerberos principal lake/host@EXAMPLE.COM",
            "User:lake",
        ),
        (
            ClusterAddress(zookeeper="z:1", client_id="c", sasl=SaslLogin(mechanism="GSSAPI")),
            "the Kerberos principal of the ticket cache",
            "",
        ),
    ],
)
def test_identity_is_named_as_far_as_it_is_known(address: ClusterAddress, shown: str, name: str) -> None:
    """No command with a name that we would have to guess."""
    assert str(address.principal).startswith(shown)
    assert name == address.principal.name
    assert bool(name) == ("kafka-acls" in address.principal.advise("Read", Resource.TOPIC, "t"))


def test_a_client_certificate_is_named_by_its_subject(tmp_path: Path) -> None:
    """As its broker names it, so that the command can be run as it stands."""
    issued = trustme.CA().issue_cert("lake.example", common_name="lake", organization_name="Example")
    chain = tmp_path / "client.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(chain)
    principal = ClusterAddress(zookeeper="z:1", client_id="c", tls=TlsFiles(certificate=chain)).principal
    ours = re.fullmatch(r"User:(CN=lake,(?:OU=[^,]+,)?O=Example)", principal.name)

    assert ours, principal.name
    assert f"the subject of the certificate {chain}, unless ssl.principal.mapping.rules" in principal.words
    advice = principal.advise("Read", Resource.TOPIC, "orders")
    assert ["--allow-principal", principal.name] == shlex.split(advice.partition(": `")[2].removesuffix("`"))[4:6]


def test_a_process_that_does_not_know_its_name_says_so() -> None:
    """In parts that are used without settings."""
    assert "allow `Write` on `Topic:t` for our principal" == OUR_PRINCIPAL.advise("Write", Resource.TOPIC, "t")
    assert "allow `Write` on `Topic:t` for User:a" == Principal(name="User:a").advise("Write", Resource.TOPIC, "t")


def test_short_names_follow_kafkas_default_rule() -> None:
    """The first part of the principal."""
    assert {"lake"} == {short_name(one) for one in ("lake", "lake@R", "lake/host@R")}
