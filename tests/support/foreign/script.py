# SPDX-License-Identifier: Apache-2.0
"""One script for all clients, run against the embedded broker and against a real one.

First every client writes the same records with every codec, to topics of its own. Then each reads what all have written,
looks up offsets, and forms a group. What comes of a step is plain data without what is a run's own (ports, ids, the time
of day), so that the answers of two brokers can be compared field by field.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from tests.support.foreign.client import PATIENCE_S, Answer, ForeignClient, Headers, NotOffered, Part, Record, Row
from tests.support.foreign.kafka_python import KafkaPython
from tests.support.foreign.membership import PARTITIONS, GroupStory
from tests.support.topic_nodes import connected, create_topic_nodes
from tests.support.waiting import wait_until

CODECS: Final = ("none", "gzip", "snappy", "lz4")
ACKS: Final = ("0", "1")
"""Those besides "all", which is what the codecs are tried with."""
T0: Final = 1_600_000_000_000
"""The time of the first record, in ms; each is a second later than the one before."""

_HEADERS: Final[Headers] = (("a", b"1"), ("a", b"2"), ("empty", b""), ("null", None))
_LARGE: Final = b" ".join(b"%d" % (number * 7919) for number in range(12_000))
"""More than one block of snappy's and of lz4's framing."""
_SHOWN: Final = 40
_HOUR_MS: Final = 3_600_000

_CONTENT: Final[Sequence[tuple[bytes | None, bytes | None]]] = (
    (b"k0", b"plain"),
    (b"k1", "größe ✓".encode()),
    (None, b"without a key"),
    (b"k3", None),
    (b"k5", b""),
    (b"", b"with an empty key"),
    (b"k7", _LARGE),
)
RECORDS: Final = tuple(
    Record(key=key, value=value, headers=_HEADERS, timestamp_ms=T0 + 1000 * number)
    for number, (key, value) in enumerate(_CONTENT)
)
"""What is written, as far as a client can."""

DATED: Final = "dated"
"""A topic whose times are known, whoever asks for them."""

Outcome = dict[str, Any]
"""``{"answer": ...}``, ``{"not offered": True}`` or ``{"failed": ...}``."""
Outcomes = dict[str, Outcome]
"""By capability."""


def topic_of(writer: str, codec: str) -> str:
    """Return the topic that a client writes to with a codec."""
    return f"{writer}-{codec}"


def _spare_topic(name: str, what: str) -> str:
    """Return a topic to which a client writes what is not read."""
    return f"{what}-of-{name}"


def _group_topic(name: str) -> str:
    """Return the topic that a client's group reads."""
    return f"numbers-{name}"


def _writable(client: ForeignClient) -> list[Record]:
    return [some for one in RECORDS if (some := one.without(client.lacks)) is not None]


def shown_content(lacking: frozenset[Part]) -> list[list[str | None]]:
    """Return keys and values of what a client writes, as they are shown."""
    return [[_text(one.key), _text(one.value)] for one in RECORDS if one.without(lacking) is not None]


class Script:
    """The script on one cluster: ``write`` once, then ``run`` for each client.

    ``reference`` does for the script what a client itself cannot.
    """

    def __init__(self, zookeeper: str, clients: Sequence[ForeignClient], reference: KafkaPython) -> None:
        self._zookeeper = zookeeper
        self._clients = {client.name: client for client in clients}
        self._reference = reference
        self._counts: dict[str, int] = {}
        self._written: dict[str, Outcomes] = {}

    def write(self) -> None:
        """Make the topics, and have every client write."""
        topics = {topic_of(name, codec): 1 for name in self._clients for codec in CODECS}
        topics |= {_spare_topic(name, what): 1 for name in self._clients for what in ("id", *ACKS)}
        topics |= {_group_topic(name): PARTITIONS for name in self._clients}
        topics[DATED] = 1
        with connected(self._zookeeper) as zookeeper:
            for topic, partitions in topics.items():
                # the records are from years ago
                create_topic_nodes(zookeeper, topic, partitions, {"retention_ms": "-1"})
        self._reference.wait_served(topics)
        self._reference.produce(DATED, "none", _writable(self._reference))
        for client in self._clients.values():
            self._written[client.name] = {
                f"written with {codec}": attempt(partial(self._write, client, codec)) for codec in CODECS
            }

    def _write(self, client: ForeignClient, codec: str) -> Answer:
        records = _writable(client)
        offsets = client.produce(topic_of(client.name, codec), codec, records)
        self._counts[topic_of(client.name, codec)] = len(records)
        return {"records": len(records), "offsets": offsets}

    def run(self, name: str) -> Outcomes:
        """Have a client do all that it can, and return what came of it."""
        client = self._clients[name]
        rows: dict[str, list[Row]] = {}

        def read() -> Answer:
            rows.update(client.read(self._counts))
            return None

        tried = attempt(read)
        outcomes = dict(self._written[name])
        for codec in CODECS:
            topics = [topic for topic in self._counts if topic.endswith(f"-{codec}")]
            outcomes[f"read with {codec}"] = (
                {"answer": {topic: [_plain(row) for row in rows[topic]] for topic in topics}} if rows else tried
            )
        outcomes |= self._parts(client, rows.get(topic_of(name, "none"), []))
        for capability, ask in self._single_steps(client):
            outcomes[capability] = attempt(ask)
        outcomes |= self._group(client)
        return outcomes

    def _parts(self, client: ForeignClient, rows: Sequence[Row]) -> Iterator[tuple[str, Outcome]]:
        """Yield what became of keys and values, headers and times that the client itself has written."""
        plain = [_plain(row) for row in rows]
        seen = {
            "null keys and values": (Part.NULLS, [row[1:3] for row in plain]),
            "headers": (Part.HEADERS, [row[4] for row in plain]),
            "times": (Part.TIMES, [row[3] for row in plain]),
        }
        for capability, (part, answer) in seen.items():
            yield capability, {"not offered": True} if part in client.lacks or not rows else {"answer": answer}

    def _write_with_acks(self, client: ForeignClient, acks: str) -> Answer:
        topic, records = _spare_topic(client.name, acks), _writable(client)
        offsets = client.produce(topic, "none", records, acks)
        wait_until(lambda: self._reference.offsets(topic)[1] == len(records), "all is written", PATIENCE_S)
        # without acknowledgements clients make up offsets
        return len(records) if acks == "0" else offsets

    def _single_steps(self, client: ForeignClient) -> Iterator[tuple[str, Callable[[], Answer]]]:
        times = [T0 - 1, T0, T0 + 2500, T0 + 6000, T0 + 6001]
        for acks in ACKS:
            yield f"written with acks {acks}", partial(self._write_with_acks, client, acks)
        yield "first and next offset", lambda: client.offsets(DATED)
        yield "offsets by time", lambda: [_relative(one) for one in client.offsets_at(DATED, times)]
        yield "start again where an offset is gone", lambda: client.first_after_reset(DATED, 1000)
        yield "metadata", lambda: client.metadata(_group_topic(client.name))
        yield (
            "producer with an id",
            lambda: client.produce_idempotently(_spare_topic(client.name, "id"), _writable(client)[:2]),
        )
        yield "topics made by request", lambda: client.create_topic(f"new-{client.name}", 1)

    def _group(self, client: ForeignClient) -> Outcomes:
        story = GroupStory(client, self._reference, _group_topic(client.name))
        told = attempt(story.tell)
        if "answer" not in told:
            return dict.fromkeys(GROUP_CAPABILITIES, told)
        return {
            capability: {"not offered": True} if answer is None else {"answer": answer}
            for capability, answer in told["answer"].items()
        }


GROUP_CAPABILITIES: Final = (
    "group joined and shared",
    "group resumed where it had committed",
    "positions looked up",
    "group described",
    "empty group described",
    "groups listed",
)
CAPABILITIES: Final = (
    *(f"written with {codec}" for codec in CODECS),
    *(f"written with acks {acks}" for acks in ACKS),
    *(f"read with {codec}" for codec in CODECS),
    "null keys and values",
    "headers",
    "times",
    "first and next offset",
    "offsets by time",
    "start again where an offset is gone",
    "metadata",
    *GROUP_CAPABILITIES,
    "producer with an id",
    "topics made by request",
)
"""What the script tries, in the order of the table."""


def attempt(ask: Callable[[], Answer]) -> Outcome:
    """Return what a step came to. Only answers can be compared: what is said of a failure holds ports and times."""
    try:
        return {"answer": ask()}
    except NotOffered:
        return {"not offered": True}
    except Exception as failure:  # noqa: BLE001  # whatever a client raises is what came of it
        return {"failed": f"{type(failure).__name__}: {failure}"}


def _plain(row: Row) -> list[Any]:
    headers = None if row.headers is None else [[name, _text(value)] for name, value in row.headers]
    return [row.offset, _text(row.key), _text(row.value), _time(row.timestamp_ms), headers]


def _text(data: bytes | None) -> str | None:
    if data is None or len(data) <= _SHOWN:
        return None if data is None else data.decode()
    return f"{len(data)} bytes, CRC {zlib.crc32(data):08x}"


def _time(timestamp_ms: int | None) -> str | None:
    """Return a time relative to the script's; "now" for one that the client or the broker gave the record."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    if abs(timestamp_ms - time.time() * 1000) < _HOUR_MS:
        return "now"
    return f"T0+{timestamp_ms - T0}"


def _relative(found: list[int] | None) -> list[Any] | None:
    return None if found is None else [found[0], *(_time(one) for one in found[1:])]
