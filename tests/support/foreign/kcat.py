# SPDX-License-Identifier: Apache-2.0
"""kcat, a program on librdkafka: Debian's."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.foreign.client import PATIENCE_S, Answer, ForeignClient, Member, Part, Record, Row
from tests.support.programs import ProgramFailed
from tests.support.tools import require_tool


class KcatMember:
    """``kcat -G``: prints what it reads, and its partitions on stderr; commits by itself, and when it ends."""

    def __init__(self, command: Sequence[str], directory: Path, name: str) -> None:
        self._numbers = directory / f"{name}.numbers"
        self._said = directory / f"{name}.said"
        self._taken = 0
        with self._numbers.open("wb") as out, self._said.open("wb") as said:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=said)

    def poll(self) -> list[int]:
        """See Member."""
        try:
            code = self._process.wait(0.1)
        except subprocess.TimeoutExpired:
            lines = self._numbers.read_bytes().rpartition(b"\n")[0].split()
            new, self._taken = lines[self._taken :], len(lines)
            return [int(line) for line in new]
        raise RuntimeError(f"kcat ended with {code}: {self._said.read_text()[-1000:]}")

    def assigned(self) -> set[int]:
        """See Member."""
        for line in reversed(self._said.read_text().splitlines()):
            found = re.search(r"rebalanced \(memberid .*?\): (assigned|revoked)?:?(.*)", line)
            if found is not None:
                return {int(one) for one in re.findall(r"\[(\d+)\]", found[2])} if found[1] == "assigned" else set()
        return set()

    def commit(self) -> None:
        """See Member."""

    def close(self) -> None:
        """See Member."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()


class Kcat(ForeignClient):
    """kcat's modes: produce, consume, query, list, and member of a group."""

    name = "kcat"
    lacks = frozenset({Part.TIMES, Part.EMPTY})

    def __init__(self, bootstrap: str) -> None:
        # no settings file of the user's
        self._kcat = [require_tool("kcat", "kcat"), "-F", "/dev/null", "-b", bootstrap]
        self._folder = tempfile.TemporaryDirectory(prefix="consumerd-kcat-")

    def close(self) -> None:
        """See ForeignClient."""
        self._folder.cleanup()

    def _run(self, *arguments: str, stdin: bytes = b"") -> str:
        done = subprocess.run(
            [*self._kcat, *arguments], input=stdin, capture_output=True, timeout=PATIENCE_S, check=False
        )
        if done.returncode != 0:
            raise ProgramFailed(f"kcat {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-1000:]!r}")
        return done.stdout.decode()

    def produce(self, topic: str, codec: str, records: Sequence[Record], acks: str = "all") -> None:
        """See ForeignClient."""
        return self._send(topic, records, "-z", codec, "-X", f"acks={acks}")

    def produce_idempotently(self, topic: str, records: Sequence[Record]) -> list[int]:
        """See ForeignClient."""
        self._send(topic, records, "-X", "enable.idempotence=true", "-X", "message.timeout.ms=5000")
        return self.offsets(topic)

    def _send(self, topic: str, records: Sequence[Record], *arguments: str) -> None:
        # what is null is given as empty
        lines = b"".join(b"%b\t%b\n" % (one.key or b"", one.value or b"") for one in records)
        headers = [
            word
            for name, value in records[0].headers
            for word in ("-H", name if value is None else f"{name}={value.decode()}")
        ]
        self._run("-P", "-t", topic, "-p", "0", "-K", "\t", "-Z", *headers, *arguments, stdin=lines)

    def read(self, counts: Mapping[str, int]) -> dict[str, list[Row]]:
        """See ForeignClient."""
        # now and then one waits for a second, whichever the broker
        with ThreadPoolExecutor(len(counts)) as readers:
            return dict(zip(counts, readers.map(self._read, counts, counts.values()), strict=True))

    def _read(self, topic: str, count: int) -> list[Row]:
        printed = self._run("-C", "-q", "-J", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count))
        return [self._row(json.loads(line)) for line in printed.splitlines()]

    @staticmethod
    def _row(one: dict[str, Any]) -> Row:
        pairs = one.get("headers", [])
        headers = zip(pairs[::2], pairs[1::2], strict=True)
        return Row(
            offset=one["offset"],
            key=_encoded(one["key"]),
            value=_encoded(one["payload"]),
            timestamp_ms=None if one["tstype"] == "unknown" else one["ts"],
            headers=tuple((name, _encoded(value)) for name, value in headers),
        )

    def offsets(self, topic: str) -> list[int]:
        """See ForeignClient."""
        return [self._query(topic, -2), self._query(topic, -1)]

    def _query(self, topic: str, time_ms: int) -> int:
        # t [0] offset 5
        return int(self._run("-Q", "-t", f"{topic}:0:{time_ms}").split()[-1])

    def offsets_at(self, topic: str, times_ms: Sequence[int]) -> list[list[int] | None]:
        """See ForeignClient."""
        return [[self._query(topic, time)] for time in times_ms]

    def first_after_reset(self, topic: str, offset: int) -> int:
        """See ForeignClient."""
        reset = ("-X", "auto.offset.reset=earliest")
        printed = self._run("-C", "-q", "-t", topic, "-p", "0", "-o", str(offset), "-c", "1", "-f", "%o\n", *reset)
        return int(printed)

    def metadata(self, topic: str) -> Answer:
        """See ForeignClient."""
        found = json.loads(self._run("-L", "-J", "-t", topic))
        (described,) = found["topics"]
        return {
            "brokers": sorted([one["id"], one["name"].rpartition(":")[0]] for one in found["brokers"]),
            "controller": found["controllerid"],
            "partitions": sorted(
                [
                    one["partition"],
                    one["leader"],
                    [replica["id"] for replica in one["replicas"]],
                    [replica["id"] for replica in one["isrs"]],
                ]
                for one in described["partitions"]
            ),
        }

    def join(self, group: str, topic: str, name: str) -> Member:
        """See ForeignClient."""
        settings = {
            "client.id": name,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "200",
        }
        words = [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
        command = [*self._kcat, "-u", "-f", "%s\n", *words, "-G", group, topic]
        return KcatMember(command, Path(self._folder.name), f"{group}-{name}")


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
