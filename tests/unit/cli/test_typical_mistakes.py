# SPDX-License-Identifier: Apache-2.0
"""Typical mistakes in settings, each through ``check-config``: one message, with the key, its place, and what to write.

A mistake in one value is made in each way in which the value can be given: in the file, by a variable, by ``--set``.
Mistakes that take more than one value are in ``typical_mistakes.txt``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumerd.cli.main import main
from consumerd.config.load import load_job_settings
from consumerd.errors import ConfigError

GOOD = {
    "cluster": {"zookeeper": "zk:2181"},
    "group": {"id": "lake"},
    "subscriptions": [{"topics": ["orders"], "sink": "lake"}],
    "sinks": {"lake": {"type": "parquet", "path": "/tmp/consumerd-no-such-folder"}},
}
HEAD = """\
cluster: {zookeeper: "zk:2181"}
group: {id: lake}
"""
ORDERS = "subscriptions: [{topics: [orders], sink: lake}]\n"
LAKE = "sinks: {lake: {type: 'null'}}\n"
MARK = "# <-"

Check = Callable[..., tuple[int, str, list[str]]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Check:
    """Runs ``check-config``; returns exit code, stdout and the lines of stderr."""

    def run(
        *options: str, file: str | None = None, variables: Mapping[str, str] | None = None
    ) -> tuple[int, str, list[str]]:
        arguments = ["check-config", *options]
        if file is not None:
            (tmp_path / "config.yaml").write_text(file)
            arguments += ["--config", str(tmp_path / "config.yaml")]
        for variable, value in (variables or {}).items():
            monkeypatch.setenv(variable, value)
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err.splitlines()

    return run


@dataclass(frozen=True, kw_only=True)
class Value:
    """A mistake in one value; ``key`` is where, ``says`` what the message tells to write."""

    key: str
    value: str
    says: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


VALUES = [
    Value(key="cluster.zookeeper", value="a:2181/c,b:2181/c", says="write a:2181,b:2181/c"),
    Value(key="cluster.zookeeper", value="http://zk:2181", says="expected host:port without a scheme"),
    Value(key="cluster.zookeeper", value="zk:99999", says="write 1 to 65535"),
    Value(key="cluster.zookeeper", value="zk,zk:2181", says="name each once"),
    Value(key="cluster.zookeeper", value="/kafka", says="expected host:port,host:port/chroot"),
    Value(key="cluster.broker_version", value="2.x", says="expected auto or a release from 0.8 on, such as 0.8.2"),
    Value(key="cluster.generation", value="0.7", says="expected auto, legacy or modern"),
    Value(key="cluster.client_id", value="my client", says="use ASCII letters, digits"),
    Value(key="cluster.tls.ca_file", value="/etc/ca.pem", says="write enabled: true, or remove ca_file"),
    Value(key="cluster.tls.check_hostname", value="false", says="write enabled: true, or remove check_hostname"),
    Value(key="cluster.connect_timeout_ms", value="6 parsecs", says="500ms, 60s, 5m, 1h or 7d"),
    Value(key="cluster.request_timeout_ms", value="30d", says="expected at most 2147483647"),
    Value(key="cluster.metadata_backoff_ms", value="60s", says="expected at most 10000"),
    Value(key="group.id", value="my group", says="use ASCII letters, digits"),
    Value(key="group.streams", value="many", says="expected a whole number, got 'many'"),
    Value(key="group.streams", value="true", says="expected a whole number, got true"),
    Value(key="group.streams", value="0", says="expected at least 1"),
    Value(key="group.assignor", value="roundrobin", says="expected range, roundrobin-0.8 or roundrobin-1.0"),
    Value(key="group.assignor", value="sticky", says="expected range, roundrobin, roundrobin-0.8 or roundrobin-1.0"),
    Value(key="group.heartbeat_interval_ms", value="1s", says="only brokers are sent heartbeats"),
    Value(key="group.rebalance_timeout_ms", value="never", says="500ms, 60s, 5m, 1h or 7d"),
    Value(key="group.session_timeout_ms", value="6", says="expected at least 1000"),
    Value(key="group.consumer_id", value="pod/1", says="use ASCII letters, digits"),
    Value(key="group.membership", value="kafka", says="needs offsets.storage: kafka"),
    Value(key="group.membership", value="broker", says="expected zookeeper or kafka"),
    Value(key="rebalance.drain_timeout_ms", value="7s", says="a Java member of the group gives up after 6 s"),
    Value(key="shutdown.timeout_ms", value="3s", says="must exceed rebalance.drain_timeout_ms"),
    Value(key="offsets.on_missing", value="smallest", says="did you mean earliest?"),
    Value(key="offsets.on_below", value="nearset", says="did you mean nearest?"),
    Value(key="offsets.storage", value="broker", says="expected zookeeper or kafka"),
    Value(key="offsets.commit_interval_ms", value="-5", says="expected more than 0"),
    Value(key="fetch.memory_budget_bytes", value="512m", says="write 512MiB (powers of 1024) or 512MB (of 1000)"),
    Value(key="fetch.memory_budget_bytes", value="lots", says="such as 64KiB, 256MiB or 64MB"),
    Value(key="fetch.memory_budget_bytes", value="1MiB", says="must be at least max_partition_bytes (8388608)"),
    Value(key="fetch.max_message_bytes", value="1KiB", says="must be at least max_partition_bytes (8388608)"),
    Value(key="fetch.max_partition_bytes", value="4GiB", says="expected at most 2147483647"),
    Value(key="fetch.max_wait_ms", value="1m", says="must be below cluster.request_timeout_ms (30000)"),
    Value(key="fetch.min_bytes", value="1GiB", says="must be at most max_partition_bytes (8388608)"),
    Value(key="fetch.on_corrupt", value="quarantine", says="set quarantine.path"),
    Value(key="fetch.on_oversized", value="drop", says="did you mean skip?"),
    Value(key="fetch.isolation", value="committed", says="expected read_uncommitted or read_committed"),
    Value(key="fetch.max_bytes", value="1000", says="there is isolation, max_message_bytes"),
    Value(key="http.listen", value="0.0.0.0:99999", says="write 1 to 65535"),
    Value(key="http.listen", value="9309", says="0.0.0.0:9309"),
    Value(key="http.listen", value="http://0.0.0.0:9309", says="expected host:port without a scheme"),
    Value(key="http.listen", value="localhost", says="expected host:port, such as 0.0.0.0:9309, or off"),
    Value(key="log.level", value="INFO", says="did you mean info?"),
    Value(key="log.format", value="text", says="did you mean console?"),
    Value(key="quarantine.path", value="~/quarantine", says="write the whole path"),
    Value(key="quarantine.path", value="$HOME/quarantine", says="write the whole path"),
    Value(
        key="quarantine.path",
        value="s3://bucket/quarantine",
        says="expected a path of a mounted file system, not a URL",
    ),
    Value(key="sinks.lake.type", value="parqet", says="did you mean parquet?"),
    Value(key="sinks.lake.path", value="~/landing", says="write the whole path"),
    Value(key="sinks.lake.roll_ms", value="fast", says="500ms, 60s, 5m, 1h or 7d"),
    Value(key="sinks.lake.roll_bytes", value="128M", says="write 128MiB (powers of 1024) or 128MB (of 1000)"),
    Value(key="sinks.lake.compression", value="gzip", says="expected zstd, snappy or none"),
    Value(key="sinks.lake.memory_share", value="0", says="expected at least 1"),
    Value(key="sinks.lake.on_rejected", value="ignore", says="did you mean skip?"),
    Value(key="sinks.lake.colour", value="red", says="unknown key; there is compression, compression_level"),
    Value(key="sinks.lake.rol_ms", value="60s", says="did you mean roll_ms?"),
    Value(key="pipeline.path", value="''", says="is empty"),
    Value(key="pipeline.path", value="s3a://bucket/lake", says="expected a folder of a mounted file system, not a URL"),
    Value(key="pipeline.replay.topic", value="my topic", says="use up to 249 ASCII letters"),
    Value(key="pipeline.replay.target", value="a/b", says="use up to 249 ASCII letters"),
    Value(key="pipeline.bronze.compression", value="gzip", says="expected zstd, snappy or none"),
    Value(key="pipeline.bronze.commit_bytes", value="2G", says="write 2GiB (powers of 1024) or 2GB (of 1000)"),
    Value(key="pipeline.compact.min_files", value="1", says="expected at least 2"),
    Value(key="pipeline.compact.keep", value="7d", says="did you mean keep_ms?"),
    Value(key="pipeline.stats.distinct_error", value="2", says="expected less than 0.4"),
    Value(key="pipeline.retention.silver_ms", value="30d", says="must not be below bronze_ms"),
    Value(key="pipeline.replay.start_offset", value="5", says="give partition, too"),
    Value(key="pipeline.replay.start_time", value="yesterday", says="such as 2026-03-01T12:00:00Z"),
    Value(key="pipeline.replay.reason", value="late", says="goes with source: quarantine"),
    Value(key="pipeline.erase.where_in", value="silver", says="goes with where"),
    Value(key="pipeline.erase.key_hex", value="xy", says="pairs of hexadecimal digits, such as 00ff"),
    Value(key="pipeline.metrics.push_gateway", value="gateway:9091", says="such as http://pushgateway:9091"),
    Value(key="pipeline.spark.driver_memory", value="lots", says="such as 512m or 2g"),
]


def write_file(key: str, value: object) -> tuple[str, int]:
    """Return a file in which ``key`` has a value, and the line of the key."""
    sections: dict[str, Any] = copy.deepcopy(GOOD)
    at = sections
    *parts, last = key.split(".")
    for part in parts:
        at = at.setdefault(part, {})
    at[last] = value
    text = yaml.safe_dump(sections, sort_keys=False)
    lines = text.splitlines()
    line = 0
    for depth, part in enumerate(key.split(".")):
        line = next(number for number in range(line, len(lines)) if lines[number].startswith(f"{'  ' * depth}{part}:"))
    return text, line + 1


def assert_one(code: int, err: Sequence[str], key: str, place: str, says: str) -> None:
    assert 2 == code
    (message,) = err
    assert message.startswith(f"consumerd: {key}: "), message
    assert place in message
    assert says in message


@pytest.mark.parametrize("mistake", VALUES, ids=str)
def test_a_mistake_in_the_file_is_one_message_with_its_line(mistake: Value, check: Check) -> None:
    """The file is where most settings are."""
    text, line = write_file(mistake.key, yaml.safe_load(mistake.value))
    code, _, err = check(file=text)

    assert_one(code, err, mistake.key, f"config.yaml, line {line}", mistake.says)


@pytest.mark.parametrize("mistake", VALUES, ids=str)
def test_a_mistake_by_set_is_one_message_with_its_option(mistake: Value, check: Check) -> None:
    """A try by hand; quotes are the shell's."""
    code, _, err = check(f"--set={mistake.key}={mistake.value}", file=yaml.safe_dump(GOOD))

    assert_one(code, err, mistake.key, f"--set {mistake.key}", mistake.says)


@pytest.mark.parametrize("mistake", VALUES, ids=str)
def test_a_mistake_by_the_environment_is_one_message_with_its_variable(mistake: Value, check: Check) -> None:
    """A deployment's template."""
    variable = f"CONSUMERD_{mistake.key.replace('.', '__').upper()}"
    code, _, err = check(file=yaml.safe_dump(GOOD), variables={variable: mistake.value})

    assert_one(code, err, mistake.key, f"environment variable {variable}", mistake.says)


@pytest.mark.parametrize("mistake", [one for one in VALUES if one.key.startswith("pipeline.")], ids=str)
def test_jobs_refuse_the_same_in_the_same_words(mistake: Value, tmp_path: Path) -> None:
    """consumerd-spark reads the file, too, perhaps a newer one than the daemon's."""
    text, line = write_file(mistake.key, yaml.safe_load(mistake.value))
    path = tmp_path / "config.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        load_job_settings(config=path, environment={})
    assert_one(2, [f"consumerd: {caught.value}"], mistake.key, f"config.yaml, line {line}", mistake.says)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class File:
    """A mistake that takes more than one value. ``{folder}`` in it is a folder with a few files."""

    name: str
    text: str
    key: str
    says: str

    def __str__(self) -> str:
        return self.name


def read_files() -> list[File]:
    text = (Path(__file__).parent / "typical_mistakes.txt").read_text()
    found = []
    for block in text.split("=== ")[1:]:
        head, _, file = block.partition("---\n")
        name, key, says = head.splitlines()
        found.append(
            File(name=name, key=key.removeprefix("key: "), says=says.removeprefix("says: "), text=f"{file.rstrip()}\n")
        )
    return found


@pytest.mark.parametrize("mistake", read_files(), ids=str)
def test_a_mistake_that_takes_more_is_one_message_with_its_line(mistake: File, check: Check, tmp_path: Path) -> None:
    """Combinations, lists, files and folders."""
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "file").write_text("nothing of use\n")
    (folder / "file").chmod(0o644)
    (folder / "secret").write_text("nothing of use\n")
    (folder / "secret").chmod(0o600)
    line = next(number for number, text in enumerate(mistake.text.splitlines(), 1) if text.endswith(MARK))
    code, _, err = check(file=mistake.text.replace("{folder}", str(folder)))

    (message,) = err
    assert 2 == code
    assert message.startswith(f"consumerd: {mistake.key}: ")
    assert str(line) in message.partition("lines ")[2] or f"config.yaml, line {line}" in message
    assert mistake.says in message


def test_a_path_that_the_system_refuses_is_a_message(check: Check) -> None:
    """Not a traceback."""
    path = f"/{'x' * 300}"
    text = f"{HEAD}{ORDERS}sinks: {{lake: {{type: jsonl, path: {path}}}}}\nquarantine: {{path: {path}/q}}\n"
    code, _, err = check(file=f"{text}fetch: {{on_corrupt: quarantine}}\n")

    assert 2 == code
    assert ["consumerd: sinks.lake.path", "consumerd: quarantine.path"] == [one.partition(": /")[0] for one in err]
    assert all("cannot be looked at: File name too long" in one for one in err)


@dataclass(frozen=True, kw_only=True)
class Other:
    """A mistake that only one source can have."""

    name: str
    says: str
    file: str | None = f"{HEAD}{ORDERS}{LAKE}"
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


NO_ID = f"cluster: {{zookeeper: zk}}\n{ORDERS}{LAKE}"
SECRET = "CONSUMERD_CLUSTER__ZOOKEEPER_AUTH__CREDENTIAL"
OTHERS = [
    Other(
        name="one-underscore",
        file=NO_ID,
        variables={"CONSUMERD_GROUP_ID": "lake"},
        says="environment variable CONSUMERD_GROUP_ID: it names no setting; did you mean CONSUMERD_GROUP__ID?",
    ),
    Other(
        name="one-underscore-below",
        variables={"CONSUMERD_CLUSTER_TLS_ENABLED": "true"},
        says="did you mean CONSUMERD_CLUSTER__TLS__ENABLED?",
    ),
    Other(
        name="one-of-two-underscores",
        variables={"CONSUMERD_PIPELINE__BRONZE_PATH": "/x"},
        says="pipeline.bronze_path: unknown key; did you mean bronze",
    ),
    Other(
        name="variable-misspelled",
        variables={"CONSUMERD_HTTP_LISTN": "off"},
        says="did you mean CONSUMERD_HTTP__LISTEN?",
    ),
    Other(
        name="variable-without-section",
        file=f"group: {{id: lake}}\n{ORDERS}{LAKE}",
        variables={"CONSUMERD_ZOOKEEPER": "zk:2181"},
        says="environment variable CONSUMERD_ZOOKEEPER: it names no setting; did you mean CONSUMERD_CLUSTER__ZOOKEEPER?",
    ),
    Other(
        name="variable-without-its-first-section",
        variables={"CONSUMERD_TLS__CA_FILE": "/x"},
        says="CONSUMERD_TLS__CA_FILE: it names no setting; did you mean CONSUMERD_CLUSTER__TLS__CA_FILE?",
    ),
    Other(
        name="variable-without-a-section-between",
        variables={"CONSUMERD_CLUSTER__CA_FILE": "/x"},
        says="cluster.ca_file: unknown key; did you mean cluster.tls.ca_file?",
    ),
    Other(
        name="variable-by-another-name",
        variables={"CONSUMERD_BOOTSTRAP_SERVERS": "kafka:9092"},
        says="did you mean CONSUMERD_CLUSTER__ZOOKEEPER?",
    ),
    Other(
        name="section-misspelled",
        variables={"CONSUMERD_GRUOP__ID": "x"},
        says="gruop: unknown key; did you mean group?",
    ),
    Other(
        name="sink-without-folder",
        options=("--topics", "orders", "--sink", "parquet"),
        file=HEAD,
        says="sinks.parquet.path: missing; give --sink parquet=FOLDER",
    ),
    Other(
        name="empty-variable",
        variables={"CONSUMERD_GROUP__ID": ""},
        says="group.id: is empty: write a value (environment variable CONSUMERD_GROUP__ID)",
    ),
    Other(
        name="variable-in-two-cases",
        variables={"CONSUMERD_GROUP__ID": "a", "consumerd_group__id": "b"},
        says="by environment variable CONSUMERD_GROUP__ID and by environment variable consumerd_group__id: unset one",
    ),
    Other(
        name="default-misspelled",
        variables={"CONSUMERD_DEFAULT__HTTP__LISTN": "off"},
        says="http.listn: unknown key; did you mean listen?",
    ),
    Other(
        name="credential-without-user",
        variables={SECRET: "only-a-password"},
        says=f"the environment variable {SECRET} does not hold user:password",
    ),
    Other(name="set-without-value", options=("--set", "group.id"), says="--set group.id: expected section.key=value"),
    Other(name="set-empty", options=("--set", "group.id="), says="group.id: is empty: write a value (--set group.id)"),
    Other(
        name="set-in-a-list",
        options=("--set", "subscriptions.0.sink=sea"),
        says="subscriptions: a list is set as a whole",
    ),
    Other(name="set-a-list-that-is-none", options=("--set", "pipeline.landing.topics=orders"), says="write [orders]"),
    Other(
        name="set-no-yaml",
        options=("--set", "pipeline.landing.topics=[a"),
        says="pipeline.landing.topics: the value is not YAML: quote it (--set pipeline.landing.topics)",
    ),
    Other(
        name="set-a-credential",
        options=("--set", "cluster.zookeeper_auth.credential=u:p"),
        says="secrets come from a file (credential_file) or from the environment only",
    ),
    Other(
        name="tab", file="cluster:\n\tzookeeper: zk\n", says="config.yaml, line 2: not YAML: a tab: indent with spaces"
    ),
    Other(
        name="comma-in-a-number",
        file=f"{HEAD}{ORDERS}{LAKE}offsets: {{commit_interval_ms: 5,000}}\n",
        says="a comma within { } separates keys",
    ),
    Other(
        name="null-as-name",
        file=f"{HEAD}{ORDERS}sinks: {{null: {{type: stdout}}}}\n",
        says="expected a name, got nothing: put it in quotes",
    ),
    Other(
        name="list-as-key",
        file=f"{HEAD}{ORDERS}{LAKE}fetch: {{[a]: 5}}\n",
        says="line 5: not YAML: a key that is a list or has keys itself: write a name",
    ),
    Other(
        name="two-documents",
        file=f"{HEAD}---\n{ORDERS}",
        says="config.yaml, line 3: not YAML: a second document begins here (---)",
    ),
    Other(
        name="list-of-sections",
        file="- cluster: {zookeeper: zk}\n",
        says="expected sections (cluster:, group:, ...), got list",
    ),
    Other(name="alias-in-itself", file="cluster: &a\n  tls: *a\n", says="line 1: not YAML that can be read: an alias"),
    Other(name="number-as-section", file=f"{HEAD}{ORDERS}{LAKE}1: x\n", says="expected the name of a section, got 1 ("),
    Other(
        name="credential-in-the-file",
        file=f"{HEAD}{ORDERS}{LAKE}".replace('181"', '181", zookeeper_auth: {credential: "u:p"}'),
        says="line 1: cluster.zookeeper_auth.credential: secrets come from a file",
    ),
    Other(
        name="password-in-the-file",
        file=f"{HEAD}{ORDERS}{LAKE}".replace(
            '181"', '181", sasl: {mechanism: SCRAM-SHA-256, username: a, password: "u:p"}'
        ),
        says="line 1: cluster.sasl.password: secrets come from a file (password_file) or from the environment only",
    ),
]


@pytest.mark.parametrize("mistake", OTHERS, ids=str)
def test_a_mistake_of_one_source_is_one_message(mistake: Other, check: Check) -> None:
    """Variables, options, and files that are no settings at all."""
    code, _, err = check(*mistake.options, file=mistake.file, variables=mistake.variables)

    (message,) = err
    assert 2 == code
    assert mistake.says in message
    assert "u:p" not in message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("security.protocol=TLS", "expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, PLAINTEXTSASL, SASL_SSL"),
        ("sasl.mechanism=PLAIN", "sasl.mechanism has no effect without security.protocol=SASL_PLAINTEXT or SASL_SSL"),
        ("zookeeper.connect=b:2181", "zookeeper.connect is given twice, here and in line 1"),
        ("zookeeper.session.timeout.ms=6s", "expected a whole number of milliseconds, without a unit"),
        ("auto.offset.reset=earliest", "expected smallest or largest"),
        ("enable.auto.commit=false", "write auto.commit.enable=true, or remove it"),
        ("fetch.size=1", "write all names as the brokers' generation has them"),
        ("rebalance.max.retry=4", "did you mean rebalance.max.retries?"),
        ("dual.commit.enabled=yes", "expected true or false"),
        ("partition.assignment.strategy=roundrobin", "set group.assignor to roundrobin-0.8 or roundrobin-1.0"),
    ],
)
def test_a_mistake_in_properties_is_one_message_with_its_line(
    line: str, says: str, check: Check, tmp_path: Path
) -> None:
    """The Java consumer's own file."""
    path = tmp_path / "consumer.properties"
    path.write_text(f"zookeeper.connect=zk:2181\ngroup.id=lake\n{line}\n")
    code, _, err = check("--properties", str(path), "--topics=orders")

    (message,) = err
    assert 2 == code
    assert f"consumer.properties, line 3: {line.partition('=')[0]}" in message
    assert says in message


def test_a_value_of_properties_that_cannot_be_has_the_line_of_its_key(check: Check, tmp_path: Path) -> None:
    """What Java takes as a number may still be out of range here."""
    path = tmp_path / "consumer.properties"
    path.write_text("zookeeper.connect=zk:2181/a,zk2:2181/a\ngroup.id=lake\nzookeeper.session.timeout.ms=6\n")
    code, _, err = check("--properties", str(path), "--topics=orders")

    assert 2 == code
    assert ["1", "3"] == [message.rpartition("line ")[2].rstrip(")") for message in err]


WARNINGS = [
    ("sink-not-used", "sinks.sea", "sinks:\n  lake: {type: 'null'}\n  sea: {type: stdout} # <-\n", {}),
    (
        "folder-without-owner",
        "sinks.lake.shared",
        "sinks:\n  lake:\n    type: jsonl\n    path: /none\n    shared: false # <-\n",
        {},
    ),
    ("roll-very-short", "sinks.lake.roll_ms", "sinks:\n  lake: {type: jsonl, path: /none, roll_ms: 60} # <-\n", {}),
    (
        "roll-very-small",
        "sinks.lake.roll_bytes",
        "sinks:\n  lake: {type: jsonl, path: /none, roll_bytes: 128} # <-\n",
        {},
    ),
    ("memory-below-message", "fetch.max_message_bytes", f"{LAKE}fetch: {{max_message_bytes: 128MiB}} # <-\n", {}),
    ("limit-cut", "fetch.max_partition_bytes", f"{LAKE}fetch: {{max_partition_bytes: 32MiB}} # <-\n", {}),
    ("memory-below-message", "fetch.memory_budget_bytes", f"{LAKE}fetch: {{memory_budget_bytes: 16MiB}} # <-\n", {}),
    ("quarantine-not-used", "quarantine.path", f"{LAKE}quarantine: {{path: /none}} # <-\n", {}),
    (
        "topic-resembles",
        "pipeline.silver.topics.order",
        f"{LAKE}pipeline: {{silver: {{topics: {{order: {{}}}}}}}} # <-\n",
        {},
    ),
    (
        "port-of-broker",
        "cluster.zookeeper",
        f"{LAKE}",
        {"CONSUMERD_CLUSTER__ZOOKEEPER": "zk:2181,kafka1:9092/kafka"},
    ),
    ("variable-unknown", "environment variable CONSUMERD_FAVOURITE", LAKE, {"CONSUMERD_FAVOURITE": "x"}),
    ("variable-unknown", "environment variable CONSUMERD_UVLOOP", LAKE, {"CONSUMERD_UVLOOP": "false"}),
    ("variable-unknown", "environment variable CONSUMERD_KERNEL", LAKE, {"CONSUMERD_KERNEL": "0"}),
]


def test_a_limit_that_each_sink_s_part_of_the_memory_cuts_is_told_where_it_was_set(check: Check) -> None:
    """Each part must hold the copies of a message. The default limit is nobody's wish, and a build goes on."""
    text = (
        f"{HEAD}subscriptions: [{{topics: [a], sink: x}}, {{topics: [b], sink: y}}, {{topics: [c], sink: z}}]\n"
        "sinks: {x: {type: 'null'}, y: {type: 'null'}, z: {type: 'null'}}\n"
    )
    code, _, err = check("--strict", file=text)
    assert (0, []) == (code, err)

    code, _, err = check("--strict", file=f"{text}fetch: {{max_message_bytes: 32MiB}} {MARK}\n")
    (message,) = err
    assert 1 == code
    assert "268435456 bytes, shared by 3 sinks, holds the copies of a message of 22369621 bytes at most" in message
    assert "set fetch.memory_budget_bytes to 402653186" in message
    assert "config.yaml, line 5" in message
    assert [] == check(file=f"{text}fetch: {{max_message_bytes: 32MiB, memory_budget_bytes: 402653186}}\n")[2]


@pytest.mark.parametrize(("name", "key", "rest", "variables"), WARNINGS, ids=[f"{one[0]}:{one[1]}" for one in WARNINGS])
def test_what_works_and_is_hardly_meant_is_a_named_warning(
    name: str, key: str, rest: str, variables: Mapping[str, str], check: Check
) -> None:
    """A warning is no reason to stay down, unless a pipeline says so."""
    text = f"{HEAD}{ORDERS}{rest}"
    code, out, err = check(file=text, variables=variables)

    (message,) = err
    assert 0 == code
    assert "the settings are valid" in out
    assert message.startswith(f"consumerd: warning: {key}")
    assert message.endswith(f"[{name}]")
    for number, line in enumerate(text.splitlines(), 1):
        assert not line.endswith(MARK) or f"config.yaml, line {number}" in message
    assert 1 == check("--strict", file=text, variables=variables)[0]


def test_variables_that_are_meant_for_others_are_left_alone(check: Check) -> None:
    """Kubernetes sets these in each pod beside a Service named consumerd."""
    links = {
        "CONSUMERD_SERVICE_HOST": "10.0.0.1",
        "CONSUMERD_SERVICE_PORT": "9309",
        "CONSUMERD_SERVICE_PORT_HTTP": "9309",
        "CONSUMERD_PORT": "tcp://10.0.0.1:9309",
        "CONSUMERD_PORT_9309_TCP": "tcp://10.0.0.1:9309",
        "CONSUMERD_PORT_9309_TCP_ADDR": "10.0.0.1",
        "CONSUMERD_METRICS_SERVICE_HOST": "10.0.0.2",
    }

    assert (0, []) == check(file=f"{HEAD}{ORDERS}{LAKE}", variables=links)[::2]


def test_switches_that_are_off_or_on_are_no_warning(check: Check) -> None:
    """What a variable says is what happens."""
    switches = {"CONSUMERD_KERNEL": "OFF", "CONSUMERD_UVLOOP": "on", "CONSUMERD_JAVA": "/usr/bin/java"}

    assert (0, []) == check(file=f"{HEAD}{ORDERS}{LAKE}", variables=switches)[::2]
