# SPDX-License-Identifier: Apache-2.0
"""``consumerd produce``: writes lines of text to a topic, as records."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from consumerd.admin.inspection import inspect
from consumerd.aio.timeouts import timeout
from consumerd.cli.line_feed import LineFeed
from consumerd.cli.options import add_settings_options, inspection_settings, positive_seconds, seconds
from consumerd.cli.produce_legacy import add_legacy_options, open_legacy_producer, refuse_legacy_options
from consumerd.cli.produce_progress import State, show_progress
from consumerd.client.accumulator import Written
from consumerd.client.opening import open_producer, run_producer
from consumerd.client.partitioner import PARTITIONERS, make_line_partitioner
from consumerd.client.producer import Producer
from consumerd.client.producer_hooks import ProducerHooks
from consumerd.client.producer_settings import ACKS_BY_NAME, ProducerSettings
from consumerd.cluster.view import Broker
from consumerd.errors import (
    ConfigError,
    ConnectionLost,
    ConsumerdError,
    CoordinationError,
    DeliveryTimedOut,
    TopicMissing,
)
from consumerd.model import Generation, PartitionKey, TopicPartition
from consumerd.telemetry.wording import counted
from consumerd.wire.compression import Codec
from consumerd.wire.record_fields import Headers
from consumerd.wire.records import NewRecord

_TIMEOUT_S: Final = 30.0
_PARTITIONER: Final = "murmur2"
_SHOWN_FAILURES: Final = 3

_EXAMPLES: Final = """\
examples:
  echo hello | consumerd produce greetings --bootstrap localhost:9092
  consumerd produce orders -z zk1:2181/kafka --file orders.jsonl --codec lz4
  printf 'k1:v1\\nk2:-\\n' | consumerd produce orders -z zk1:2181 --key-separator : --null-value -
                                                          the second one is a tombstone
  consumerd produce orders --bootstrap localhost:9092     line by line from the terminal, until Ctrl-D

With a key, --partitioner murmur2 chooses as Java's producer since 0.8.2 does, java-hash as the Scala producer
before it, with ByteArrayPartitioner. Without a key, murmur2 sends 100 lines to one partition, then 100 to the
next, so that `seq 1000` reaches several; java-hash stays at one for ten minutes, as the Scala producer does;
round-robin changes with each line. A topic that is not there is made by brokers with auto.create.topics.enable.

With Kafka 0.6 and 0.7 (-z, never --bootstrap), records without a key go to random partitions, and java-hash is
the default for those with one. Keys are not stored. Brokers do not tell what they have stored: records are
counted as sent. With --acks 1 or all, the broker has also worked on them.

Reading stops at the first record that is not written. Ctrl-C stops reading and writes what was read; a second
one gives that up.
exit codes: 0 all acknowledged (with --acks 0: sent), 1 something was not, 2 configuration or input, 3 no broker
or ZooKeeper was reached, 130 ended by Ctrl-C with all that was read acknowledged
"""


def add_produce_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``consumerd produce`` to the parser."""
    parser = commands.add_parser(
        "produce",
        help="write lines to a topic",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Write each line of stdin or a file to a topic, as a record's value, or as key and value.",
    )
    parser.add_argument("topic")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--bootstrap", metavar="HOST:PORT,...", help="brokers to begin with, without TLS; needs no ZooKeeper"
    )
    where.add_argument("-z", "--zookeeper", metavar="CONNECT", help="connect string, such as zk1:2181,zk2:2181/kafka")
    add_settings_options(parser)

    lines = parser.add_argument_group("what is written")
    lines.add_argument("--file", type=Path, metavar="FILE", help="read this file instead of stdin")
    lines.add_argument(
        "--key-separator", type=_separator, metavar="TEXT",
        help=r"each line is key, TEXT, value; divided where TEXT stands first; \t is a tab",
    )  # fmt: skip
    lines.add_argument("--null-value", metavar="TEXT", help="a value that is TEXT is null: a tombstone")
    lines.add_argument(
        "--header", action="append", default=[], type=_header, metavar="NAME=VALUE",
        help="a header of every record; may be repeated (brokers of 0.11 or later)",
    )  # fmt: skip
    lines.add_argument(
        "--partition", type=_partition, metavar="N", help="all into this partition; BROKER-N with Kafka 0.6 and 0.7"
    )
    lines.add_argument("--partitioner", choices=list(PARTITIONERS), help="who chooses (murmur2)")

    how = parser.add_argument_group("how")
    how.add_argument(
        "--codec", choices=[codec.name.lower() for codec in Codec], default="none",
        help="compression (none); zstd needs brokers of 2.1 or later",
    )  # fmt: skip
    how.add_argument(
        "--acks", choices=["0", "1", "all", "-1"], default="all",
        help="who acknowledges: nobody, the leader, or all replicas in sync (all)",
    )  # fmt: skip
    how.add_argument(
        "--linger", type=seconds, default=0.0, metavar="SECONDS", help="wait this long for a batch to fill (0)"
    )
    how.add_argument(
        "--timeout", type=positive_seconds, default=_TIMEOUT_S, metavar="SECONDS",
        help=f"give up on the cluster, on the topic, and on a record after this long ({_TIMEOUT_S:g})",
    )  # fmt: skip
    how.add_argument("--quiet", action="store_true", help="no progress and no summary, only what is wrong")
    add_legacy_options(parser)
    parser.set_defaults(command=produce)


def _separator(text: str) -> bytes:
    if not text:
        raise argparse.ArgumentTypeError("expected some text")
    return text.encode().replace(b"\\t", b"\t")


def _partition(text: str) -> PartitionKey:
    try:
        return PartitionKey.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE")
    return name, value.encode()


class Tally(ProducerHooks):
    """Counts the records that ``consumerd produce`` has written, and those that failed.

    Args:
        failed_first: Called once, when the first record has failed.
    """

    def __init__(self, failed_first: Callable[[], None]) -> None:
        self._failed_first = failed_first
        self.acknowledged = 0
        self.acknowledged_bytes = 0
        self.sent_only = False
        """True if brokers do not tell whether records are stored."""
        self.partitions: Counter[PartitionKey] = Counter()
        self.failed = 0
        self.failures: list[ConsumerdError] = []

    def after_sending(
        self, partition: TopicPartition, records: Sequence[NewRecord], outcome: Written | ConsumerdError
    ) -> None:
        """Count the records of a batch by its outcome, and keep the first few errors."""
        if isinstance(outcome, Written):
            self.acknowledged += len(records)
            self.acknowledged_bytes += sum(len(one.key or b"") + len(one.value or b"") for one in records)
            self.partitions[partition.partition] += len(records)
            self.sent_only = self.sent_only or outcome.base_offset is None
        else:
            if not self.failed:
                self._failed_first()
            self.failed += len(records)
            if len(self.failures) < _SHOWN_FAILURES:
                self.failures.append(outcome)


class _Signals:
    """The first SIGINT or SIGTERM stops the reading, the second one everything."""

    def __init__(self, feed: LineFeed) -> None:
        self._feed = feed
        self.number: int | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Listen while the block runs."""
        loop = asyncio.get_running_loop()
        main = asyncio.current_task()
        assert main is not None

        def stop(number: int) -> None:
            if self.number is not None:
                main.cancel()
            self.number = number
            self._feed.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


async def produce(args: argparse.Namespace) -> int:
    """Run ``consumerd produce``: write each line of a file or stdin to a topic.

    Returns the exit code: 0 if all records were written, 128 plus the signal's number after a signal.
    """
    settings = ProducerSettings(
        acks=ACKS_BY_NAME[args.acks],
        codec=Codec[args.codec.upper()],
        linger_s=args.linger,
        max_block_s=args.timeout,
        delivery_timeout_s=max(args.timeout, args.linger + 1),
        request_timeout_s=args.timeout / 2,  # so that there is time for a second attempt, over another connection
        close_timeout_s=args.timeout,
    )
    started = time.monotonic()
    with _opened(args.file) as descriptor:
        feed = LineFeed(descriptor, longest=settings.max_request_bytes)
        tally = Tally(feed.stop)
        signals = _Signals(feed)
        total_bytes = _size_of(descriptor)

        def look() -> State:
            return State(
                read_lines=feed.read_lines,
                read_bytes=feed.read_bytes,
                acknowledged=tally.acknowledged,
                total_bytes=total_bytes,
            )

        failure: ConsumerdError | None = None
        cut_short = False
        with signals.caught():
            async with show_progress(look, quiet=args.quiet), _open(args, settings, tally) as producer:
                try:
                    await _write(producer, feed, args)
                    await producer.close()
                except ConsumerdError as error:
                    failure = error
                    await producer.close()
                except asyncio.CancelledError:
                    if signals.number is None:
                        raise
                    cut_short = True
                    await producer.close(timeout_s=0)
    if not args.quiet or tally.failed:
        sys.stderr.write(f"consumerd: {_summarize(args, tally, feed)}, {time.monotonic() - started:.1f} s\n")
    for one in [*([failure] if failure else []), *tally.failures]:
        sys.stderr.write(f"consumerd: {one}\n")
    return _judge(tally, failure, signals.number, cut_short=cut_short)


@contextmanager
def _opened(path: Path | None) -> Iterator[int]:
    if path is None:
        if sys.stdin is None:
            raise ConfigError("stdin is closed; give --file, or something to read")
        yield sys.stdin.fileno()
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"--file: {path} cannot be read: {error.strerror}") from error
    with file:
        yield file.fileno()


def _size_of(descriptor: int) -> int | None:
    found = os.fstat(descriptor)
    return found.st_size if stat.S_ISREG(found.st_mode) else None


@asynccontextmanager
async def _open(args: argparse.Namespace, settings: ProducerSettings, hooks: ProducerHooks) -> AsyncIterator[Producer]:
    partitioner = make_line_partitioner(args.partitioner or _PARTITIONER, random.random, time.monotonic)
    if args.bootstrap is not None:
        refuse_legacy_options(args)
        async with open_producer(args.bootstrap, settings=settings, partitioner=partitioner, hooks=hooks) as producer:
            yield producer
        return
    async with inspect(inspection_settings(args), args.timeout, await_broker=True) as access:
        async with timeout(args.timeout):
            await access.directory.views.wait(lambda view: bool(view.brokers))

        if access.layout.generation is Generation.LEGACY:
            async with open_legacy_producer(args, access.zk, access.pool, settings, hooks) as producer:
                yield producer
            return
        refuse_legacy_options(args)

        def known() -> Collection[Broker]:
            return access.directory.view.brokers.values()

        async with run_producer(
            access.pool,
            known,
            principal=access.cluster.address.principal,
            settings=settings,
            partitioner=partitioner,
            hooks=hooks,
        ) as producer:
            yield producer


async def _write(producer: Producer, feed: LineFeed, args: argparse.Namespace) -> None:
    """Buffer every line, waiting while the producer's buffer is full.

    Raises ConfigError for a line without a key, and the errors of ``enqueue``.
    """
    null = None if args.null_value is None else args.null_value.encode()
    headers: Headers = tuple(args.header)
    separator: bytes | None = args.key_separator
    key: bytes | None = None
    async for line in feed.lines():
        value = line
        if separator is not None:
            key, found, value = line.partition(separator)
            if not found:
                raise ConfigError(f"line {feed.read_lines}: no key, since {separator.decode()!r} is not in it")
        await producer.enqueue(
            args.topic, None if value == null else value, key=key, partition=args.partition, headers=headers
        )


def _summarize(args: argparse.Namespace, tally: Tally, feed: LineFeed) -> str:
    what = "sent" if args.acks == "0" or tally.sent_only else "acknowledged"
    where = f"{counted(len(tally.partitions), 'partition')} of {args.topic}"
    text = f"{counted(tally.acknowledged, 'record')} {what}, {tally.acknowledged_bytes} bytes in {where}"
    if tally.failed:
        text += f"; {tally.failed} not, so that reading stopped after {counted(feed.read_lines, 'line')}"
    return text


def _judge(tally: Tally, failure: ConsumerdError | None, signal_number: int | None, *, cut_short: bool) -> int:
    """Return the exit code."""
    if isinstance(failure, ConfigError):
        return 2
    if _unreached(failure) or (not tally.acknowledged and any(map(_unreached, tally.failures))):
        return 3
    if failure is not None or tally.failed or cut_short:
        return 1
    return 0 if signal_number is None else 128 + signal_number


def _unreached(failure: ConsumerdError | None) -> bool:
    """Return True if no broker, or not ZooKeeper, was reached at all."""
    return isinstance(failure, (TopicMissing, DeliveryTimedOut)) and isinstance(
        failure.__cause__, (ConnectionLost, CoordinationError)
    )
