# SPDX-License-Identifier: Apache-2.0
"""What a reader can be asked for, and that nothing else passes."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from consumerd.access.address import IdentitiesFile, TlsFiles
from consumerd.access.sasl_login import SaslLogin, ZooKeeperLogin
from consumerd.errors import ConfigError
from consumerd.model import Generation, TopicPartition
from consumerd.spark.datasource.options import (
    Assign,
    AtGroup,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Edge,
    GroupPlace,
    MissingPosition,
    NoLaterRecord,
    ReadOptions,
    Subscribe,
    SubscribePattern,
    option_names,
    parse_read_options,
)
from consumerd.zk.node_acl import AclProfile

LEAST = {"kafka.bootstrap.servers": "one:9092", "subscribe": "orders"}


def parse(streaming: bool = False, **given: str) -> ReadOptions:
    options = LEAST | {name.replace("__", "."): value for name, value in given.items()}
    return parse_read_options({name: value for name, value in options.items() if value}, streaming=streaming)


def test_little_has_to_be_said() -> None:
    """A batch reads all there is, a stream what comes from now on, as with Spark's own source."""
    batch, stream = parse(), parse(streaming=True)
    assert (batch.starting, batch.ending, batch.selection) == (Edge.EARLIEST, Edge.LATEST, Subscribe(("orders",)))
    assert stream.starting is Edge.LATEST
    assert batch.fail_on_data_loss
    assert not batch.columns.include_headers
    assert (batch.min_partitions, batch.max_records_per_partition, batch.cluster.tls) == (None, None, None)


def test_names_count_whatever_their_case() -> None:
    """Spark hands some options over in lower case."""
    assert parse(MINPARTITIONS="7", failondataloss="False").min_partitions == 7
    assert not parse(failondataloss="False").fail_on_data_loss


def test_which_partitions() -> None:
    """One of three ways, with what each of them says."""
    assert parse(subscribe="a, b,a").selection == Subscribe(("a", "b"))
    assert parse(subscribe="", subscribePattern="ord.*").selection == SubscribePattern("ord.*")
    assigned = parse(subscribe="", assign='{"b": [1], "a": [2, 0, 2]}').selection
    assert assigned == Assign(
        (TopicPartition.modern("a", 0), TopicPartition.modern("a", 2), TopicPartition.modern("b", 1))
    )


def test_bounds_by_offsets_times_and_groups() -> None:
    """Every way to say from where and up to where."""
    some = TopicPartition.modern("orders", 1)
    assert parse(startingOffsets="Earliest").starting is Edge.EARLIEST
    assert parse(startingOffsets='{"orders": {"1": -2}}').starting == AtOffsets({some: -2})
    assert parse(endingOffsets='{"orders": {"1": -1}}').ending == AtOffsets({some: -1})
    assert parse(startingTimestamp="17").starting == AtTimestamp(17)
    assert parse(endingOffsetsByTimestamp='{"orders": {"1": 5}}').ending == AtTimestamps({some: 5})
    assert parse(zookeeper="zk:2181", endingOffsets="group: billing").ending == AtGroup("billing")
    assert parse(zookeeper="zk:2181", kafka__bootstrap__servers="").cluster.zookeeper == "zk:2181"


def test_a_time_for_all_counts_before_times_and_those_before_offsets() -> None:
    """The order of Spark's source: a job that gives more than one must mean the same here."""
    by_partition = '{"orders": {"0": 3}}'
    assert parse(startingTimestamp="1", startingOffsetsByTimestamp=by_partition).starting == AtTimestamp(1)
    both = parse(startingOffsetsByTimestamp=by_partition, startingOffsets="latest").starting
    assert both == AtTimestamps({TopicPartition.modern("orders", 0): 3})


def test_what_else_there_is() -> None:
    """Options and where they end up."""
    options = parse(
        startingOffsetsByTimestampStrategy="latest",
        groupPositionMissing="earliest",
        includeHeaders="true",
        maxRecordsPerPartition="100",
        kafka__isolation__level="read_committed",
        kafka__max__partition__fetch__bytes="2048",
        kafka__fetch__max__wait__ms="0",
        kafkaConsumer__pollTimeoutMs="1500",
        kafka__client__id="me",
        kafka__request__timeout__ms="2500",
        batchBytes="65536",
    )
    assert options.no_later_record is NoLaterRecord.LATEST
    assert options.missing_position is MissingPosition.EARLIEST
    assert (options.columns.include_headers, options.max_records_per_partition) == (True, 100)
    fetch = options.fetch
    assert (fetch.read_committed, fetch.partition_bytes, fetch.wait_ms, fetch.patience_s) == (True, 2048, 0, 1.5)
    assert (options.cluster.client_id, options.cluster.request_timeout_s, fetch.batch_bytes) == ("me", 2.5, 65536)


def test_the_place_of_a_groups_positions() -> None:
    """With positions in ZooKeeper and in Kafka, either may be the ones that are meant."""
    given = {"zookeeper": "zk:2181", "startingOffsets": "group:billing"}
    assert AtGroup("billing") == parse_read_options(LEAST | given, streaming=False).starting
    chosen = parse_read_options(LEAST | given | {"groupPositionsIn": "Larger"}, streaming=False)
    assert AtGroup("billing", GroupPlace.LARGER) == chosen.starting


def test_limits_of_a_trigger() -> None:
    """The limit has two names, and a delay has units."""
    stream = parse(streaming=True, maxRowsPerTrigger="10", minOffsetsPerTrigger="2", maxTriggerDelay="15m")
    assert (stream.max_offsets_per_trigger, stream.min_offsets_per_trigger) == (10, 2)
    assert stream.max_trigger_delay_ms == 900_000
    assert parse(streaming=True, maxOffsetsPerTrigger="10", maxRowsPerTrigger="10").max_offsets_per_trigger == 10


def test_settings_of_a_consumer_that_is_not_there_have_no_effect() -> None:
    """A job moves over by its format's name: what it says of polling and groups need not be taken out."""
    assert parse(kafka__max__poll__records="5", groupIdPrefix="x", fetchOffset__numRetries="3") == parse()


def test_identities_at_brokers_are_names_of_files() -> None:
    """By Java's names where there are some; the mechanism by default is Java's."""
    by_password = parse(
        kafka__security__protocol="SASL_SSL",
        kafka__sasl__mechanism="SCRAM-SHA-512",
        sasl__username="lake",
        sasl__password__file="/run/secrets/kafka",
    )
    expected = {"setting": "sasl", "mechanism": "SCRAM-SHA-512", "username": "lake"}
    assert by_password.cluster.sasl == SaslLogin(**expected, password_file=Path("/run/secrets/kafka"))
    assert by_password.cluster.tls == TlsFiles(setting="kafka.ssl")
    by_ticket = parse(kafka__security__protocol="sasl_plaintext", kafka__sasl__kerberos__service__name="kafka2")
    assert by_ticket.cluster.sasl == SaslLogin(setting="sasl", mechanism="GSSAPI", service_name="kafka2")
    assert parse(kafka__sasl__mechanism="PLAIN").cluster.sasl is None


def test_identities_at_zookeeper_are_names_of_files_too() -> None:
    """By Kerberos, that of the brokers counts for both; TLS has the names that Kafka's own tools give it."""
    digest = parse(
        zookeeper__sasl__mechanism="DIGEST-MD5",
        zookeeper__sasl__username="lake",
        zookeeper__sasl__password__file="/run/secrets/zookeeper",
        zookeeper__ssl__client__enable="true",
        zookeeper__ssl__truststore__location="/ca.pem",
        zookeeper__ssl__truststore__type="PEM",
    ).cluster
    assert digest.zookeeper_sasl == ZooKeeperLogin(
        setting="zookeeper.sasl",
        mechanism="DIGEST-MD5",
        username="lake",
        password_file=Path("/run/secrets/zookeeper"),
    )
    assert digest.zookeeper_tls == TlsFiles(setting="zookeeper.ssl", trusted=Path("/ca.pem"))
    assert digest.node_acl is AclProfile.JAVA
    brokers = {"kafka__security__protocol": "SASL_SSL", "sasl__keytab": "/k", "sasl__principal": "lake@R"}
    kerberos = {"setting": "zookeeper.sasl", "mechanism": "GSSAPI"}
    same = parse(**brokers, zookeeper__sasl__mechanism="GSSAPI", zookeeper__sasl__service__name="zk").cluster
    assert same.zookeeper_sasl == ZooKeeperLogin(**kerberos, service_name="zk", keytab=Path("/k"), principal="lake@R")
    own = parse(**brokers, zookeeper__sasl__mechanism="GSSAPI", zookeeper__sasl__principal="other@R").cluster
    assert own.zookeeper_sasl == ZooKeeperLogin(**kerberos, principal="other@R")
    assert parse(zookeeper__ssl__truststore__location="/ca", zookeeper__ssl__truststore__type="PEM") == parse()


def test_tls_is_files_in_pem() -> None:
    """Java's settings where they can be meant here."""
    options = parse(
        kafka__security__protocol="SSL",
        kafka__ssl__truststore__type="PEM",
        kafka__ssl__truststore__location="/etc/ca.pem",
    )
    assert options.cluster.tls == TlsFiles(setting="kafka.ssl", trusted=Path("/etc/ca.pem"))
    unchecked = LEAST | {"kafka.security.protocol": "ssl", "kafka.ssl.endpoint.identification.algorithm": ""}
    assert parse_read_options(unchecked, streaming=False).cluster.tls == TlsFiles(
        setting="kafka.ssl", check_hostname=False
    )


def test_the_record_of_identities_is_a_file() -> None:
    """It is not opened before the cluster is."""
    assert parse().cluster.identities is None
    assert parse(identities="/none.json").cluster.identities == IdentitiesFile(
        setting="identities", file=Path("/none.json")
    )


def test_a_cluster_is_of_the_generation_that_the_option_says() -> None:
    """As with ``cluster.generation`` of the settings."""
    assert parse().cluster.generation is None
    assert parse(generation="modern").cluster.generation is Generation.MODERN
    assert parse(generation="legacy", zookeeper="zk:2181").cluster.generation is Generation.LEGACY
    with pytest.raises(ConfigError, match=r"^generation: brokers of Kafka 0\.6 and 0\.7 .* give the option zookeeper"):
        parse(generation="legacy")


def test_options_travel_to_executors() -> None:
    """They are pickled with every task."""
    options = parse(startingOffsets='{"orders": {"0": 1}}')
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"kafka__bootstrap__servers": ""}, "kafka.bootstrap.servers or zookeeper"),
        ({"kafka__bootstrap__servers": "one"}, "kafka.bootstrap.servers: expected host:port, got 'one'"),
        ({"subscribe": ""}, "subscribe, subscribePattern, assign: give exactly one"),
        ({"assign": '{"a": [0]}'}, "subscribe, subscribePattern, assign: give exactly one"),
        ({"subscribe": "a b"}, "subscribe: 'a b' has other characters"),
        ({"subscribe": ","}, "subscribe: expected at least one topic"),
        ({"subscribe": "", "subscribePattern": "a(b"}, "subscribePattern: 'a(b'"),
        ({"subscribe": "", "assign": '{"a": [-1]}'}, "assign: a: expected a partition's number, got '-1'"),
        ({"subscrib": "a"}, "subscrib: there is no such option; did you mean subscribe?"),
        ({"path": "/x"}, "path: cannot be given"),
        ({"kafka__auto__offset__reset": "earliest"}, "kafka.auto.offset.reset: cannot be given: give startingOffsets"),
        ({"kafka__sasl__jaas__config": "hidden"}, "kafka.sasl.jaas.config: cannot be given: it would put the password"),
        ({"kafka__sasl__login__class": "x"}, "kafka.sasl.login.class: there is no such option"),
        (
            {"kafka__security__protocol": "SASL_SSL", "kafka__sasl__mechanism": "X"},
            "kafka.sasl.mechanism: expected one of PLAIN",
        ),
        (
            {"kafka__security__protocol": "SASL_SSL", "kafka__sasl__mechanism": "PLAIN", "sasl__username": "u"},
            "sasl.password.file: PLAIN needs one password",
        ),
        (
            {
                "kafka__security__protocol": "SASL_PLAINTEXT",
                "kafka__sasl__mechanism": "PLAIN",
                "sasl__username": "u",
                "sasl__password__file": "/x",
            },
            "kafka.sasl.mechanism: PLAIN sends the password as it is",
        ),
        ({"kafka__ssl__truststore__location": "/x.jks"}, "kafka.ssl.truststore.location: a file of type JKS"),
        (
            {"kafka__security__protocol": "TLS"},
            "kafka.security.protocol: expected plaintext or ssl or sasl_plaintext or sasl_ssl",
        ),
        ({"kafka__ssl__endpoint__identification__algorithm": "x"}, "algorithm: expected https"),
        ({"zookeeper__auth__scheme": "digest"}, "zookeeper.auth.scheme and zookeeper.auth.file"),
        ({"zookeeper__sasl__keytab": "/k"}, "zookeeper.sasl.keytab: it needs zookeeper.sasl.mechanism"),
        ({"zookeeper__sasl__mechanism": "PLAIN"}, "zookeeper.sasl.mechanism: expected one of DIGEST-MD5, GSSAPI"),
        (
            {"zookeeper__sasl__mechanism": "DIGEST-MD5", "zookeeper__sasl__username": "u"},
            "zookeeper.sasl.password.file: DIGEST-MD5 needs one password",
        ),
        ({"zookeeper__ssl__truststore__location": "/s"}, "zookeeper.ssl.truststore.location: a file of type JKS"),
        ({"zookeeper": "z:1", "identities": "/x"}, "identities: it is for a cluster without ZooKeeper"),
        ({"zookeeper.connect": "z:1", "identities": "/x"}, "identities: it is for a cluster without ZooKeeper"),
        ({"brokerVersion": "0.7"}, "brokerVersion: expected auto or a release"),
        ({"minPartitions": "0"}, "minPartitions: expected a whole number from 1 on, got '0'"),
        ({"minPartitions": "9" * 5000}, "minPartitions: expected a whole number"),
        ({"kafka__ssl__key__password": "hidden"}, "kafka.ssl.key.password: cannot be given: files in PEM"),
        ({"minPartitions": "٣"}, "minPartitions: expected a whole number"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss: expected true or false, got 'no'"),
        ({"startingOffsets": "lates"}, "startingOffsets: expected earliest, latest, group:<name>, or JSON"),
        ({"startingOffsets": "latest"}, "startingOffsets: a batch that starts with the latest"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "startingOffsets: a batch that starts with the latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets: a batch that ends with the earliest"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "endingOffsets: a batch that ends with the earliest"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "startingOffsets: a/0: expected a number from -2 on, got -3"),
        (
            {"startingOffsets": "group:g", "groupPositionsIn": "zookeeper"},
            "startingOffsets: group:g: its positions in ZooKeeper are asked for; give the option zookeeper",
        ),
        ({"zookeeper": "z:1", "startingOffsets": "group:"}, "startingOffsets: 'group:': expected group:<name>"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "startingOffsetsByTimestampStrategy: expected error or latest"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger: a batch has no triggers"),
    ],
)
def test_bad_input_is_named(given: dict[str, str], named: str) -> None:
    """Whoever writes a job reads the option's name, what was expected, and what came."""
    with pytest.raises(ConfigError) as caught:
        parse(**given)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets: a stream has no end"),
        ({"endingTimestamp": "5"}, "endingTimestamp: a stream has no end"),
        ({"maxTriggerDelay": "5 weeks"}, "maxTriggerDelay: expected a duration such as"),
        ({"maxOffsetsPerTrigger": "5", "maxRowsPerTrigger": "6"}, "they are two names of one limit"),
    ],
)
def test_bad_input_of_streams_is_named(given: dict[str, str], named: str) -> None:
    """What makes no sense in a stream."""
    with pytest.raises(ConfigError) as caught:
        parse(streaming=True, **given)
    assert named in str(caught.value)


def test_the_options_are_those_that_are_documented() -> None:
    """Whoever looks an option up finds it, and finds none that is not there."""
    page = (Path(__file__).parents[4] / "docs" / "spark-source.md").read_text()
    named = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`([^`]+)`", " ".join(named))) == sorted(option_names())


@pytest.mark.parametrize("name", ["zookeeper", "zookeeper.connect", "Zookeeper.Connect"])
def test_zookeeper_may_be_given_by_the_name_that_kafkas_settings_have(name: str) -> None:
    """It is the word that users know from server.properties and consumer.properties."""
    options = parse_read_options({name: "zk:2181/kafka", "subscribe": "t"}, streaming=False)
    assert options.cluster.zookeeper == "zk:2181/kafka"


def test_two_names_with_two_values_are_refused() -> None:
    """One of them would silently win."""
    with pytest.raises(ConfigError, match=r"zookeeper and zookeeper\.connect"):
        parse_read_options({"zookeeper": "a:1", "zookeeper.connect": "b:1", "subscribe": "t"}, streaming=False)
