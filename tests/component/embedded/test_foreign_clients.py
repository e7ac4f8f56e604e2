# SPDX-License-Identifier: Apache-2.0
"""What clients that are not ours get from the embedded broker is what real Kafka gives them, field by field.

Those in Java, and real Kafka itself, are in ``tests/interop``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.support.foreign.answers import (
    CLIENTS,
    DIFFERENT,
    NOT_JAVA,
    column,
    differences,
    documented,
    not_as_sent,
    recorded,
    staged_on_embedded,
    without_allowed,
)
from tests.support.foreign.script import CAPABILITIES, Script
from tests.support.tools import require_tool


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    """The clients that are here, on one broker, after each has written."""
    names = [name for name in NOT_JAVA if name != "kcat" or shutil.which("kcat")]
    with staged_on_embedded(names, tmp_path_factory.mktemp("foreign") / "embedded") as staged:
        yield staged


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", NOT_JAVA)
def test_a_client_is_answered_as_by_real_kafka(name: str, script: Script) -> None:
    """Every codec, each other's records, offsets, groups; and the table in the documents says so."""
    if name == "kcat":
        require_tool("kcat", "kcat")
    actual = script.run(name)
    expected = recorded()[name]

    assert without_allowed(differences(expected, actual)) == []
    assert documented()[name] == column(expected, actual)


@pytest.mark.parametrize("name", CLIENTS)
def test_real_kafka_gave_every_client_what_was_sent(name: str) -> None:
    """Two brokers that lose the same record would agree."""
    outcomes = recorded()[name]

    assert not_as_sent(outcomes) == []
    assert list(CAPABILITIES) == list(outcomes)
    assert all("failed" not in outcome for outcome in outcomes.values())


def test_the_documents_table_has_every_client_and_every_reason() -> None:
    """What is refused is refused on purpose, and for all clients that offer it."""
    table = documented()

    assert list(CLIENTS) == list(table)
    refused = {capability for cells in table.values() for capability, cell in cells.items() if cell == "no"}
    assert refused == set(DIFFERENT)
