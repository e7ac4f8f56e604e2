# SPDX-License-Identifier: Apache-2.0
"""What clients answered on real Kafka, how it compares with another run, and the table made of it.

``python -m tests.support.foreign.answers`` runs the script against a real 1.1.1 and writes down the answers, then against
the embedded broker and writes the table into ``docs/embedded.md``. Needs Kafka's jars, Java and kcat.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.embedded import EmbeddedProcess
from tests.support.foreign.aiokafka_client import Aiokafka
from tests.support.foreign.client import ForeignClient
from tests.support.foreign.java_modern import JavaModern
from tests.support.foreign.java_old import JavaOld
from tests.support.foreign.kafka_python import KafkaPython
from tests.support.foreign.kcat import Kcat
from tests.support.foreign.librdkafka import Librdkafka
from tests.support.foreign.script import CAPABILITIES, CODECS, Outcome, Outcomes, Script, shown_content, topic_of
from tests.support.kafka import Cluster

RELEASE: Final = "1.1.1"
"""The real Kafka."""

_ROOT: Final = Path(__file__).parents[3]
RECORDED: Final = _ROOT / "tests" / "vectors" / "answers" / f"clients-{RELEASE}.json"
DOCUMENT: Final = _ROOT / "docs" / "embedded.md"
_BEGIN: Final = "<!-- made by tests/support/foreign/answers.py -->\n"
_END: Final = "<!-- to here -->\n"

CLIENTS: Final[Mapping[str, Callable[[str, str], ForeignClient]]] = {
    "kafka-python": lambda bootstrap, _: KafkaPython(bootstrap),
    "aiokafka": lambda bootstrap, _: Aiokafka(bootstrap),
    "confluent-kafka": lambda bootstrap, _: Librdkafka(bootstrap),
    "kcat": lambda bootstrap, _: Kcat(bootstrap),
    "java-1.1.1": lambda bootstrap, _: JavaModern(bootstrap),
    "java-old-1.1.1": lambda bootstrap, zookeeper: JavaOld("1.1.1", bootstrap, zookeeper),
    "java-old-0.8.2.2": lambda bootstrap, zookeeper: JavaOld("0.8.2.2", bootstrap, zookeeper),
}
"""By name, each made from the addresses of broker and ZooKeeper."""

LACKING: Final = {
    "kafka-python": KafkaPython.lacks,
    "aiokafka": Aiokafka.lacks,
    "confluent-kafka": Librdkafka.lacks,
    "kcat": Kcat.lacks,
    "java-1.1.1": JavaModern.lacks,
    "java-old-1.1.1": JavaOld.lacks,
    "java-old-0.8.2.2": JavaOld.lacks,
}
"""What each cannot write."""

OF_0_8: Final = frozenset({"java-old-0.8.2.2"})
"""Those for which the embedded broker passes for 0.8.2."""
NOT_JAVA: Final = ("kafka-python", "aiokafka", "confluent-kafka", "kcat")

DIFFERENT: Final[Mapping[str, str]] = {}
"""What is meant to fail on the embedded broker, and why."""


@contextlib.contextmanager
def staged(
    names: Iterable[str], bootstrap: str, zookeeper: str, api_version: tuple[int, ...] | None = None
) -> Iterator[Script]:
    """Have clients on a cluster that is there, and what they write written."""
    with contextlib.ExitStack() as stack:
        reference = KafkaPython(bootstrap, api_version)
        clients = [CLIENTS[name](bootstrap, zookeeper) for name in names]
        for client in (reference, *clients):
            stack.callback(client.close)
        script = Script(zookeeper, clients, reference)
        script.write()
        yield script


@contextlib.contextmanager
def staged_on_embedded(names: Sequence[str], directory: Path) -> Iterator[Script]:
    """Have clients on an embedded broker of their own."""
    old = OF_0_8.issuperset(names)
    with (
        EmbeddedProcess(directory, "--as-release", "0.8.2" if old else "1.1") as broker,
        staged(names, broker.bootstrap, broker.zookeeper, (0, 8, 2) if old else None) as script,
    ):
        yield script


# -- comparison


def recorded() -> dict[str, Outcomes]:
    """Return what clients answered on real Kafka."""
    answers: dict[str, Outcomes] = json.loads(RECORDED.read_text())
    return answers


def differences(expected: Outcomes, actual: Outcomes) -> list[str]:
    """Return what differs, one line each; where topics are read, those are compared that are in both."""
    lines = []
    for capability in CAPABILITIES:
        for where, one, other in _walk(expected.get(capability), actual.get(capability), ""):
            lines.append(f"{capability}{where}: expected {one}, got {other}")
    return lines


def _walk(one: Any, other: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict) and (_are_topics(one, other) or one.keys() == other.keys()):
        for key in one.keys() & other.keys():
            yield from _walk(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (first, second) in enumerate(zip(one, other, strict=True)):
            yield from _walk(first, second, f"{where}[{number}]")
    elif one != other:
        yield where, one, other


def _are_topics(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether these are the records by topic; a run has the topics of the clients that take part in it."""
    topics = {topic_of(name, codec) for name in CLIENTS for codec in CODECS}
    return bool(one.keys() & other.keys()) and topics.issuperset(one.keys() | other.keys())


def not_as_sent(outcomes: Outcomes) -> list[str]:
    """Return the topics whose records a client has not read with the keys and values that were sent, in order."""
    wrong = []
    for codec in CODECS:
        for topic, rows in outcomes[f"read with {codec}"]["answer"].items():
            lacking = LACKING[topic.removesuffix(f"-{codec}")]
            if [row[:3] for row in rows] != [[n, *one] for n, one in enumerate(shown_content(lacking))]:
                wrong.append(topic)
    return wrong


def without_allowed(lines: Iterable[str]) -> list[str]:
    """Return the differences that are not allowed."""
    return [line for line in lines if line.partition(":")[0].partition(".")[0] not in DIFFERENT]


# -- the table


def column(expected: Outcomes, actual: Outcomes) -> dict[str, str]:
    """Return a client's cells by capability: what it can do on real Kafka, and whether the embedded broker lets it."""
    return {capability: _cell(expected[capability], actual[capability]) for capability in CAPABILITIES}


def _cell(expected: Outcome, actual: Outcome) -> str:
    if "not offered" in expected:
        return "-"
    return "yes" if not list(_walk(expected, actual, "")) else "no"


def documented() -> dict[str, dict[str, str]]:
    """Return the table of the document, a column a client."""
    table = DOCUMENT.read_text().partition(_BEGIN)[2].partition(_END)[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    head, _, *body = rows
    return {name: {row[0]: row[number] for row in body} for number, name in enumerate(head) if name}


def render(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table, and the reasons for what is "no"."""
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {one} | " + " | ".join(cells[one] for cells in columns.values()) + " |" for one in CAPABILITIES]
    reasons = (f"- *{capability}*: {reason}." for capability, reason in DIFFERENT.items())
    return "\n".join((*lines, "", *(textwrap.fill(one, 140, subsequent_indent="  ") for one in reasons), ""))


def _write_table(columns: Mapping[str, Mapping[str, str]]) -> None:
    before, _, rest = DOCUMENT.read_text().partition(_BEGIN)
    DOCUMENT.write_text(f"{before}{_BEGIN}{render(columns)}{_END}{rest.partition(_END)[2]}")


def main() -> None:
    """Write down what real Kafka answers, and the table of what the embedded broker does."""
    with Cluster(RELEASE) as cluster, staged(CLIENTS, cluster.bootstrap, cluster.zookeeper) as script:
        answers = {name: script.run(name) for name in CLIENTS}
    for name, outcomes in answers.items():
        for capability, outcome in outcomes.items():
            if "failed" in outcome:
                sys.exit(f"{name}, {capability}: {outcome['failed']}")
    lines = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"{json.dumps(one)}: {json.dumps(outcomes[one], ensure_ascii=False)}" for one in CAPABILITIES)
        + "\n}"
        for name, outcomes in answers.items()
    ]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    columns: dict[str, dict[str, str]] = {}
    for names in ([name for name in CLIENTS if name not in OF_0_8], sorted(OF_0_8)):
        with tempfile.TemporaryDirectory() as folder, staged_on_embedded(names, Path(folder) / "embedded") as script:
            columns |= {name: column(answers[name], script.run(name)) for name in names}
    _write_table(columns)


if __name__ == "__main__":
    main()
