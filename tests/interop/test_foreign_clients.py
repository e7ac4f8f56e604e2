# SPDX-License-Identifier: Apache-2.0
"""The clients' script on real Kafka, and on the embedded broker with the Java clients among them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.conftest import ClusterFactory, require
from tests.support.foreign.answers import (
    CLIENTS,
    OF_0_8,
    RELEASE,
    column,
    differences,
    documented,
    recorded,
    staged,
    staged_on_embedded,
    without_allowed,
)
from tests.support.foreign.script import Script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.drawn(parts=3)]


@pytest.fixture(scope="module")
def on_real(shared_clusters: ClusterFactory) -> Iterator[Script]:
    """All clients on a real broker, after each has written."""
    require("0.8.2.2")
    cluster = shared_clusters(RELEASE)
    with staged(CLIENTS, cluster.bootstrap, cluster.zookeeper) as script:
        yield script


@pytest.fixture(scope="module")
def on_embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    """All clients on an embedded broker that passes for 1.1."""
    for release in (RELEASE, "0.8.2.2"):
        require(release)
    with staged_on_embedded(list(CLIENTS), tmp_path_factory.mktemp("foreign") / "embedded") as script:
        yield script


@pytest.fixture(scope="module")
def on_embedded_0_8(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    """The clients of 0.8.2.2 on an embedded broker that passes for one of theirs."""
    require("0.8.2.2")
    with staged_on_embedded(sorted(OF_0_8), tmp_path_factory.mktemp("foreign") / "embedded") as script:
        yield script


@pytest.mark.parametrize("name", CLIENTS)
def test_real_kafka_answers_as_recorded(name: str, on_real: Script) -> None:
    """A recording that nobody can repeat would be an opinion."""
    assert differences(recorded()[name], on_real.run(name)) == []


@pytest.mark.parametrize("name", CLIENTS)
def test_the_embedded_broker_answers_as_real_kafka(name: str, on_embedded: Script) -> None:
    """Every client, and every client's records."""
    actual = on_embedded.run(name)
    expected = recorded()[name]

    assert without_allowed(differences(expected, actual)) == []
    if name not in OF_0_8:
        assert documented()[name] == column(expected, actual)


@pytest.mark.parametrize("name", sorted(OF_0_8))
def test_as_0_8_2_it_answers_its_clients_as_real_kafka(name: str, on_embedded_0_8: Script) -> None:
    """They cannot tell a broker of 0.8.2 from one of 1.1."""
    actual = on_embedded_0_8.run(name)
    expected = recorded()[name]

    assert without_allowed(differences(expected, actual)) == []
    assert documented()[name] == column(expected, actual)
