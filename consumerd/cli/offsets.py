# SPDX-License-Identifier: Apache-2.0
"""``consumerd offsets``: its parser, and the commands that show, export and change positions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from consumerd.admin.inspection import inspect
from consumerd.admin.offsets_export import encode_export
from consumerd.admin.offsets_import import ImportedOffsets, parse_offsets
from consumerd.admin.operations import Target
from consumerd.admin.positions import OffsetRowOfBoth, export_offsets, find_offsets
from consumerd.admin.targets import (
    NamedTargets,
    check_settable,
    collect_targets,
    find_reset_targets,
    find_shift_targets,
)
from consumerd.aio.timeouts import timeout
from consumerd.cli.documents import add_output_option, print_document
from consumerd.cli.offsets_cancel import add_cancel_options
from consumerd.cli.offsets_migrate import add_migrate_options
from consumerd.cli.offsets_move import add_move_options, move, wall_ms
from consumerd.cli.options import add_connection_options, group_settings
from consumerd.cli.tables import print_rows
from consumerd.cli.times import read_time_ms
from consumerd.errors import ConfigError
from consumerd.model import PartitionKey, TopicPartition
from consumerd.telemetry.wording import counted

_SHOWN: Final = ("topic", "partition", "position", "validity", "written", "version", "request", "note")
_SHOWN_OF_BOTH: Final = (
    "topic", "partition", "position", "kafka", "metadata", "validity", "written", "version", "request", "note",
)  # fmt: skip

_OFFSET_DIGITS: Final = 19
"""Digits of the largest offset."""

_EXAMPLES: Final = """\
examples:
  consumerd offsets set -z zk1:2181 -g lake orders/0=4200 orders/1=4100 --dry-run
  consumerd offsets reset -z zk1:2181 -g lake orders --to 2024-05-01T00:00:00Z
  consumerd offsets reset -z zk1:2181 -g lake orders/3 --to earliest --new-chain --yes
  consumerd offsets export -z zk1:2181 -g lake --output lake.json
  consumerd offsets import -z zk1:2181 -g lake lake.json
  consumerd offsets shift -z zk1:2181 -g lake orders/3 --by -1000
  consumerd offsets migrate plan -z zk1:2181 -g lake
  consumerd offsets cancel -z zk1:2181 -g lake orders/3
"""

_FILES: Final = """\
Set the positions that a file holds. It is one of these:

  - the document of `consumerd offsets export`
  - lines TOPIC,PARTITION,OFFSET, as kafka-consumer-groups --export writes them and
    --reset-offsets --from-file reads them, also with GROUP in front
  - lines /consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET of ExportZkOffsets

Of a file with several groups, the lines of this group are read.
"""

_WHO: Final = """\
Who does it. A partition that a consumerd holds is moved by that one: a request
is left in ZooKeeper and waited for. Without any member alive the position is
written, or, where the group has landed files, the request is left for the next
start, since going back needs a new chain of files. A partition of a Java member
is refused: it would not listen, and overwrite what is written.
"""


def add_offset_commands(offsets: argparse.ArgumentParser) -> None:
    """Add the commands below ``consumerd offsets`` to its parser."""
    offsets.description = (
        "Look at the stored positions of a group, keep them as a document, and move them: to a position, to the "
        "beginning\n"
        "or the end of the log, to a time, or by a number of records. What was asked for and not done yet can be\n"
        "cancelled. `migrate` moves a group between ZooKeeper and Kafka. `show` and `export` change nothing."
    )
    offsets.epilog = _EXAMPLES
    offsets.formatter_class = argparse.RawDescriptionHelpFormatter
    below = offsets.add_subparsers(title="commands", metavar="COMMAND", required=True)

    one = below.add_parser(
        "show",
        help="show a group's stored positions as they stand, and requests that wait",
        description="Show the stored positions of a group in ZooKeeper and in Kafka, and the requests that wait.",
    )
    add_connection_options(one, group=True)
    one.add_argument("topic", nargs="*", help="only these")
    one.set_defaults(command=show)

    one = below.add_parser(
        "export",
        help="print a group's positions as JSON, for `import`",
        description="Print the stored positions of a group as one JSON document, which `import` reads.",
    )
    add_connection_options(one, group=True)
    one.add_argument("topic", nargs="*", help="only these")
    add_output_option(one)
    one.set_defaults(command=export)

    one = below.add_parser(
        "set",
        help="say where partitions go on",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"Set where partitions of a group go on: the next offset to read.\n\n{_WHO}",
    )
    one.add_argument("target", nargs="*", metavar="TOPIC/PARTITION=POSITION", help="such as orders/0=4200")
    one.add_argument("--from-file", type=Path, metavar="FILE", help="those of a file, too, as `import` reads it")
    add_move_options(one)
    one.set_defaults(command=set_positions)

    one = below.add_parser(
        "import",
        help="set positions that a file holds",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"{_FILES}\n{_WHO}",
    )
    one.add_argument("file", type=Path, metavar="FILE", help="positions in one of these formats")
    add_move_options(one)
    one.set_defaults(command=import_positions)

    one = below.add_parser(
        "reset",
        help="move partitions to the beginning, the end, or a time",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Move partitions of a group to the beginning or the end of their logs, or to the\n"
            "first record of a time on. Brokers before 0.10.1 know times only as exactly as\n"
            "their log segments: the position is then at or before the one that is meant,\n"
            f"never after it.\n\n{_WHO}"
        ),
    )
    one.add_argument("what", nargs="*", metavar="TOPIC[/PARTITION]", help="topics, or single partitions")
    one.add_argument("--all-topics", action="store_true", help="every topic of the group")
    one.add_argument(
        "--to",
        required=True,
        metavar="WHERE",
        help="earliest, latest, or a time: ISO 8601 (UTC unless it says otherwise) or ms since 1970",
    )
    add_move_options(one)
    one.set_defaults(command=reset_positions)

    one = below.add_parser(
        "shift",
        help="move partitions by a number of offsets",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Move partitions of a group forward or back from where they are. A shift beyond\n"
            f"the log ends at the log's beginning or end, and says so.\n\n{_WHO}"
        ),
    )
    one.add_argument("what", nargs="*", metavar="TOPIC[/PARTITION]", help="topics, or single partitions")
    one.add_argument("--all-topics", action="store_true", help="every topic of the group")
    one.add_argument(
        "--by", type=_distance, required=True, metavar="N", help="+N leaves out N offsets, -N reads N again"
    )
    add_move_options(one)
    one.set_defaults(command=shift_positions)

    add_migrate_options(
        below.add_parser("migrate", help="move a group's positions from ZooKeeper to Kafka, or back"),
    )

    add_cancel_options(below.add_parser("cancel", help="take back requests that nobody has carried out yet"))


# -- looking


async def show(args: argparse.Namespace) -> int:
    """Run ``consumerd offsets show``: print a group's committed positions. Returns the exit code."""
    settings, _ = group_settings(args)
    assert settings.group is not None
    async with inspect(settings, args.timeout) as access, timeout(args.timeout):
        found = await find_offsets(access, settings.group.id, args.topic, settings.places)
    columns = _SHOWN_OF_BOTH if found.rows and isinstance(found.rows[0], OffsetRowOfBoth) else _SHOWN
    print_rows(found.rows, columns, as_json=args.json, empty="no stored positions")
    sys.stdout.flush()
    for note in found.notes:
        sys.stderr.write(f"consumerd: {note}\n")
    return 0


async def export(args: argparse.Namespace) -> int:
    """Run ``consumerd offsets export``: print a group's committed positions as a JSON document.

    Returns the exit code.
    """
    settings, group = group_settings(args)
    async with inspect(settings, args.timeout) as access, timeout(args.timeout):
        exported = await export_offsets(access, group, args.topic, settings.places, now_ms=wall_ms())
    for partition, position in exported.left_out.items():
        sys.stderr.write(f"consumerd: {partition} left out: {position.explain()}\n")
    for partition, position in exported.ahead.items():
        sys.stderr.write(
            f"consumerd: {partition}: {position.place.label} has a larger position, {position.value}, which is left "
            f"out\n"
        )
    document = exported.document
    content = f"{counted(len(document.offsets), 'position')} of group {document.group}"
    print_document(encode_export(document), args.output, content=content)
    return 0


# -- moving


async def set_positions(args: argparse.Namespace) -> int:
    """Run ``consumerd offsets set``: set positions typed on the command line, or in a file.

    Returns the exit code.
    """
    return await _set(args, map(parse_target, args.target), args.from_file, "--from-file")


async def import_positions(args: argparse.Namespace) -> int:
    """Run ``consumerd offsets import``: set positions as a file lists them. Returns the exit code."""
    return await _set(args, (), args.file, "FILE")


async def _set(args: argparse.Namespace, typed: Iterable[Target], file: Path | None, option: str) -> int:
    typed = list(typed)
    settings, group = group_settings(args)
    imported = None if file is None else _read_offsets(file, option, group)
    targets = collect_targets(typed, imported)
    if imported is not None:
        _tell_left_out(imported)
    if not targets:
        raise ConfigError("nothing to set: give TOPIC/PARTITION=POSITION, or --from-file FILE with positions")
    async with inspect(settings, args.timeout) as access:
        async with timeout(args.timeout):
            export = None if imported is None else imported.export
            await check_settable(access, targets, export, source=str(file), force=args.force)
        return await move(access, settings, targets, args)


def _tell_left_out(imported: ImportedOffsets) -> None:
    if imported.orphaned:
        sys.stderr.write(f"consumerd: left out, deleted before the export already: {', '.join(imported.orphaned)}\n")
    for name, count in imported.left_out.items():
        sys.stderr.write(f"consumerd: left out, of group {name}: {counted(count, 'position')}\n")


def _read_offsets(path: Path, option: str, group: str) -> ImportedOffsets:
    try:
        return parse_offsets(path.read_text(encoding="utf-8"), str(path), group)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror} ({option})") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 ({option})") from None


async def reset_positions(args: argparse.Namespace) -> int:
    """Run ``consumerd offsets reset``: set positions to the logs' start or end, or a time.

    Returns the exit code.
    """
    to = parse_time(args.to)
    named = _parse_named(args)
    settings, group = group_settings(args)
    async with inspect(settings, args.timeout) as access:
        async with timeout(args.timeout):
            found = await find_reset_targets(access, group, named, to)
        _tell_left_aside(found)
        if found.is_coarse:
            sys.stderr.write(
                "consumerd: a broker is older than 0.10.1: the time is exact to log segments, earlier rather than "
                "later\n"
            )
        return await move(access, settings, found.targets, args)


async def shift_positions(args: argparse.Namespace) -> int:
    """Run ``consumerd offsets shift``: move positions by a number of offsets. Returns the exit code."""
    named = _parse_named(args)
    settings, group = group_settings(args)
    async with inspect(settings, args.timeout) as access:
        async with timeout(args.timeout):
            found = await find_shift_targets(access, group, named, args.by, settings.places)
        _tell_left_aside(found)
        for note in found.notes:
            sys.stderr.write(f"consumerd: {note}\n")
        return await move(access, settings, found.targets, args)


def _tell_left_aside(found: NamedTargets) -> None:
    if found.gone:
        sys.stderr.write(f"consumerd: left out, since there is no such topic: {', '.join(found.gone)}\n")
    for sentence in found.away:
        sys.stderr.write(f"consumerd: left out, {sentence}. Give the command again then\n")


# -- what is typed


def _parse_named(args: argparse.Namespace) -> list[str | TopicPartition]:
    if bool(args.what) == args.all_topics:
        raise ConfigError("name topics or partitions, or give --all-topics (and not both)")
    return [_parse_topic_or_partition(text) for text in args.what]


def _distance(text: str) -> int:
    """Read ``+N`` or ``-N``, other than 0. Raises ArgumentTypeError, which argparse shows."""
    digits = text[1:] if text[:1] in {"+", "-"} else text
    if digits.isascii() and digits.isdigit() and len(digits) <= _OFFSET_DIGITS and (found := int(text)) != 0:
        return found
    raise argparse.ArgumentTypeError(f"{text!r}: expected +N or -N, a number of offsets")


def parse_target(text: str) -> Target:
    """Read ``TOPIC/PARTITION=POSITION``, a new position of a partition. Raises ConfigError."""
    where, separator, position = text.rpartition("=")
    if not separator or not position.isascii() or not position.isdigit() or len(position) > 19:
        raise ConfigError(f"{text!r}: expected TOPIC/PARTITION=POSITION, such as orders/0=4200")
    found = _parse_topic_or_partition(where)
    if isinstance(found, str):
        raise ConfigError(f"{text!r}: expected TOPIC/PARTITION=POSITION, such as orders/0=4200")
    if int(position) > 2**63 - 1:
        raise ConfigError(f"{text!r}: {position} is larger than any offset")
    return Target(partition=found, position=int(position))


def _parse_topic_or_partition(text: str) -> str | TopicPartition:
    topic, separator, key = text.partition("/")
    if not topic:
        raise ConfigError(f"{text!r}: expected TOPIC or TOPIC/PARTITION")
    if not separator:
        return topic
    try:
        return TopicPartition(topic, PartitionKey.parse(key))
    except ValueError as error:
        raise ConfigError(f"{text!r}: {error}") from error


def parse_time(text: str) -> str | int:
    """Read the option ``--to`` of ``consumerd offsets reset``. Raises ConfigError.

    It is ``earliest``, ``latest``, ms since the epoch, or a time in ISO 8601. Times are returned as ms since the epoch.
    """
    if text in {"earliest", "latest"}:
        return text
    if (milliseconds := read_time_ms(text, option="--to")) is not None:
        return milliseconds
    raise ConfigError(
        f"--to: {text!r}: expected earliest, latest, a time such as 2024-05-01T12:00:00Z, or ms since 1970"
    )
