"""The Java consumer's own file: every key mapped, accepted at its harmless value, or refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from consumerd.config.java_properties import KEYS, LEGACY_NAMES, read_properties
from consumerd.config.load import load_inspection_settings, load_settings
from consumerd.errors import ConfigError

#: kafka.consumer.ConsumerConfig and kafka.utils.ZKConfig, 0.8.2 to 1.1, with their defaults
JAVA_DEFAULTS = {
    "group.id": "g",
    "zookeeper.connect": "zk:2181",
    "consumer.id": "c1",
    "zookeeper.session.timeout.ms": "6000",
    "zookeeper.connection.timeout.ms": "6000",
    "zookeeper.sync.time.ms": "2000",
    "socket.timeout.ms": "30000",
    "socket.receive.buffer.bytes": "65536",
    "fetch.message.max.bytes": "1048576",
    "fetch.max.bytes": "52428800",
    "num.consumer.fetchers": "1",
    "auto.commit.enable": "true",
    "auto.commit.interval.ms": "60000",
    "queued.max.message.chunks": "2",
    "rebalance.max.retries": "4",
    "rebalance.backoff.ms": "2000",
    "fetch.min.bytes": "1",
    "fetch.wait.max.ms": "100",
    "refresh.leader.backoff.ms": "200",
    "auto.offset.reset": "largest",
    "consumer.timeout.ms": "-1",
    "client.id": "g",
    "exclude.internal.topics": "true",
    "partition.assignment.strategy": "range",
    "offsets.storage": "zookeeper",
    "dual.commit.enabled": "false",
    "offsets.channel.backoff.ms": "1000",
    "offsets.channel.socket.timeout.ms": "10000",
    "offsets.commit.max.retries": "5",
}


def read(tmp_path: Path, text: str) -> Mapping[str, object]:
    path = tmp_path / "consumer.properties"
    path.write_text(text, encoding="latin-1")
    return read_properties(path).settings


def test_a_file_with_every_default_of_java_is_accepted(tmp_path: Path) -> None:
    """A migration starts from the file the team has."""
    nested = read(tmp_path, "".join(f"{key}={value}\n" for key, value in JAVA_DEFAULTS.items()))

    assert nested["group"] == {"id": "g", "consumer_id": "c1", "session_timeout_ms": 6000, "assignor": "range"}
    assert nested["offsets"] == {
        "on_missing": "latest",
        "on_below": "latest",
        "on_above": "latest",
        "commit_interval_ms": 60000,
    }


@pytest.mark.parametrize(("fetched", "message"), [(1048576, 67108864), (67108864, 67108864), (104857600, 104857600)])
def test_a_message_as_large_as_the_java_consumer_fetched_is_taken(tmp_path: Path, fetched: int, message: int) -> None:
    """Java's one setting is both: the bytes asked for at once, and so the largest message."""
    path = tmp_path / "consumer.properties"
    path.write_text(f"group.id=g\nzookeeper.connect=zk:2181\nfetch.message.max.bytes={fetched}\n")
    extra = {"subscriptions": [{"topics": ["t"], "sink": "out"}], "sinks": {"out": {"type": "null"}}}

    settings = load_settings(properties=path, environment={}, extra=extra)

    assert settings.fetch.max_partition_bytes == fetched
    assert settings.fetch.max_message_bytes == message


def test_every_java_key_has_a_rule() -> None:
    """None is ignored, and none is invented."""
    dead = {
        "shallowiterator.enable",
        "mirror.topics.whitelist",
        "mirror.topics.blacklist",
        "mirror.consumer.numthreads",
    }

    assert set(JAVA_DEFAULTS) | dead == set(KEYS)


def test_without_auto_offset_reset_java_starts_at_the_largest(tmp_path: Path) -> None:
    """Java's default, which differs from ours; an offset out of range still stops."""
    assert read(tmp_path, "group.id=g\n")["offsets"] == {"on_missing": "latest"}


@pytest.mark.parametrize(("value", "expected"), [("smallest", "earliest"), ("largest", "latest")])
def test_auto_offset_reset_means_what_it_means_in_java(tmp_path: Path, value: str, expected: str) -> None:
    """A group that begins at the wrong end of its topics delivers all of them, or loses what it waited for."""
    offsets = read(tmp_path, f"auto.offset.reset={value}\n")["offsets"]
    assert offsets == {"on_missing": expected, "on_below": expected, "on_above": expected}


def test_sync_time_is_the_backoff_unless_that_is_given(tmp_path: Path) -> None:
    """The only use that Java has for it, in whichever order the lines stand."""
    assert read(tmp_path, "rebalance.backoff.ms=500\nzookeeper.sync.time.ms=200\n")["rebalance"] == {"backoff_ms": 500}
    assert read(tmp_path, "zookeeper.sync.time.ms=200\n")["rebalance"] == {"backoff_ms": 200}


def test_continuation_lines_and_escapes_are_those_of_java(tmp_path: Path) -> None:
    """The format is older than YAML and has its own rules."""
    nested = read(tmp_path, "# comment\nzookeeper.connect : a:1,\\\n   b:2\ngroup.id g\\u0031\n")

    assert nested["cluster"] == {"zookeeper": "a:1,b:2"}
    assert nested["group"] == {"id": "g1"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\nauto.commit.enable=false\n", "line 2: auto.commit.enable=false is refused: what the sink has acknowledged"),
        ("offsets.storage=kafka\n", "not supported yet"),
        ("num.consumer.fetchers=4\n", "one connection a broker"),
        ("auto.offset.reset=earliest\n", "expected smallest or largest"),
        ("fetch.min.bytes=lots\n", "expected a whole number"),
        ("partition.assignment.strategy=roundrobin\n", "roundrobin-0.8 or roundrobin-1.0"),
        ("partition.assignment.strategy=sticky\n", "expected range or roundrobin"),
        ("bootstrap.servers=x:1\n", "of Kafka's newer consumer"),
        ("sasl.mechanism=PLAIN\n", "of Kafka's newer consumer"),
        ("group.id=\\uZZZZ\n", "consumer.properties"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason_and_the_line(tmp_path: Path, text: str, expected: str) -> None:
    """Silently dropping a setting changes what a team relies on."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert expected in str(caught.value)


def test_keys_that_are_nobodys_are_passed_over_and_named_once(tmp_path: Path) -> None:
    """A team's file has keys for its own code, and Java does no more than warn of them."""
    path = tmp_path / "consumer.properties"
    path.write_text(
        "# ours\nteam.owner=data\nzookeeper.connect=zk:2181\nserializer.class=a.B\ngroup.id=g\n"
        "kafka.metrics.reporters=a.C\nteam.owner=lake\n"
    )
    unknown = ("team.owner", "serializer.class", "kafka.metrics.reporters")
    assert read_properties(path).unknown == unknown

    with capture_logs() as logs:
        load_inspection_settings(properties=path, environment={})
        settings = load_settings(
            properties=path,
            environment={},
            extra={"subscriptions": [{"topics": ["orders"], "sink": "null"}], "sinks": {"null": {"type": "null"}}},
        )
    assert settings.group.id == "g"
    assert [(log["event"], log["keys"], log["log_level"]) for log in logs] == [
        ("properties_unknown", list(unknown), "warning")
    ]


@pytest.mark.parametrize("name", sorted(LEGACY_NAMES))
def test_names_of_0_7_say_what_they_became(tmp_path: Path, name: str) -> None:
    """Old files have old names."""
    with pytest.raises(ConfigError, match=rf"write {LEGACY_NAMES[name]}"):
        read(tmp_path, f"{name}=1\n")


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    """Named with its path."""
    with pytest.raises(ConfigError, match="cannot be read"):
        read_properties(tmp_path / "absent.properties")
