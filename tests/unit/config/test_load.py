# SPDX-License-Identifier: Apache-2.0
"""Where settings come from, which source wins, and what the errors say."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.config.load import load_inspection_settings, load_settings
from consumerd.errors import ConfigError
from consumerd.fetch.ports import FetchSettings

MINIMAL = """\
cluster: {zookeeper: "127.0.0.1:2181"}
group: {id: lake}
subscriptions:
  - {topics: [orders], sink: out}
sinks:
  out: {type: "null"}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(MINIMAL)
    return path


def refusal(config: Path, text: str = "", **options: object) -> str:
    if text:
        config.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(config=config, environment=options.pop("environment", {}), **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_defaults_fill_what_a_file_leaves_out(config: Path) -> None:
    """A new user writes five lines."""
    settings = load_settings(config=config, environment={})

    assert settings.group.session_timeout_ms == 6000
    assert settings.http.address == ("127.0.0.1", 9309)


def test_a_section_fills_the_fields_that_are_named_like_settings(config: Path) -> None:
    """A new setting reaches its user without a line that passes it on."""
    settings = load_settings(config=config, environment={}, overrides=["fetch.min_bytes=7", "fetch.max_wait_ms=1s"])
    filled = settings.fetch.fill(FetchSettings)

    assert (filled.min_bytes, filled.max_wait_ms) == (7, 1000)
    assert filled.backoff_initial_s == FetchSettings().backoff_initial_s


def test_environment_beats_the_file_and_the_command_line_beats_both(config: Path) -> None:
    """A container overrides a baked-in file; a person overrides the container."""
    environment = {"CONSUMERD_GROUP__ID": "from-env", "CONSUMERD_GROUP__STREAMS": "3"}
    settings = load_settings(config=config, environment=environment, overrides=["group.id=from-set"])

    assert (settings.group.id, settings.group.streams) == ("from-set", 3)


def test_a_default_of_the_image_is_below_every_file(config: Path, tmp_path: Path) -> None:
    """Whoever mounts a file means what is in it; what it leaves out is the image's."""
    properties = tmp_path / "consumer.properties"
    properties.write_text("client.id=from-properties\n")
    environment = {
        "CONSUMERD_DEFAULT__GROUP__ID": "from-image",
        "CONSUMERD_DEFAULT__CLUSTER__CLIENT_ID": "from-image",
        "CONSUMERD_DEFAULT__HTTP__LISTEN": "0.0.0.0:9309",
    }
    settings = load_settings(config=config, properties=properties, environment=environment)

    assert (settings.group.id, settings.cluster.client_id) == ("lake", "from-properties")
    assert settings.http.listen == "0.0.0.0:9309"


def test_numbers_given_as_text_stay_text_where_text_is_meant(config: Path) -> None:
    """A shell has no quotes of YAML's; a group may be named 42, a password may look like a time of day."""
    environment = {"CONSUMERD_GROUP__ID": "0042", "CONSUMERD_CLUSTER__ZOOKEEPER_AUTH__CREDENTIAL": "12:34"}
    settings = load_settings(config=config, environment=environment, overrides=["group.consumer_id=yes"])

    assert (settings.group.id, settings.group.consumer_id) == ("0042", "yes")
    assert settings.cluster.zookeeper_auth is not None
    assert settings.cluster.zookeeper_auth.locate().read() == ("digest", b"12:34")


def test_a_section_whose_keys_are_all_commented_out_has_its_defaults(config: Path) -> None:
    """YAML reads it as no value at all."""
    config.write_text(MINIMAL.replace("cluster: {", "fetch:\n  # max_wait_ms: 100\ncluster: {tls: , "))

    assert load_settings(config=config, environment={}).fetch.max_wait_ms == 500


def test_a_section_is_merged_key_by_key(config: Path) -> None:
    """Overriding one key must not reset its neighbours."""
    settings = load_settings(config=config, environment={}, overrides=["sinks.out.type=null", "group.streams=2"])

    assert (settings.group.id, settings.group.streams) == ("lake", 2)


def test_lists_come_from_the_environment_as_yaml(config: Path) -> None:
    """Helm charts set subscriptions by environment."""
    environment = {"CONSUMERD_SUBSCRIPTIONS": '[{"pattern": "web.*", "sink": "out"}]'}

    assert load_settings(config=config, environment=environment).subscriptions[0].pattern == "web.*"


def test_a_release_stays_text(config: Path) -> None:
    """0.10 is not a tenth."""
    assert (
        load_settings(config=config, environment={}, overrides=["cluster.broker_version=0.10"]).cluster.broker_version
        == "0.10"
    )


def test_an_unknown_key_is_named_with_its_line_and_the_keys_there_are(config: Path) -> None:
    """A typo must not be ignored for a year."""
    message = refusal(config, MINIMAL + "fetch:\n  max_bytes: 3\n")

    assert "fetch.max_bytes: unknown key" in message
    assert "max_partition_bytes" in message
    assert "config.yaml, line 8" in message


def test_a_misspelled_environment_variable_is_refused(config: Path) -> None:
    """A silent typo in a deployment is an outage later."""
    message = refusal(config, environment={"CONSUMERD_GRUOP__ID": "x"})

    assert "gruop" in message
    assert "CONSUMERD_GRUOP__ID" in message


def test_other_variables_of_the_prefix_are_left_alone(config: Path) -> None:
    """The tests' own switches share the prefix."""
    assert load_settings(config=config, environment={"CONSUMERD_KAFKA_CACHE": "/x"}).group.id == "lake"


def test_missing_keys_say_all_three_ways_to_set_them(config: Path) -> None:
    """The first error a new user sees."""
    message = refusal(config, "cluster: {}\n")

    assert "cluster.zookeeper: missing" in message
    assert "CONSUMERD_CLUSTER__ZOOKEEPER" in message
    assert "--set cluster.zookeeper" in message


def test_a_missing_section_is_named_by_the_keys_that_it_needs(config: Path) -> None:
    """Nobody can set a section with ``--set``, nor know from its name what must be in it."""
    message = refusal(config, "log: {level: info}\n")

    assert [line.partition(": missing")[0] for line in message.splitlines()] == [
        "cluster.zookeeper",
        "group.id",
        "subscriptions",
        "sinks",
    ]
    assert "--set group.id=..." in message
    assert "subscriptions: missing; set it in the file, or give --topics, --pattern or --blacklist" in message


def test_a_one_shot_command_without_a_cluster_asks_for_its_own_option() -> None:
    """What the help shows."""
    with pytest.raises(
        ConfigError,
        match=r"cluster\.zookeeper: missing; give --zookeeper CONNECT \(without ZooKeeper: --bootstrap HOST:PORT\), or set",
    ):
        load_inspection_settings(environment={})


def test_settings_that_do_not_go_together_are_blamed_on_no_place(config: Path) -> None:
    """The file has them both, and not the command line, which says nothing."""
    message = refusal(config, MINIMAL + "fetch: {on_oversized: quarantine}\n")

    assert "set quarantine.path" in message
    assert "command line" not in message


def test_a_wrong_sink_option_names_the_sink_and_the_line(config: Path) -> None:
    """Options are checked against the sink's own model."""
    message = refusal(config, MINIMAL.replace('type: "null"', 'type: "null", color: red'))

    assert "sinks.out.color: unknown key" in message
    assert "line 6" in message


def test_what_is_wrong_with_sinks_is_said_with_all_the_rest(config: Path) -> None:
    """Who mends a file wants one list, not one that goes on behind each line."""
    text = MINIMAL.replace('{type: "null"}', '{type: "null", color: red}\n  lake: {type: jsonl}\n  sea: {type: hdfs}')
    lines = refusal(config, text.replace("group: {id: lake}", "group: {id: lake, stream: 1}")).splitlines()

    assert [line.partition(":")[0] for line in lines] == [
        "group.stream", "sinks.out.color", "sinks.lake.path", "sinks.sea.type"
    ]  # fmt: skip


def test_an_unknown_sink_type_lists_those_there_are(config: Path) -> None:
    """So that nobody has to look it up."""
    message = refusal(config, MINIMAL.replace('"null"', "hdfs"))

    assert "sinks.out.type" in message
    assert "parquet" in message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("sink: out}\n  - {pattern: 'x.*', sink: out", "either to topics or by pattern"),
        ("sink: out}\n  - {topics: [orders], sink: other", "two sinks"),
        ("sink: elsewhere", "names sink 'elsewhere'"),
        ("pattern: 'x', sink: out", "one of topics, pattern and black_list"),
        ("exclude: 'x', sink: out", "exclude goes with a pattern"),
    ],
)
def test_subscriptions_that_cannot_work_are_refused(config: Path, change: str, expected: str) -> None:
    """One registration payload a member; a topic has one sink."""
    text = MINIMAL.replace("sink: out", change, 1) + "  other: {type: 'null'}\n"

    assert expected in refusal(config, text)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rebalance.drain_timeout_ms=7000", "Java member"),
        ("fetch.max_wait_ms=30000", "request_timeout_ms"),
        ("fetch.max_message_bytes=1", "at least max_partition_bytes"),
        ("fetch.memory_budget_bytes=1", "at least max_partition_bytes"),
        ("shutdown.timeout_ms=3000", "must exceed"),
        ("offsets.storage=kafak", "kafka"),
        ("offsets.dual_commit=true", "commits to both places need storage: kafka"),
        ("cluster.generation=old", "cluster.generation"),
        ("group.membership=kafka", "group.membership: kafka needs offsets.storage: kafka"),
        ("group.membership=broker", "expected zookeeper or kafka"),
        ("group.heartbeat_interval_ms=500", "membership: kafka"),
        ("group.assignor=roundrobin", "write roundrobin-0.8 or roundrobin-1.0"),
        ("fetch.on_corrupt=quarantine", "quarantine.path"),
        ("sinks.out.on_rejected=quarantine", "quarantine.path"),
        ("sinks.out.memory_share=0", "expected at least 1, got 0"),
        ("fetch.on_corrupt=drop", "stop"),
        ("http.listen=nowhere", "http.listen"),
        ("cluster.tls.key_file=/x", "without cluster.tls.enabled the connection is plain text"),
    ],
)
def test_settings_that_cannot_work_together_are_refused(config: Path, override: str, expected: str) -> None:
    """Found before anything is connected, not at the first rebalance."""
    assert expected in refusal(config, overrides=[override])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("offsets.dual_commit=true", "needs offsets.dual_commit: false"),
        ("group.assignor=roundrobin-1.0", "with membership: kafka write range or roundrobin"),
        ("group.streams=2", "a process counts as one member"),
        ("group.heartbeat_interval_ms=2001", "a third of session_timeout_ms (2000)"),
        ("group.rebalance_timeout_ms=7999", "at least twice rebalance.drain_timeout_ms and a heartbeat (8000)"),
    ],
)
def test_settings_of_a_coordinated_member_must_fit(config: Path, override: str, expected: str) -> None:
    """A claim is worth what its coordinator can fence, so the places and the times belong together."""
    coordinated = ["group.membership=kafka", "offsets.storage=kafka", "offsets.dual_commit=false"]

    assert expected in refusal(config, overrides=[*coordinated, override])


def test_a_coordinated_member_drains_as_long_as_its_group_waits(config: Path) -> None:
    """A Java consumer in ZooKeeper gives up after 6 s; a coordinator waits for the rebalance timeout."""
    overrides = ["group.membership=kafka", "offsets.storage=kafka", "offsets.dual_commit=false"]
    settings = load_settings(config=config, environment={}, overrides=[*overrides, "rebalance.drain_timeout_ms=10000"])

    assert settings.group.heartbeat_s == 1.0
    assert settings.rebalance.drain_timeout_ms == 10000


def test_a_credential_in_the_file_is_refused(config: Path) -> None:
    """Files end up in repositories."""
    message = refusal(config, MINIMAL.replace('2181"', '2181", zookeeper_auth: {credential: "u:p"}'))

    assert "secrets come from a file" in message
    assert "u:p" not in message


def test_a_credential_comes_from_the_environment_or_a_file(config: Path, tmp_path: Path) -> None:
    """The two places where orchestrators put secrets."""
    (tmp_path / "secret").write_text("user:from-file\n")
    (tmp_path / "secret").chmod(0o600)
    by_file = load_settings(
        config=config, environment={}, overrides=[f"cluster.zookeeper_auth.credential_file={tmp_path}/secret"]
    )
    by_env = load_settings(config=config, environment={"CONSUMERD_CLUSTER__ZOOKEEPER_AUTH__CREDENTIAL": "user:env"})

    assert by_file.cluster.zookeeper_auth is not None
    assert by_file.cluster.zookeeper_auth.locate().read() == ("digest", b"user:from-file")
    assert by_env.cluster.zookeeper_auth is not None
    assert by_env.cluster.zookeeper_auth.locate().read() == ("digest", b"user:env")
    assert "user:env" not in repr(by_env)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cluster: [", "line 1: not YAML"),
        ("- 1\n", "expected sections"),
        ("", "cluster.zookeeper: missing"),
    ],
)
def test_a_file_that_is_not_settings_says_so(config: Path, text: str, expected: str) -> None:
    """Empty, a list, or broken YAML."""
    config.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(config=config, environment={})
    assert expected in str(caught.value)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    """The most common mistake of all."""
    assert "cannot be read: No such file" in refusal(tmp_path / "absent.yaml")


def test_bad_overrides_are_named(config: Path) -> None:
    """``--set`` without a value."""
    assert "expected section.key=value" in refusal(config, overrides=["group.id"])


def test_words_that_yaml_takes_for_values_are_what_they_look_like(config: Path) -> None:
    """``type: null`` and ``listen: off``, unquoted, as everybody writes them."""
    config.write_text(MINIMAL.replace('"null"', "null") + "http: {listen: off}\n")
    settings = load_settings(config=config, environment={})

    assert settings.sinks["out"].type == "null"
    assert settings.http.address is None


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ("cluster.tls.enabled=true", "cluster.tls.enabled: the cluster's brokers are of Kafka 0.6 or 0.7"),
        ("cluster.broker_version=0.8.2", "cluster.broker_version: the cluster's brokers are of Kafka 0.6 or 0.7"),
        ("group.assignor=roundrobin-1.0", "group.assignor: the cluster's brokers are of Kafka 0.6 or 0.7"),
        ("offsets.storage=kafka", "they keep no positions: write zookeeper"),
        ("fetch.isolation=read_committed", "they have no transactions: write read_uncommitted"),
    ],
)
def test_what_brokers_of_0_7_do_not_have_is_refused_for_them_alone(config: Path, override: str, advice: str) -> None:
    """Where the generation is found at the start, the same is told then."""
    assert advice in refusal(config, overrides=["cluster.generation=legacy", override])
    for generation in ("auto", "modern"):
        load_settings(config=config, environment={}, overrides=[f"cluster.generation={generation}", override])
