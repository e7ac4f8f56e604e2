# SPDX-License-Identifier: Apache-2.0
"""Partitioners: choose the partition of each produced record.

Pure. A record with a key goes to the same partition to which Java's producers would send it, so that mixed producers
keep all records of a key in one partition.

| name | same as | with a key | without |
|---|---|---|---|
| ``murmur2`` | the producer since 0.8.2 (``DefaultPartitioner`` of the clients) | murmur2 of the key | sticky |
| ``java-hash`` | the producer up to 0.8.1 (Scala; until 1.x) | ``hashCode`` of the key | sticky, for 10 minutes |
| ``round-robin`` | ``RoundRobinPartitioner`` | in turn | in turn |

The hash is taken modulo **all** partitions of the topic, even those without a leader. Records without a key go only to
partitions with a leader, unless there is none.

*Sticky* means one random partition for a while. The Scala producer kept it until the next metadata refresh
(``topic.metadata.refresh.interval.ms``, 10 minutes). ``murmur2`` keeps it for one batch, as Java's producer does since
KIP-480: batches are full, and records still spread within moments.

Kafka 0.7 has ``java-hash`` with a random partition for each record without a key (:func:`make_legacy_partitioner`).
Partitioners choose an index of a list there, which names a broker with each partition
(``client.legacy_producer_rules``).

Example: a topic has 4 partitions, and partition 2 has no leader. A record whose key has the hash 6 goes to partition
6 % 4 = 2, and waits until that has a leader. A record without a key goes to 0, 1 or 3.

Sources: Kafka's ``clients/producer/internals/DefaultPartitioner.java`` and ``Utils.murmur2``;
``kafka/producer/{DefaultPartitioner,ByteArrayPartitioner}.scala`` and ``Utils.abs`` of 0.8.2 (0.8.0 and 0.8.1 instead
clear the sign bit with ``& 0x7fffffff``); ``String.hashCode`` and ``Arrays.hashCode(byte[])`` of the Java
documentation. Kafka 0.7's ``kafka/producer/Producer.scala`` (``getPartition``) and ``DefaultPartitioner.scala``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from consumerd.wire.checksum import java_hash

_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_SIGN: Final = 0x80000000

_MURMUR_SEED: Final = 0x9747B28C
_MURMUR_MULTIPLIER: Final = 0x5BD1E995

METADATA_REFRESH_S: Final = 600.0
"""``topic.metadata.refresh.interval.ms`` of the Scala producer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Partitions of a topic from which a partitioner chooses.

    Args:
        count: Number of partitions.
        available: Numbers of the partitions with a leader, in ascending order.
    """

    topic: str
    count: int
    available: Sequence[int]


class Partitioner(Protocol):
    """Chooses the partition of each record of one producer.

    Calls return at once and never raise.
    """

    def choose(self, key: object, key_bytes: bytes | None, candidates: Candidates) -> int:
        """Return a partition number, below ``candidates.count``.

        Args:
            key: Key as the caller passed it; None without one.
            key_bytes: Encoded key; None without one.
        """

    def batch_closed(self, topic: str, partition: int) -> None:
        """Called when a batch for a partition is complete, and will get no more records.

        A partitioner may switch to another partition then.
        """


class Keyless(Protocol):
    """Chooses the partition of records without a key."""

    def choose(self, candidates: Candidates) -> int:
        """Return the number of the partition for the next record without a key."""

    def batch_closed(self, topic: str, partition: int) -> None:
        """Called when a batch for a partition is complete, and will get no more records."""


class HashPartitioner:
    """Partitioner by a hash of the key, modulo the number of partitions.

    Args:
        hash_key: Returns the hash of a key, given as the caller passed it and as encoded bytes.
        keyless: Chooses the partition of records without a key.
    """

    def __init__(self, hash_key: Callable[[object, bytes], int], keyless: Keyless) -> None:
        self._hash_key = hash_key
        self._keyless = keyless

    def choose(self, key: object, key_bytes: bytes | None, candidates: Candidates) -> int:
        """Return the partition number of a record, by the hash of its key.

        Args:
            key: Key as the caller passed it.
            key_bytes: Encoded key; None without one: then ``keyless`` chooses.
        """
        if key_bytes is None:
            return self._keyless.choose(candidates)
        return self._hash_key(key, key_bytes) % candidates.count

    def batch_closed(self, topic: str, partition: int) -> None:
        """Tell ``keyless``, which chooses for records without a key, that a batch is complete."""
        self._keyless.batch_closed(topic, partition)


class RoundRobinPartitioner:
    """Partitioner that uses all partitions in turn, beginning with a random one; keys are ignored."""

    def __init__(self, *, random: Callable[[], float]) -> None:
        self._turns = Turns(random=random, records=1)

    def choose(self, key: object, key_bytes: bytes | None, candidates: Candidates) -> int:  # noqa: ARG002 - keys are ignored
        """Return the number of the next partition in turn; the key is ignored."""
        return self._turns.choose(candidates)

    def batch_closed(self, topic: str, partition: int) -> None:
        """Do nothing, since every record goes to the next partition."""


class Sticky:
    """Chooses one random partition of a topic for records without a key, for some time.

    Args:
        random: Returns floats in [0, 1).
        now: Monotonic clock, in seconds.
        keep_s: Seconds until another one is chosen; None to keep it for one batch.
    """

    def __init__(self, *, random: Callable[[], float], now: Callable[[], float], keep_s: float | None = None) -> None:
        self._random = random
        self._now = now
        self._keep_s = keep_s
        self._chosen: dict[str, tuple[int, float]] = {}
        self._left: dict[str, int] = {}

    def choose(self, candidates: Candidates) -> int:
        """Return the topic's current partition, or a new one.

        A new one is chosen if the current one has lost its leader, or its time is over.
        """
        chosen = self._chosen.get(candidates.topic)
        among = candidates.available or range(candidates.count)
        if chosen is not None:
            partition, until = chosen
            if partition in among and (self._keep_s is None or self._now() < until):
                return partition
        # switch to another partition than before, if there is one
        last = self._left.pop(candidates.topic, None)
        others = [one for one in among if one != last] or among
        partition = others[int(self._random() * len(others))]
        self._chosen[candidates.topic] = (partition, self._now() + (self._keep_s or 0.0))
        return partition

    def batch_closed(self, topic: str, partition: int) -> None:
        """Give up the partition whose batch is complete, unless it is kept for a time."""
        if self._keep_s is None and (chosen := self._chosen.get(topic)) is not None and chosen[0] == partition:
            del self._chosen[topic]
            self._left[topic] = partition


class Turns:
    """Chooses partitions in turn for records without a key, changing after ``records`` records.

    The first partition is random. With :class:`Sticky`, the few records of ``seq 1000`` would all fit into one batch,
    and go to one partition. Example: 1,000 records with ``records`` 100 over four partitions are 300, 300, 200 and 200.
    """

    def __init__(self, *, random: Callable[[], float], records: int) -> None:
        self._random = random
        self._records = records
        self._chosen: dict[str, int] = {}

    def choose(self, candidates: Candidates) -> int:
        """Return the partition number for the next record."""
        count = self._chosen.get(candidates.topic)
        if count is None:
            count = int(self._random() * candidates.count) * self._records
        self._chosen[candidates.topic] = count + 1
        among = candidates.available or range(candidates.count)
        return among[count // self._records % len(among)]

    def batch_closed(self, topic: str, partition: int) -> None:
        """Do nothing, since the partition changes after a number of records."""


class AnyPartition:
    """Chooses a random partition for each record without a key, as in Kafka 0.7.

    Args:
        random: Returns floats in [0, 1).
    """

    def __init__(self, *, random: Callable[[], float]) -> None:
        self._random = random

    def choose(self, candidates: Candidates) -> int:
        """Return the number of a random partition, with a leader if one has."""
        among = candidates.available or range(candidates.count)
        return among[int(self._random() * len(among))]

    def batch_closed(self, topic: str, partition: int) -> None:
        """Do nothing, since each record has a choice of its own."""


# -- hashes


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of Java's producer, as an unsigned number."""
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


def hash_murmur2(key: object, key_bytes: bytes) -> int:  # noqa: ARG001 - Java hashes the encoded key
    """Return the hash of a key that Java's producer takes modulo the number of partitions.

    It is murmur2 of the encoded key, without the sign bit.
    """
    return murmur2(key_bytes) & _POSITIVE


def hash_java(key: object, key_bytes: bytes) -> int:
    """Return the Scala producer's hash of a key, to be taken modulo the partition count.

    It is ``Utils.abs(key.hashCode)`` of 0.8.2. A str is hashed like Java's ``String.hashCode``. Other keys are hashed
    by their encoded bytes, like ``ByteArrayPartitioner``. (In Java, ``hashCode`` of a ``byte[]`` depends on its
    address.)
    """
    if isinstance(key, str):
        code = java_hash(key) & _MASK
    else:
        code = 1
        for byte in key_bytes:
            # Java's bytes are signed
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
"""Factories of partitioners by name, called with ``random`` and ``now``.

``random`` returns floats in [0, 1), ``now`` is a monotonic clock in seconds.
"""

_LINES_IN_TURN: Final = 100
"""Lines without a key that go to one partition before the next."""


def make_line_partitioner(name: str, random: Callable[[], float], now: Callable[[], float]) -> Partitioner:
    """Return a partitioner for records that are lines of text, by its name in ``PARTITIONERS``.

    ``murmur2`` differs from the producer's: lines without a key go to the partitions in turn, so that even a few are
    spread.

    Args:
        random: Returns floats in [0, 1).
        now: Monotonic clock, in seconds.
    """
    if name == "murmur2":
        return HashPartitioner(hash_murmur2, Turns(random=random, records=_LINES_IN_TURN))
    return PARTITIONERS[name](random, now)


LEGACY_PARTITIONER: Final = "java-hash"
"""Name of the partitioner whose keyed records go where the Java producer of Kafka 0.7 sends them."""


def hash_java_text(key: object, key_bytes: bytes) -> int:
    """Return a key's hash in Kafka 0.7, to be taken modulo the partition count.

    It is :func:`hash_java` of the key as text, if it is UTF-8: the Java producer of 0.7 hashes the program's key before
    anything turns it into bytes, and of a ``byte[]`` the hash would depend on its address. Other keys are hashed by
    their bytes.
    """
    if not isinstance(key, str):
        try:
            key = key_bytes.decode()
        except UnicodeDecodeError:
            return hash_java(key, key_bytes)
    return hash_java(key, key_bytes)


def make_legacy_partitioner(name: str, random: Callable[[], float], now: Callable[[], float]) -> Partitioner:
    """Return a partitioner for Kafka 0.6 and 0.7, by its name in ``PARTITIONERS``.

    Records without a key go to a random partition each, unless the name is ``round-robin``.

    Args:
        random: Returns floats in [0, 1).
        now: Monotonic clock, in seconds.
    """
    hashes = {"murmur2": hash_murmur2, LEGACY_PARTITIONER: hash_java_text}
    if name in hashes:
        return HashPartitioner(hashes[name], AnyPartition(random=random))
    return PARTITIONERS[name](random, now)
