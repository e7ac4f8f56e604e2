# SPDX-License-Identifier: Apache-2.0
"""The Java consumer's own file: every key mapped, accepted at its harmless value, or refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from consumerd.config.java_properties import KEYS, LEGACY_NAMES, read_properties
from consumerd.config.load import load_inspection_settings, load_settings
from consumerd.errors import ConfigError
from consumerd.offsets.store import Place

#: the same of Kafka 0.7
LEGACY_DEFAULTS = {
    "groupid": "g",
    "zk.connect": "zk:2181",
    "consumerid": "c1",
    "zk.sessiontimeout.ms": "6000",
    "zk.connectiontimeout.ms": "6000",
    "zk.synctime.ms": "2000",
    "socket.timeout.ms": "30000",
    "socket.buffersize": "65536",
    "fetch.size": "1048576",
    "autocommit.enable": "true",
    "autocommit.interval.ms": "10000",
    "queuedchunks.max": "10",
    "rebalance.retries.max": "4",
    "rebalance.backoff.ms": "2000",
    "fetcher.backoff.ms": "1000",
    "autooffset.reset": "smallest",
    "consumer.timeout.ms": "-1",
    "shallowiterator.enable": "false",
    "mirror.topics.whitelist": "",
    "mirror.topics.blacklist": "",
    "mirror.consumer.numthreads": "1",
}

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
    layer = read_properties(path)
    assert [] == [problem.text for problem in layer.problems]
    return layer.values


def refusals(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "consumer.properties"
    path.write_text(text, encoding="latin-1")
    return [problem.text for problem in read_properties(path).problems]


def test_a_file_with_every_default_of_java_is_accepted(tmp_path: Path) -> None:
    """A migration starts from the file the team has."""
    nested = read(tmp_path, "".join(f"{key}={value}\n" for key, value in JAVA_DEFAULTS.items()))

    assert nested["group"] == {"id": "g", "consumer_id": "c1", "session_timeout_ms": 6000, "assignor": "range"}
    assert nested["offsets"] == {
        "on_missing": "latest",
        "on_below": "latest",
        "on_above": "latest",
        "commit_interval_ms": 60000,
        "storage": "zookeeper",
        "dual_commit": False,
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

    # of the newer consumer, and of the older one as HDP has it
    accepted = {"security.protocol", "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms"}
    accepted |= {"sasl.mechanism", "sasl.jaas.config", "sasl.kerberos.service.name"}

    assert set(JAVA_DEFAULTS) | dead | accepted == set(KEYS)


def test_keys_of_a_newer_consumers_membership_are_those_of_a_coordinated_member(tmp_path: Path) -> None:
    """They make sense only where a broker coordinates, so they say so."""
    strategies = (
        "org.apache.kafka.clients.consumer.StickyAssignor, org.apache.kafka.clients.consumer.RoundRobinAssignor"
    )
    lines = (
        "session.timeout.ms=10000\nheartbeat.interval.ms=3000\nmax.poll.interval.ms=300000\n"
        f"partition.assignment.strategy={strategies}\n"
    )

    assert read(tmp_path, lines)["group"] == {
        "membership": "kafka",
        "session_timeout_ms": 10000,
        "heartbeat_interval_ms": 3000,
        "rebalance_timeout_ms": 300000,
        "assignor": "roundrobin",
    }


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
        ("dual.commit.enabled=yes\n", "expected true or false"),
        ("num.consumer.fetchers=4\n", "one connection a broker"),
        ("auto.offset.reset=earliest\n", "expected smallest or largest"),
        ("fetch.min.bytes=lots\n", "expected a whole number"),
        ("partition.assignment.strategy=roundrobin\n", "roundrobin-0.8 or roundrobin-1.0"),
        ("partition.assignment.strategy=sticky\n", "expected range or roundrobin"),
        ("bootstrap.servers=x:1\n", "of Kafka's newer consumer"),
        ("sasl.mechanism=PLAIN\n", "sasl.mechanism has no effect without security.protocol=SASL_PLAINTEXT or SASL_SSL"),
        ("sasl.login.class=x\n", "of Kafka's newer consumer"),
        ("partition.assignment.strategy=org.apache.kafka.clients.consumer.StickyAssignor\n", "RangeAssignor"),
        ("security.protocol=TLS\n", "expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, PLAINTEXTSASL, SASL_SSL"),
        ("security.protocol=SASL_SSL\nsasl.jaas.config=x\n", "sasl.jaas.config: expected one login: module, required"),
        (
            "security.protocol=SASL_SSL\nsasl.jaas.config=a.B required;\n",
            "PlainLoginModule or ScramLoginModule, got a.B",
        ),
        (
            "security.protocol=SASL_SSL\nsasl.jaas.config=a.B required x;\n",
            "expected options as name=value, separated by spaces",
        ),
        ("ssl.truststore.location=/x.jks\n", "commands that convert a JKS store"),
        (
            "zookeeper.ssl.client.enable=true\n",
            "TLS to ZooKeeper is set in the YAML file: cluster.zookeeper_tls.enabled",
        ),
        ("zookeeper.sasl.client=true\n", "SASL at ZooKeeper is set in the YAML file: cluster.zookeeper_sasl"),
        ("zookeeper.set.acl=true\n", "a consumer protects what it creates as cluster.zookeeper_acl says"),
        ("auto.commit.interval.ms=60s\n", "expected a whole number of milliseconds, without a unit, as Kafka has it"),
        (
            "group.id=a\n\ngroup.id=b\n",
            "line 3: group.id is given twice, here and in line 1: Java takes the last; remove one",
        ),
        (
            "zookeper.connect=zk:2181\n",
            "line 1: zookeper.connect is no key of the high-level consumer; did you mean zookeeper.connect?",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason_and_the_line(tmp_path: Path, text: str, expected: str) -> None:
    """Silently dropping a setting changes what a team relies on."""
    (refused,) = refusals(tmp_path, text)
    assert expected in refused


def test_all_mistakes_of_a_file_are_told_at_once_in_its_order(tmp_path: Path) -> None:
    """A migrated file has several, and each run that finds one more costs a minute."""
    refused = refusals(tmp_path, "dual.commit.enabled=1\nzk.connect=a\nfetch.min.bytes=lots\nbootstrap.servers=x:1\n")

    assert [1, 2, 3, 4] == [int(text.partition("line ")[2].partition(":")[0]) for text in refused]


def test_a_file_that_javas_reader_refuses_is_named(tmp_path: Path) -> None:
    """An escape that is none."""
    with pytest.raises(ConfigError, match=r"consumer\.properties"):
        read(tmp_path, "group.id=\\uZZZZ\n")


def test_a_key_in_the_wrong_release_is_not_reported_as_missing_too(tmp_path: Path) -> None:
    """One mistake, one message."""
    path = tmp_path / "consumer.properties"
    path.write_text("groupid=g\nzookeeper.connect=zk:2181\n")
    extra = {"subscriptions": [{"topics": ["orders"], "sink": "out"}], "sinks": {"out": {"type": "null"}}}

    with pytest.raises(ConfigError) as caught:
        load_settings(properties=path, environment={}, extra=extra)
    assert "line 1: groupid is a name of Kafka 0.7, and these are of 0.8 and later: zookeeper.connect (line 2);" in str(
        caught.value
    )
    assert 1 == len(str(caught.value).splitlines())


def test_keys_that_are_nobodys_are_passed_over_and_named_once(tmp_path: Path) -> None:
    """A team's file has keys for its own code, and Java does no more than warn of them."""
    path = tmp_path / "consumer.properties"
    path.write_text(
        "# ours\nteam.owner=data\nzookeeper.connect=zk:2181\nserializer.class=a.B\ngroup.id=g\n"
        "kafka.metrics.reporters=a.C\n"
    )
    (doubt,) = read_properties(path).doubts
    assert doubt.name == "properties-unknown"
    assert doubt.text.endswith("team.owner (line 2), serializer.class (line 4), kafka.metrics.reporters (line 6)")

    with capture_logs() as logs:
        load_inspection_settings(properties=path, environment={})
        settings = load_settings(
            properties=path,
            environment={},
            extra={"subscriptions": [{"topics": ["orders"], "sink": "null"}], "sinks": {"null": {"type": "null"}}},
        )
    assert settings.group.id == "g"
    assert [(log["event"], log["doubt"], log["reason"], log["log_level"]) for log in logs] == [
        ("settings_doubtful", doubt.name, doubt.text, "warning")
    ]


def test_a_file_of_0_7_is_read_as_its_consumer_reads_it(tmp_path: Path) -> None:
    """All its keys at their defaults, the names of 0.7 with what they became; without a reset policy it is smallest."""
    path = tmp_path / "consumer.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in LEGACY_DEFAULTS.items()))
    layer = read_properties(path)
    assert layer.problems == []
    assert layer.values == {
        "cluster": {
            "generation": "legacy",
            "zookeeper": "zk:2181",
            "connect_timeout_ms": 6000,
            "request_timeout_ms": 30000,
        },
        "group": {"id": "g", "consumer_id": "c1", "session_timeout_ms": 6000},
        "rebalance": {"backoff_ms": 2000, "max_retries": 4},
        "fetch": {
            "receive_buffer_bytes": 65536,
            "max_partition_bytes": 1048576,
            "max_message_bytes": 67108864,
            "max_wait_ms": 1000,
        },
        "offsets": {
            "commit_interval_ms": 10000,
            "on_missing": "earliest",
            "on_below": "earliest",
            "on_above": "earliest",
        },
    }
    path.write_text("zk.connect=zk:2181\ngroupid=g\n")
    assert read_properties(path).values["offsets"] == {"on_missing": "earliest"}


@pytest.mark.parametrize("name", sorted(LEGACY_NAMES))
def test_a_fault_is_told_by_the_name_that_the_file_has(tmp_path: Path, name: str) -> None:
    """Nobody searches the file for another one."""
    texts = LEGACY_DEFAULTS.keys() & {"groupid", "zk.connect", "consumerid"}
    refused = refusals(tmp_path, f"{name}=no\n")
    assert refused == [] if name in texts else f"line 1: {name}=no" in refused[0]


def test_names_of_two_generations_are_not_mixed(tmp_path: Path) -> None:
    """Each consumer would pass over the names of the other, so that the file means something else to each."""
    (refused,) = refusals(tmp_path, "zk.connect=zk:2181\ngroup.id=g\nsocket.timeout.ms=30000\n")
    assert "line 1: zk.connect is a name of Kafka 0.7, and these are of 0.8 and later: group.id (line 2);" in refused
    (refused,) = refusals(tmp_path, "zk.connect=zk:2181\nzookeeper.connect=zk:2181\n")
    assert refused.endswith("line 2: zookeeper.connect is the same key as zk.connect in line 1; remove one")


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    """Named with its path."""
    with pytest.raises(ConfigError, match="cannot be read"):
        read_properties(tmp_path / "absent.properties")


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("", {Place.ZOOKEEPER}),
        ("offsets.storage=zookeeper\ndual.commit.enabled=false\n", {Place.ZOOKEEPER}),
        ("offsets.storage=kafka\n", {Place.ZOOKEEPER, Place.KAFKA}),
        ("offsets.storage=kafka\ndual.commit.enabled=true\n", {Place.ZOOKEEPER, Place.KAFKA}),
        ("offsets.storage=kafka\ndual.commit.enabled=false\n", {Place.KAFKA}),
    ],
)
def test_positions_are_where_a_java_member_with_this_file_keeps_them(
    tmp_path: Path, text: str, places: set[Place]
) -> None:
    """``dual.commit.enabled`` is true in Java where positions are kept in Kafka and nothing is said."""
    path = tmp_path / "consumer.properties"
    path.write_text(f"group.id=g\nzookeeper.connect=zk:2181\n{text}")
    extra = {"subscriptions": [{"topics": ["t"], "sink": "out"}], "sinks": {"out": {"type": "null"}}}

    offsets = load_settings(properties=path, environment={}, extra=extra).offsets
    assert (offsets.places, offsets.kept_in) == (places, "both" if len(places) > 1 else next(iter(places)).value)
    assert load_inspection_settings(properties=path, environment={}).offsets.places == places


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
BY_KEYTAB = (
    f"{KERBEROS} required \\\n useKeyTab=true storeKey=true \\\n"
    ' keyTab="/etc/lake.keytab" principal="lake@X" serviceName=kafka2;'
)


@pytest.mark.parametrize(
    ("text", "cluster"),
    [
        ("security.protocol=PLAINTEXT\nclient.id=c\n", {"client_id": "c"}),
        ("security.protocol=SSL\n", {"tls": {"enabled": True}}),
        ("security.protocol=SASL_PLAINTEXT\n", {"sasl": {"mechanism": "GSSAPI"}}),
        (
            "security.protocol=PLAINTEXTSASL\nsasl.kerberos.service.name=kafka1\n",
            {"sasl": {"mechanism": "GSSAPI", "service_name": "kafka1"}},
        ),
        (
            "sasl.mechanism=SCRAM-SHA-512\nsecurity.protocol=SASL_SSL\n",
            {"tls": {"enabled": True}, "sasl": {"mechanism": "SCRAM-SHA-512"}},
        ),
        (
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN} required username='a';\n",
            {"sasl": {"mechanism": "PLAIN", "username": "a"}},
        ),
        (
            f"security.protocol=SASL_PLAINTEXT\nsasl.jaas.config={BY_KEYTAB}\n",
            {
                "sasl": {
                    "mechanism": "GSSAPI",
                    "keytab": "/etc/lake.keytab",
                    "principal": "lake@X",
                    "service_name": "kafka2",
                }
            },
        ),
        (
            f"security.protocol=SASL_PLAINTEXT\nsasl.jaas.config={KERBEROS} required useTicketCache=true keyTab=/unused;\n",
            {"sasl": {"mechanism": "GSSAPI"}},
        ),
    ],
)
def test_javas_security_is_ours(tmp_path: Path, text: str, cluster: Mapping[str, object]) -> None:
    """Protocol, mechanism and login; the mechanism by default is Kerberos, as in Java."""
    assert cluster == read(tmp_path, text)["cluster"]


def test_a_password_in_a_login_is_refused_and_not_repeated(tmp_path: Path) -> None:
    """Settings are listed, and refusals are logged."""
    text = f'security.protocol=SASL_SSL\nsasl.jaas.config={PLAIN} required username="a" password="hunter2";\n'

    (refused,) = refusals(tmp_path, text)

    assert "give cluster.sasl.password_file, and remove it here" in refused
    assert "hunter2" not in refused
