# SPDX-License-Identifier: Apache-2.0
"""The landing job in every cell of the matrix: releases, mechanisms, and with or without TLS.

All of it runs with the full matrix only: each framing and each mechanism has a test of its own in ``test_sasl`` and
``test_kerberos``.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from tests.interop.conftest import Figure, SecureFactory
from tests.interop.test_sasl import acknowledged, count_of
from tests.support.daemon import Daemon, settings_for
from tests.support.foreign.aiokafka_client import AiokafkaMember
from tests.support.foreign.membership import Driven
from tests.support.kdc import Kdc
from tests.support.landing_check import check_landed_with_resent, wait_landed
from tests.support.load import SteadyLoad
from tests.support.secure_kafka import PASSWORDS, SecureCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.records, pytest.mark.timeout(300)]

CELLS = [
    ("0.9.0.1", "GSSAPI"),
    *(
        (release, mechanism)
        for release in ("0.10.2.2", "1.1.1", "2.8.2")
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
    ),
]
PARTITIONS = 3


def login_of_aiokafka(cluster: SecureCluster, mechanism: str, *, tls: bool) -> Mapping[str, Any]:
    """Return aiokafka's settings for alice; by Kerberos it uses the ticket of the system's cache."""
    login: dict[str, Any] = {
        "security_protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if tls:
        login["ssl_context"] = ssl.create_default_context(cafile=str(cluster.ca_file))
    if mechanism != "GSSAPI":
        login |= {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORDS["alice"]}
    return login


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("cell", CELLS, ids="-".join, scope="module")
def test_every_record_lands_once_though_the_broker_restarts(
    cell: tuple[str, str],
    tls: bool,
    kdc: Kdc,
    secure_clusters: SecureFactory,
    unique: Callable[[str], str],
    tmp_path: Path,
    figure: Figure,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By itself and without a rebalance; aiokafka with the same identity reads the same records beside it."""
    secured, mechanism = cell
    cluster = secure_clusters(secured, kdc)
    topic, group = unique("cell"), unique("cell")
    cluster.create_topic(topic, PARTITIONS)
    landing = tmp_path / "landing"
    settings = settings_for(
        cluster.zookeeper, group, topics=(topic,), sink={"type": "jsonl", "path": str(landing), "roll_ms": 500}
    )
    settings["cluster"] = cluster.section(mechanism, tls=tls)
    producer = cluster.ledger_producer(linger_ms="5", retry_backoff_ms="200")
    peer = None
    if secured != "0.9.0.1":  # aiokafka has no SASL for brokers before 0.10
        if mechanism == "GSSAPI":
            kdc.kinit("alice")
            for name, value in kdc.environment.items():
                monkeypatch.setenv(name, value)
        login = login_of_aiokafka(cluster, mechanism, tls=tls)
        bootstrap = cluster.sasl_bootstrap(tls=tls)
        make = partial(AiokafkaMember, bootstrap, f"{group}-peer", topic, "peer", (RangePartitionAssignor,), **login)
        peer = Driven(make)
    try:
        with Daemon(tmp_path, "member", settings, environment=kdc.environment) as member:
            with SteadyLoad(producer, {topic: PARTITIONS}, per_second=30, make_value=b"%d".__mod__) as load:
                member.wait(lambda: acknowledged(member) > 100, "records land", 90)
                rebalances = count_of(member, "consumerd_rebalances_total")
                began = time.monotonic()
                cluster.restart_broker(0)
                before = acknowledged(member)
                member.wait(lambda: acknowledged(member) > before + 100, "records land again", 90)
                figure("seconds from the end of the broker until records land", time.monotonic() - began)
                load.stop()
                ledger = producer.finish()
            wait_landed(landing, ledger)
            assert rebalances == count_of(member, "consumerd_rebalances_total")
            assert [] == member.events("authentication_refused")
            shown = member.log() + member.get("/")[1] + member.get("/api/v1/status")[1]
            assert member.terminate() == 0
        check_landed_with_resent(landing, ledger)
        assert [] == [one for one in PASSWORDS.values() if one in shown]
        if peer is not None:
            expected = {int(sent.value or b"") for sent in ledger.values()}
            wait_until(lambda: set(peer.numbers) == expected, "aiokafka has read the same", 90)
    finally:
        if peer is not None:
            peer.leave()
