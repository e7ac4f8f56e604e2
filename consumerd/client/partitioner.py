# SPDX-License-Identifier: Apache-2.0
"""Which partition of its topic a record goes to.

Pure. A record with a key goes where Java's producers send that key, so that one key has one partition whoever writes:

| name | as | with a key | without |
|---|---|---|---|
| ``murmur2`` | the producer since 0.8.2 (``DefaultPartitioner`` of the clients) | murmur2 of the key's bytes | sticky |
| ``java-hash`` | the producer up to 0.8.1 (Scala; also there until 1.x) | ``hashCode`` of the key | sticky, for 10 minutes |
| ``round-robin`` | ``RoundRobinPartitioner`` | one after the other | the same |

The hash is taken over **all** partitions of the topic, whether they have a leader or not; without a key only those that
have one are chosen from, as long as there are any.

*Sticky* is one random partition for a while. The Scala producer kept it until it read metadata again
(``topic.metadata.refresh.interval.ms``, 10 minutes); here ``murmur2`` keeps it for one batch, as Java's has since KIP-480,
which fills batches as well and spreads records within moments.

Sources: Kafka's ``clients/producer/internals/DefaultPartitioner.java`` and ``Utils.murmur2``;
``kafka/producer/{DefaultPartitioner,ByteArrayPartitioner}.scala`` and ``Utils.abs`` of 0.8.2 (0.8.0 and 0.8.1 cut the sign
off with ``& 0x7fffffff`` in its place); ``String.hashCode`` and ``Arrays.hashCode(byte[])`` of the Java documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_SIGN: Final = 0x80000000

_MURMUR_SEED: Final = 0x9747B28C
_MURMUR_MULTIPLIER: Final = 0x5BD1E995

METADATA_REFRESH_S: Final = 600.0
"""``topic.metadata.refresh.interval.ms`` of the Scala producer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The partitions of a topic: how many there are, and the numbers of those with a leader, in order."""

    topic: str
    count: int
    available: Sequence[int]


class Partitioner(Protocol):
    """Chooses partitions; one belongs to one producer. Calls return at once and raise nothing."""

    def choose(self, key: object, key_bytes: bytes | None, candidates: Candidates) -> int:
        """Return a partition's number, below ``candidates.count``.

        ``key`` is what the caller gave, ``key_bytes`` what the encoder made of it.
        """

    def batch_closed(self, topic: str, partition: int) -> None:
        """Hear that a batch takes no more records: a moment to go to another partition."""


class Keyless(Protocol):
    """Chooses for records without a key."""

    def choose(self, candidates: Candidates) -> int:
        """Return a partition's number."""

    def batch_closed(self, topic: str, partition: int) -> None:
        """Hear that a batch takes no more records."""


class HashPartitioner:
    """By a hash of the key; records without one by a :class:`Sticky` choice, or in :class:`Turns`."""

    def __init__(self, hash_key: Callable[[object, bytes], int], keyless: Keyless) -> None:
        self._hash_key = hash_key
        self._keyless = keyless

    def choose(self, key: object, key_bytes: bytes | None, candidates: Candidates) -> int:
        """Choose; see :class:`Partitioner`."""
        if key_bytes is None:
            return self._keyless.choose(candidates)
        return self._hash_key(key, key_bytes) % candidates.count

    def batch_closed(self, topic: str, partition: int) -> None:
        """Let the sticky choice move on."""
        self._keyless.batch_closed(topic, partition)


class RoundRobinPartitioner:
    """One partition after the other, from a random one on, whatever the key."""

    def __init__(self, *, random: Callable[[], float]) -> None:
        self._random = random
        self._turns: dict[str, int] = {}

    def choose(self, key: object, key_bytes: bytes | None, candidates: Candidates) -> int:  # noqa: ARG002 - no key counts
        """Choose; see :class:`Partitioner`."""
        turn = self._turns.get(candidates.topic)
        if turn is None:
            turn = int(self._random() * candidates.count)
        self._turns[candidates.topic] = turn + 1
        among = candidates.available or range(candidates.count)
        return among[turn % len(among)]

    def batch_closed(self, topic: str, partition: int) -> None:
        """Nothing to do: each record has its turn."""


class Sticky:
    """One random partition a topic at a time, for as long as ``keep_s``, or for one batch where that is None."""

    def __init__(self, *, random: Callable[[], float], now: Callable[[], float], keep_s: float | None = None) -> None:
        self._random = random
        self._now = now
        self._keep_s = keep_s
        self._chosen: dict[str, tuple[int, float]] = {}
        self._left: dict[str, int] = {}

    def choose(self, candidates: Candidates) -> int:
        """Return the partition that it stays at, or a new one if that has lost its leader or its time is over."""
        chosen = self._chosen.get(candidates.topic)
        among = candidates.available or range(candidates.count)
        if chosen is not None:
            partition, until = chosen
            if partition in among and (self._keep_s is None or self._now() < until):
                return partition
        # not the one that was just left, as long as there is another
        last = self._left.pop(candidates.topic, None)
        others = [one for one in among if one != last] or among
        partition = others[int(self._random() * len(others))]
        self._chosen[candidates.topic] = (partition, self._now() + (self._keep_s or 0.0))
        return partition

    def batch_closed(self, topic: str, partition: int) -> None:
        """Leave the partition, where a choice is for one batch."""
        if self._keep_s is None and (chosen := self._chosen.get(topic)) is not None and chosen[0] == partition:
            del self._chosen[topic]
            self._left[topic] = partition


class Turns:
    """A run of ``records`` for one partition, then for the next in order, from a random one on.

    A few records are spread like many: a :class:`Sticky` choice puts all of ``seq 1000`` into the one batch that they fill.
    Example: 1,000 records in runs of 100 over four partitions are 300, 300, 200 and 200.
    """

    def __init__(self, *, random: Callable[[], float], records: int) -> None:
        self._random = random
        self._records = records
        self._chosen: dict[str, int] = {}

    def choose(self, candidates: Candidates) -> int:
        """Return the partition whose turn it is."""
        count = self._chosen.get(candidates.topic)
        if count is None:
            count = int(self._random() * candidates.count) * self._records
        self._chosen[candidates.topic] = count + 1
        among = candidates.available or range(candidates.count)
        return among[count // self._records % len(among)]

    def batch_closed(self, topic: str, partition: int) -> None:
        """Stay: runs end by their number of records."""


# -- hashes


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash 2 of the Java producer, as an unsigned number."""
    length = len(data)
    value = _MURMUR_SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MURMUR_MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MURMUR_MULTIPLIER & _MASK
        value = value * _MURMUR_MULTIPLIER & _MASK ^ word
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MURMUR_MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MURMUR_MULTIPLIER & _MASK
    return value ^ value >> 15


def hash_murmur2(key: object, key_bytes: bytes) -> int:  # noqa: ARG001 - Java hashes what is written, not what was given
    """Return what Java's producer takes modulo the number of partitions: the hash without its sign."""
    return murmur2(key_bytes) & _POSITIVE


def hash_java(key: object, key_bytes: bytes) -> int:
    """Return what the Scala producer of 0.8.2 takes modulo the number of partitions: ``Utils.abs(key.hashCode)``.

    A str is hashed as ``String.hashCode`` does, anything else by its bytes, as ``ByteArrayPartitioner`` does (a ``byte[]`` by
    itself hashes to its place in memory there, and so to nowhere in particular).
    """
    if isinstance(key, str):
        code = 0
        units = key.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            code = 31 * code + (high << 8 | low) & _MASK
    else:
        code = 1
        for byte in key_bytes:
            # Java's bytes have a sign
            code = 31 * code + (byte - 256 if byte > 127 else byte) & _MASK
    signed = code - (1 << 32) if code & _SIGN else code
    return 0 if signed == -_SIGN else abs(signed)


PARTITIONERS: Final[Mapping[str, Callable[[Callable[[], float], Callable[[], float]], Partitioner]]] = {
    "murmur2": lambda random, now: HashPartitioner(hash_murmur2, Sticky(random=random, now=now)),
    "java-hash": lambda random, now: HashPartitioner(
        hash_java, Sticky(random=random, now=now, keep_s=METADATA_REFRESH_S)
    ),
    "round-robin": lambda random, _now: RoundRobinPartitioner(random=random),
}
"""Partitioners by name, each made of ``(random, now)``: floats in [0, 1), and a monotonic clock in seconds."""

_LINES_IN_TURN: Final = 100
"""Lines without a key that go to one partition before the next one has its turn."""


def make_line_partitioner(name: str, random: Callable[[], float], now: Callable[[], float]) -> Partitioner:
    """Return a partitioner for lines: as in ``PARTITIONERS``, but that ``murmur2`` spreads a few without a key, too."""
    if name == "murmur2":
        return HashPartitioner(hash_murmur2, Turns(random=random, records=_LINES_IN_TURN))
    return PARTITIONERS[name](random, now)
