# SPDX-License-Identifier: Apache-2.0
"""``consumerd tail``: prints records of topics, without joining a group and without commits."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import select
import sys
from typing import Final

from consumerd.admin.record_formats import FORMAT_NAMES, FormatOptions, RecordFormat, make_format
from consumerd.admin.tail import Tail, open_tail
from consumerd.admin.tail_partition import TailOutcome
from consumerd.admin.tail_range import AtOffset, AtTime, End, LastRecords, LogEdge, Start, TailRequest
from consumerd.aio.signals import StopSignal, stopped_by_signals
from consumerd.aio.tasks import alongside, unless
from consumerd.aio.threads import WorkThreads
from consumerd.cli.options import add_cluster_options, count, inspection_settings, positive_count
from consumerd.cli.times import read_time_ms
from consumerd.errors import ConfigError, ConnectionLost, PermanentSinkError
from consumerd.sinks.stdout import LineOutput
from consumerd.telemetry.logs import configure_logging
from consumerd.telemetry.text_tables import escape_unprintable
from consumerd.wire.records import RecordBatch

_STDOUT: Final = 1
_CLOSE_S: Final = 0.5
"""Time, in seconds, for which the end waits for a reader of stdout that takes nothing."""
_LOOK_S: Final = 1.0
"""Interval, in seconds, of the look whether stdout still has a reader."""
_MOST_RECORDS: Final = 1_000_000
"""Largest N of ``--from -N``: the offsets of a compacted log are counted in memory."""
_LAST: Final = 10

_EXAMPLES: Final = """\
examples:
  consumerd tail orders -z zk1:2181/kafka                 the last 10 records of each partition, as JSON lines
  consumerd tail orders -z zk1:2181/kafka --follow        and those that follow, until Ctrl-C
  consumerd tail orders -z zk1:2181/kafka --partition 3 --from 4711 --count 1
                                                          one record
  consumerd tail orders -z zk1:2181/kafka --at 2024-05-01T12:00:00Z --until 2024-05-01T13:00:00Z
                                                          an hour
  consumerd tail orders -z zk1:2181/kafka --from EARLIEST --format value > orders.txt
                                                          all values

Records of a partition come in the order of their offsets; partitions are read at the same time. Without --follow the
command ends at the log end offsets of its start. Gaps (compaction, aborted transactions, damage) and partitions that are
waited for are told on stderr. An offset as --until is left out itself.

exit codes: 0 all was shown, also if there is nothing; with --follow, ended by Ctrl-C; 1 a partition or a record could
not be read; 2 configuration, or no such topic; 3 no broker or ZooKeeper was reached; 130 ended by Ctrl-C without --follow
"""


def add_tail_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``consumerd tail`` to the parser."""
    parser = commands.add_parser("tail", help="show records of topics, without a group", epilog=_EXAMPLES)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Show records of topics. Joins no group, commits nothing, and writes nothing to ZooKeeper."
    parser.add_argument("topic", nargs="+")
    add_cluster_options(
        parser,
        group=None,
        timeout="give up on the cluster, and without --follow on a partition from which nothing comes, after this long",
    )
    which = parser.add_argument_group("which records")
    which.add_argument(
        "--partition", type=count, action="append", default=[], metavar="N", help="only this one; may be repeated"
    )
    start = which.add_mutually_exclusive_group()
    start.add_argument(
        "--from", dest="start", metavar="WHERE",
        help=f"EARLIEST, LATEST, an offset, or -N: the last N records of each partition (-{_LAST})",
    )  # fmt: skip
    start.add_argument(
        "--at", metavar="TIME",
        help="the first record of a time or later: ISO 8601 (UTC unless it says otherwise) or ms since 1970. Brokers "
            "before "
        "0.10.1 know one time for each log segment, so that earlier records may come first",
    )  # fmt: skip
    which.add_argument(
        "--until", metavar="WHERE",
        help="an offset, LATEST, or a time (ISO 8601): what comes before it is shown (LATEST; no end with --follow)",
    )  # fmt: skip
    which.add_argument("--count", type=positive_count, metavar="N", help="end after N records in all")
    which.add_argument("-f", "--follow", action="store_true", help="go on at the end of the logs, until Ctrl-C")
    which.add_argument(
        "--isolation", choices=("read_uncommitted", "read_committed"),
        help="read_committed leaves out records of open and aborted transactions (fetch.isolation of the settings)",
    )  # fmt: skip

    form = parser.add_argument_group("how they are shown")
    form.add_argument(
        "--format", choices=FORMAT_NAMES, default="json",
        help="json: as the sinks stdout and jsonl, with base64 of what is no text; value, key-value: bytes, escaped on "
            "a "
        "terminal; text: for people (json)",
    )  # fmt: skip
    form.add_argument(
        "--key-separator", default="\t", metavar="TEXT", help="between key and value of key-value (a tab)"
    )
    form.add_argument(
        "--null-value", default="", metavar="TEXT", help="for null keys and values of value and key-value (nothing)"
    )
    parser.set_defaults(command=tail)


def parse_start(text: str) -> Start:
    """Read the option ``--from`` of ``consumerd tail``: where printing starts. Raises ConfigError.

    It is ``EARLIEST``, ``LATEST``, an offset, or ``-N`` for the last N records.
    """
    if text.upper() in LogEdge.__members__:
        return LogEdge[text.upper()]
    if re.fullmatch(r"-?[0-9]{1,19}", text):
        number = int(text)
        if number >= 0 and not text.startswith("-"):
            return AtOffset(number)
        if 0 < -number <= _MOST_RECORDS:
            return LastRecords(-number)
        raise ConfigError(
            f"--from {text}: expected -1 to -{_MOST_RECORDS} for the last records; or use EARLIEST, or --at"
        )
    raise ConfigError(f"--from {text!r}: expected EARLIEST, LATEST, an offset, or -N; a time goes with --at")


def parse_at(text: str) -> AtTime:
    """Read the option ``--at`` of ``consumerd tail``: a time from which records are printed.

    It is in ms since the epoch, or in ISO 8601. Raises ConfigError.
    """
    if (time_ms := read_time_ms(text, option="--at")) is None:
        raise ConfigError(f"--at {text!r}: expected a time such as 2024-05-01T12:00:00Z, or ms since 1970")
    return AtTime(time_ms)


def parse_until(text: str) -> End | None:
    """Read the option ``--until`` of ``consumerd tail``: an offset, a time or ``LATEST``.

    A number is an offset; a time is in ISO 8601. Returns None for ``LATEST``, the end of the logs. Raises ConfigError.
    """
    if text.upper() == LogEdge.LATEST.name:
        return None
    if text.isascii() and text.isdigit():
        return AtOffset(int(text))
    if (time_ms := read_time_ms(text, option="--until")) is None:
        raise ConfigError(f"--until {text!r}: expected an offset, LATEST, or a time such as 2024-05-01T12:00:00Z")
    return AtTime(time_ms)


def make_request(args: argparse.Namespace) -> TailRequest:
    """Return the range of records that the options of ``consumerd tail`` ask for. Raises ConfigError."""
    start: Start = LastRecords(_LAST)
    if args.start is not None:
        start = parse_start(args.start)
    elif args.at is not None:
        start = parse_at(args.at)
    end = None if args.until is None else parse_until(args.until)
    if args.follow and args.until is not None and end is None:
        raise ConfigError("--until LATEST is the end of the logs, and --follow goes on there: leave out one of them")
    return TailRequest(
        topics=args.topic,
        partitions=frozenset(args.partition),
        start=start,
        end=end,
        count=args.count,
        follow=args.follow,
        patience_s=args.timeout,
    )


async def tail(args: argparse.Namespace) -> int:
    """Run ``consumerd tail``: print records until all are printed, or until a signal.

    Returns the exit code.
    """
    request = make_request(args)
    settings = inspection_settings(args)
    isolation = args.isolation or settings.fetch.isolation
    options = FormatOptions(
        separator=args.key_separator.encode(), null=args.null_value.encode(), escape=sys.stdout.isatty()
    )
    configure_logging("error")  # the command tells by itself what it waits for
    output = _RecordOutput(LineOutput(_STDOUT), make_format(args.format, options))
    outcome = TailOutcome()

    async def show() -> None:
        async with open_tail(settings, request, read_committed=isolation == "read_committed") as source:
            await Tail(source, request, outcome, write=output.write, tell=_tell).run()

    with stopped_by_signals() as stop:
        try:
            async with alongside(_watch_reader(stop), name="look for a reader"):
                await unless(stop.told, show())
        except (BrokenPipeError, TimeoutError):  # a TimeoutError is an OSError, and of the cluster
            raise
        except OSError as error:
            raise PermanentSinkError(f"stdout: cannot be written: {error.strerror}") from error
        finally:
            await output.close()
    if stop.number is not None and not request.follow:
        return 128 + stop.number
    return judge(outcome)


class _RecordOutput:
    """Prints batches in a thread, one at a time."""

    def __init__(self, output: LineOutput, encode: RecordFormat) -> None:
        self._output = output
        self._encode = encode
        self._threads = WorkThreads(name="tail-output", count=1)

    async def write(self, batch: RecordBatch) -> None:
        """Print a batch; waits for the reader of stdout. Raises OSError, CorruptMessageError."""
        await self._threads.run(lambda: self._print(batch))

    def _print(self, batch: RecordBatch) -> None:
        for piece in self._encode(batch):
            self._output.write(piece)

    async def close(self) -> None:
        """Wait for a moment for what is being printed."""
        await self._threads.close(timeout_s=_CLOSE_S)


async def _watch_reader(stop: StopSignal) -> None:
    """End the command when the reader of stdout has gone.

    Without a record, no write would fail.
    """
    poll = select.poll()
    poll.register(_STDOUT, 0)
    while True:
        await asyncio.sleep(_LOOK_S)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
            stop.told.set()


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):  # stderr is closed
        sys.stderr.write(f"consumerd: {escape_unprintable(line)}\n")
        sys.stderr.flush()


def judge(outcome: TailOutcome) -> int:
    """Return the exit code of ``consumerd tail``: 0 if all records were printed.

    It is 3 if no broker answered and nothing was printed, and 1 if a partition or some of its records could not be
    read.
    """
    if outcome.failures and not outcome.shown and all(isinstance(one, ConnectionLost) for one in outcome.failures):
        return 3
    return 1 if outcome.failures or outcome.damaged else 0
