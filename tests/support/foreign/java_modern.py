# SPDX-License-Identifier: Apache-2.0
"""Kafka's own producer, consumer and admin clients of 1.1.1, in a Java process that is told what to do."""

from __future__ import annotations

import json
import subprocess
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.foreign.client import PATIENCE_S, Answer, ForeignClient, Member, Record, Row, describe_group
from tests.support.kafka import compile_java, java_command

RELEASE: Final = "1.1.1"
_CLIENTS: Final = Path(__file__).parent / "java" / "ModernClients.java"
_MEMBER: Final = _CLIENTS.with_name("GroupMember.java")
"""Compiles against every release; the other one needs the admin client of 1.1."""


class JavaFailed(Exception):
    """What the Java client raised, or that it ended."""


def _command(release: str, source: Path, *arguments: str) -> list[str]:
    classes = compile_java(release, [source])
    return java_command(release, source.stem, *arguments, heap="128m", classes=classes, brisk=True)


class JavaMember:
    """A member of a group, by a release's KafkaConsumer: a process that prints what comes of it, into ``directory``."""

    def __init__(
        self, directory: Path, bootstrap: str, group: str, topic: str, name: str, *, release: str = RELEASE
    ) -> None:
        self._printed, self._said = (directory / f"{name}.{end}" for end in ("out", "err"))
        self._taken, self._assigned, self._commits = 0, set[int](), 0
        with self._printed.open("wb") as out, self._said.open("wb") as said:
            command = _command(release, _MEMBER, bootstrap, group, topic, name)
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=said)

    def poll(self) -> list[int]:
        """See Member."""
        try:
            code = self._process.wait(0.1)
        except subprocess.TimeoutExpired:
            return self._take()
        raise JavaFailed(f"the member ended with {code}: {self._said.read_text()[-2000:]}")

    def _take(self) -> list[int]:
        lines = self._printed.read_text().rpartition("\n")[0].splitlines()
        new, self._taken = lines[self._taken :], len(lines)
        numbers = []
        for line in new:
            what, _, rest = line.partition(" ")
            if what == "read":
                numbers.append(int(rest))
            elif what == "assigned":
                self._assigned = {int(one) for one in rest.split(",") if one}
        return numbers

    def assigned(self) -> set[int]:
        """See Member."""
        return self._assigned

    def commit(self) -> None:
        """See Member."""
        self._tell(b"commit\n")

    def close(self) -> None:
        """See Member."""
        try:
            if self._process.poll() is None:
                self._tell(b"leave\n")
                self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()


class JavaModern(ForeignClient):
    """KafkaProducer, KafkaConsumer, and both AdminClients: the one for topics, and the one of Kafka's group tool."""

    name = f"java-{RELEASE}"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._folder = tempfile.TemporaryDirectory(prefix="consumerd-java-")
        self._started: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """See ForeignClient."""
        if self._started is not None:
            self._started.kill()
            self._started.communicate()
            self._started = None
        self._folder.cleanup()

    def _ask(self, what: str, **arguments: Any) -> Any:
        """Raises JavaFailed."""
        if self._started is None:
            with (Path(self._folder.name) / "client.err").open("wb") as said:
                self._started = subprocess.Popen(
                    _command(RELEASE, _CLIENTS, self._bootstrap),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                )
        assert self._started.stdin is not None
        assert self._started.stdout is not None
        self._started.stdin.write(json.dumps({"ask": what, **arguments}).encode() + b"\n")
        self._started.stdin.flush()
        line = self._started.stdout.readline()
        answer = json.loads(line) if line else {"failed": (Path(self._folder.name) / "client.err").read_text()[-2000:]}
        if "failed" in answer:
            raise JavaFailed(answer["failed"])
        return answer["answer"]

    def produce(self, topic: str, codec: str, records: Sequence[Record], acks: str = "all") -> list[int]:
        """See ForeignClient."""
        return self._send(topic, records, {"compression.type": codec, "acks": acks})

    def produce_idempotently(self, topic: str, records: Sequence[Record]) -> list[int]:
        """See ForeignClient."""
        return self._send(topic, records, {"enable.idempotence": "true", "acks": "all"})

    def _send(self, topic: str, records: Sequence[Record], settings: Mapping[str, str]) -> list[int]:
        rows = [
            {
                "key": _encoded(one.key),
                "value": _encoded(one.value),
                "time": one.timestamp_ms,
                "headers": [[name, _encoded(value)] for name, value in one.headers],
            }
            for one in records
        ]
        offsets: list[int] = self._ask("produce", topic=topic, settings=settings, records=rows)
        return offsets

    def read(self, counts: Mapping[str, int]) -> dict[str, list[Row]]:
        """See ForeignClient."""
        return {topic: [_row(one) for one in rows] for topic, rows in self._ask("read", counts=counts).items()}

    def offsets(self, topic: str) -> list[int]:
        """See ForeignClient."""
        found: list[int] = self._ask("offsets", topic=topic)
        return found

    def offsets_at(self, topic: str, times_ms: Sequence[int]) -> list[list[int] | None]:
        """See ForeignClient."""
        found: list[list[int] | None] = self._ask("offsets_at", topic=topic, times=times_ms)
        return found

    def first_after_reset(self, topic: str, offset: int) -> int:
        """See ForeignClient."""
        return int(self._ask("first_after_reset", topic=topic, offset=offset))

    def metadata(self, topic: str) -> Answer:
        """See ForeignClient."""
        found = self._ask("metadata", topic=topic)
        return {name: sorted(value) if isinstance(value, list) else value for name, value in found.items()}

    def join(self, group: str, topic: str, name: str) -> Member:
        """See ForeignClient."""
        return JavaMember(Path(self._folder.name), self._bootstrap, group, topic, name)

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """See ForeignClient."""
        found = self._ask("committed", group=group, topic=topic)
        return {int(partition): offset for partition, offset in found.items()}

    def describe(self, group: str, topic: str) -> Answer:
        """See ForeignClient."""
        found = self._ask("describe", group=group)
        return describe_group(found["state"], found["protocol"], found["members"])

    def groups(self) -> list[str]:
        """See ForeignClient."""
        found: list[str] = self._ask("groups")
        return found

    def create_topic(self, topic: str, partitions: int) -> None:
        """See ForeignClient."""
        self._ask("create_topic", topic=topic, partitions=partitions)


def _encoded(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _row(one: list[Any]) -> Row:
    offset, key, value, time, headers = one
    return Row(
        offset=offset,
        key=_decoded(key),
        value=_decoded(value),
        timestamp_ms=time,
        headers=tuple((name, _decoded(data)) for name, data in headers),
    )
