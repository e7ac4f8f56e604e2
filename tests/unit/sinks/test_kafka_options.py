# SPDX-License-Identifier: Apache-2.0
"""Settings of the sink ``kafka``, and texts of the target's errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from consumerd.access.principal import Principal
from consumerd.errors import BrokerError, WriteRefused
from consumerd.sinks.kafka.failures import explain_failure, explain_refused, find_code
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.wire.errorcodes import ErrorCode, broker_error

LAKE = Principal(name="User:lake", reach=("--bootstrap-server", "new:9092"))


def test_an_address_is_enough() -> None:
    options = KafkaOptions.model_validate({"bootstrap": "a:1,b:2"})
    assert "orders" == options.name_topic("orders")
    address = options.locate("new", "mirror")
    assert (2, "mirror", None, None) == (len(address.first_brokers()), address.client_id, address.tls, address.sasl)
    settings = options.make_producer_settings("consumerd.mirror.c.orders.0")
    assert settings.transaction_timeout_ms > 2 * options.flush_ms


def test_identity_and_files_are_those_of_the_target(tmp_path: Path) -> None:
    """Messages name the sink's own settings, not those of the source's cluster."""
    sasl = {"mechanism": "PLAIN", "username": "m", "password_file": str(tmp_path / "password")}
    options = KafkaOptions.model_validate({"bootstrap": "a:1", "sasl": sasl, "tls": {}, "topic": "old.{topic}"})
    address = options.locate("new", "mirror")
    assert address.tls is not None
    assert address.sasl is not None
    assert ("sinks.new.tls", "sinks.new.sasl") == (address.tls.setting, address.sasl.setting)
    assert "old.orders" == options.name_topic("orders")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bootstrap": "a"}, "expected host:port"),
        ({"topic": "{topic}/copy"}, "makes no valid names"),
        ({"positions_topic": ".."}, "expected the name of a topic"),
        ({"flush_ms": 40_000}, "transaction_timeout_ms: 60000 is below 2 * flush_ms"),
        ({"sasl": {"mechanism": "PLAIN", "username": "m", "password_file": "/p"}}, "sasl.mechanism: PLAIN sends"),
        ({"acks": 1}, "Extra inputs"),
    ],
)
def test_mistakes_are_told(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        KafkaOptions.model_validate({"bootstrap": "a:1", **given})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "`TransactionalId:consumerd.m.*`"),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "--allow-principal User:lake --operation IdempotentWrite --cluster`"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "allow `Write` on `Topic:orders`"),
        (ErrorCode.INVALID_TRANSACTION_TIMEOUT, "lower transaction_timeout_ms"),
        (ErrorCode.MESSAGE_TOO_LARGE, "max.message.bytes"),
        (ErrorCode.NOT_ENOUGH_REPLICAS, "start the brokers"),
    ],
)
def test_errors_say_what_to_do(code: int, said: str) -> None:
    refused = WriteRefused("orders/0: not written")
    refused.__cause__ = broker_error(code, "Produce")
    text = explain_failure(
        refused if code == ErrorCode.MESSAGE_TOO_LARGE else refused.__cause__, "orders", "", "consumerd.m.*", LAKE
    )
    assert said in text
    assert ("for User:lake" in text) == ("allow" in text)
    assert isinstance(refused.__cause__, BrokerError)
    assert code == find_code(refused)


def test_refused_record_is_told_with_its_size() -> None:
    refused = WriteRefused("orders/0: not written")
    refused.__cause__ = broker_error(ErrorCode.MESSAGE_TOO_LARGE, "Produce")
    assert "about 70 bytes; raise max.message.bytes" in explain_refused(refused, 70)
    refused.__cause__ = broker_error(ErrorCode.INVALID_TIMESTAMP, "Produce")
    assert "bytes" not in explain_refused(refused, 70)
    assert find_code(None) is None


def test_example_shows_every_option_with_its_default() -> None:
    """The options are comments in config.example.yaml, which has one sink that is used."""
    text = (Path(__file__).parents[3] / "config.example.yaml").read_text()
    begin = text.index("  #   new:\n")
    block = text[begin : text.index("  # Requests", begin)]
    (shown,) = yaml.safe_load("\n".join(line.removeprefix("  # ") for line in block.splitlines())).values()
    assert shown.pop("type") == "kafka"
    options = KafkaOptions.model_validate(shown)
    defaults = KafkaOptions.model_validate({"bootstrap": "a:1"})
    assert shown.keys() == KafkaOptions.model_fields.keys() - {"on_rejected"}
    for name in KafkaOptions.model_fields.keys() - {"bootstrap", "tls", "sasl"}:
        assert getattr(options, name) == getattr(defaults, name), name
