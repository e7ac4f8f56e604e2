# SPDX-License-Identifier: Apache-2.0
"""``consumerd offsets show | export | set | reset | cancel``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import os
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from consumerd.admin.inspection import follow_topics, inspect, list_group_topics, require_group
from consumerd.admin.offsets_export import check_origin, encode_export, parse_export, split_orphans
from consumerd.admin.operations import (
    OffsetMover,
    Plan,
    PositionMoveRow,
    Target,
    Way,
    check_targets,
    describe,
    explain_undone,
    plan_moves,
    resolve_reset,
)
from consumerd.admin.positions import export_offsets, find_named, find_offsets
from consumerd.aio.timeouts import timeout
from consumerd.cli.offsets_cancel import add_cancel_options
from consumerd.cli.options import add_connection_options, inspection_settings, seconds
from consumerd.cli.tables import print_rows
from consumerd.client.opening import ClusterAccess
from consumerd.errors import ConfigError, OffsetError
from consumerd.model import PartitionKey, TopicPartition
from consumerd.telemetry.wording import counted

_SHOWN: Final = ("topic", "partition", "position", "validity", "written", "version", "request", "note")
_PLANNED: Final = ("topic", "partition", "owner", "position", "target", "effect", "way")
_SETTLED: Final = ("topic", "partition", "position", "target", "effect", "outcome")

_EXAMPLES: Final = """\
examples:
  consumerd offsets set -z zk1:2181 -g lake orders/0=4200 orders/1=4100 --dry-run
  consumerd offsets reset -z zk1:2181 -g lake orders --to 2024-05-01T00:00:00Z
  consumerd offsets reset -z zk1:2181 -g lake orders/3 --to earliest --new-chain --yes
  consumerd offsets export -z zk1:2181 -g lake --output lake.json
  consumerd offsets set -z zk1:2181 -g lake --from-file lake.json
  consumerd offsets cancel -z zk1:2181 -g lake orders/3
"""

_WHO: Final = """\
Who does it. A partition that a consumerd holds is moved by that one: a request
is left in ZooKeeper and waited for. Without any member alive the position is
written, or, where the group has landed files, the request is left for the next
start, since going back needs a new chain of files. A partition of a Java member
is refused: it would not listen, and overwrite what is written.
"""


def add_offset_commands(offsets: argparse.ArgumentParser) -> None:
    """Add what is below ``offsets``."""
    offsets.description = (
        "Look at the stored positions of a group, keep them as a document, and move them: to a position, to the beginning\n"
        "or the end of the log, or to a time. What was asked for and not done yet can be cancelled. `show` and `export`\n"
        "change nothing."
    )
    offsets.epilog = _EXAMPLES
    offsets.formatter_class = argparse.RawDescriptionHelpFormatter
    below = offsets.add_subparsers(title="commands", metavar="COMMAND", required=True)

    one = below.add_parser("show", help="show a group's stored positions as they stand, and requests that wait")
    one.description = "Show the stored positions of a group as they stand in ZooKeeper, and the requests that wait."
    add_connection_options(one, group=True)
    one.add_argument("topic", nargs="*", help="only these")
    one.set_defaults(command=show)

    one = below.add_parser("export", help="print a group's positions as JSON, for `set --from-file`")
    one.description = "Print the stored positions of a group as one JSON document, which `set --from-file` reads."
    add_connection_options(one, group=True)
    one.add_argument("topic", nargs="*", help="only these")
    one.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there instead of to stdout")
    one.set_defaults(command=export)

    one = below.add_parser(
        "set",
        help="say where partitions go on",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.description = f"Set where partitions of a group go on: the next offset to read.\n\n{_WHO}"
    one.add_argument("target", nargs="*", metavar="TOPIC/PARTITION=POSITION", help="such as orders/0=4200")
    one.add_argument("--from-file", type=Path, metavar="FILE", help="positions as `offsets export` has written them")
    _add_move_options(one)
    one.set_defaults(command=set_positions)

    one = below.add_parser(
        "reset",
        help="move partitions to the beginning, the end, or a time",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.description = (
        "Move partitions of a group to the beginning or the end of their logs, or to the\n"
        "first record of a time on. Brokers before 0.10.1 know times only as exactly as\n"
        "their log segments: the position is then at or before the one that is meant,\n"
        f"never after it.\n\n{_WHO}"
    )
    one.add_argument("what", nargs="*", metavar="TOPIC[/PARTITION]", help="topics, or single partitions")
    one.add_argument("--all-topics", action="store_true", help="every topic of the group")
    one.add_argument(
        "--to",
        required=True,
        metavar="WHERE",
        help="earliest, latest, or a time: ISO 8601 (UTC unless it says otherwise) or ms since 1970",
    )
    _add_move_options(one)
    one.set_defaults(command=reset_positions)

    add_cancel_options(below.add_parser("cancel", help="take back requests that nobody has carried out yet"))


def _add_move_options(parser: argparse.ArgumentParser) -> None:
    add_connection_options(parser, group=True)
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask; needed where there is no terminal to ask on")
    parser.add_argument(
        "--new-chain",
        action="store_true",
        help="begin a new chain of files even where going on in the old one is possible",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="take positions outside the log, or of another cluster; leave requests where only Java members are",
    )
    parser.add_argument(
        "--wait", type=seconds, default=30.0, metavar="SECONDS", help="how long to wait for members to do it (30)"
    )


# -- looking


async def show(args: argparse.Namespace) -> int:
    """Show stored positions."""
    settings = inspection_settings(args, group=True)
    assert settings.group is not None
    async with inspect(settings, args.timeout) as access, timeout(args.timeout):
        rows = await find_offsets(access, settings.group.id, args.topic)
    print_rows(rows, _SHOWN, as_json=args.json, empty="no stored positions")
    return 0


async def export(args: argparse.Namespace) -> int:
    """Print positions as a document."""
    settings = inspection_settings(args, group=True)
    assert settings.group is not None
    async with inspect(settings, args.timeout) as access, timeout(args.timeout):
        exported = await export_offsets(access, settings.group.id, args.topic, now_ms=_wall_ms())
    for partition, position in exported.left_out.items():
        sys.stderr.write(f"consumerd: {partition} left out: {position.explain()}\n")
    document = exported.document
    text = encode_export(document)
    if args.output is None:
        sys.stdout.write(text)
        return 0
    try:
        args.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{args.output}: cannot be written: {error.strerror} (--output)") from error
    sys.stderr.write(
        f"consumerd: {counted(len(document.offsets), 'position')} of group {document.group} in {args.output}\n"
    )
    return 0


# -- moving


async def set_positions(args: argparse.Namespace) -> int:
    """Set positions that were given, or exported."""
    targets = [parse_target(text) for text in args.target]
    exported = None
    if args.from_file is not None:
        try:
            exported = parse_export(args.from_file.read_text(encoding="utf-8"), str(args.from_file))
        except OSError as error:
            raise ConfigError(f"{args.from_file}: cannot be read: {error.strerror} (--from-file)") from error
        except UnicodeDecodeError:
            raise ConfigError(f"{args.from_file}: not UTF-8 (--from-file)") from None
        kept, orphaned = split_orphans(exported)
        if orphaned:
            sys.stderr.write(f"consumerd: left out, deleted before the export already: {', '.join(orphaned)}\n")
        targets += [Target(partition=one.key, position=one.position) for one in kept]
    _check_distinct(targets)
    if not targets:
        raise ConfigError("nothing to set: give TOPIC/PARTITION=POSITION, or --from-file FILE")
    settings = inspection_settings(args, group=True)
    assert settings.group is not None
    async with inspect(settings, args.timeout) as access:
        async with timeout(args.timeout):
            named = await find_named(access, {target.partition for target in targets})
            if exported is not None and not args.force:
                check_origin(
                    exported, source=str(args.from_file), cluster=named.cluster, incarnations=named.incarnations
                )
            if not args.force:
                check_targets(targets, await access.ranges.find([target.partition for target in targets]))
        return await _move(access, settings.group.id, targets, args)


async def reset_positions(args: argparse.Namespace) -> int:
    """Move to the beginning, the end, or a time."""
    to = parse_time(args.to)
    if bool(args.what) == args.all_topics:
        raise ConfigError("name topics or partitions, or give --all-topics (and not both)")
    settings = inspection_settings(args, group=True)
    assert settings.group is not None
    async with inspect(settings, args.timeout) as access:
        async with timeout(args.timeout):
            wanted = args.what or await _list_topics(access, settings.group.id)
            named = await find_named(access, [_parse_topic_or_partition(text) for text in wanted])
            targets, coarse = await resolve_reset(access, named.partitions, to)
        if coarse:
            sys.stderr.write(
                "consumerd: a broker is older than 0.10.1: the time is exact to log segments, earlier rather than later\n"
            )
        return await _move(access, settings.group.id, targets, args)


async def _list_topics(access: ClusterAccess, group: str) -> list[str]:
    """Return the group's topics that are there; positions of others mean nothing any more."""
    await require_group(access.zk, group)
    topics = await list_group_topics(access.zk, group)
    if not topics:
        raise ConfigError(f"--all-topics: group {group} has no offsets, owners or members yet; name the topics")
    there = await follow_topics(access, topics, missing_ok=True)
    if gone := sorted(topics.difference(there)):
        sys.stderr.write(f"consumerd: left out, since there is no such topic: {', '.join(gone)}\n")
    return there


async def _move(access: ClusterAccess, group: str, targets: Sequence[Target], args: argparse.Namespace) -> int:
    async with timeout(args.timeout):
        plan = await plan_moves(access.zk, group, targets, force=args.force)
    if args.dry_run:
        print_rows([describe(one, "dry run") for one in plan.moves], _PLANNED, as_json=args.json, empty="nothing to do")
        sys.stdout.flush()
        _check_allowed(plan)
        return 0
    _check_allowed(plan)
    if not args.yes:
        if not sys.stdin.isatty():
            raise ConfigError("there is no terminal to ask on: give --yes to go on, or --dry-run to look")
        print_rows([describe(one, "") for one in plan.moves], _PLANNED, as_json=False, empty="nothing to do")
        if not await _confirm(f"Move {counted(len(plan.moves), 'partition')} of group {group}? [y/N] "):
            sys.stderr.write("consumerd: nothing was done\n")
            return 1
        # somebody may have joined or left while the question stood
        async with timeout(args.timeout):
            plan = await plan_moves(access.zk, group, targets, force=args.force)
        _check_allowed(plan)
    return await _carry_out(access, group, plan, args)


def _check_allowed(plan: Plan) -> None:
    if (refusal := plan.refusal()) is not None:
        raise OffsetError(refusal)


async def _carry_out(access: ClusterAccess, group: str, plan: Plan, args: argparse.Namespace) -> int:
    mover = OffsetMover(access.zk, group, author=_author(), new_id=lambda: uuid.uuid4().hex, wall_ms=_wall_ms)
    settled: list[PositionMoveRow] = []

    def take(row: PositionMoveRow) -> None:
        settled.append(row)
        if args.json:
            print_rows([row], _SETTLED, as_json=True, empty="")
            sys.stdout.flush()

    try:
        undone = await mover.carry_out(plan, new_chain=args.new_chain, wait_s=args.wait, show=take)
    finally:
        if settled and not args.json:
            settled.sort(key=lambda row: TopicPartition(row.topic, PartitionKey.parse(row.partition)))
            print_rows(settled, _SETTLED, as_json=False, empty="")
            sys.stdout.flush()
    if args.new_chain and any(move.way is Way.DIRECTLY for move in plan.moves):
        sys.stderr.write("consumerd: --new-chain says nothing where no files have been landed\n")
    if undone:
        raise explain_undone(undone, args.wait)
    return 0


async def _confirm(question: str) -> bool:
    """Ask on the terminal. Unbounded: it waits for a person, while the session goes on."""
    sys.stderr.write(question)
    sys.stderr.flush()
    typed = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


# -- what is typed


def parse_target(text: str) -> Target:
    """Read ``TOPIC/PARTITION=POSITION``. Raises ConfigError."""
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


_FIRST_MS: Final = 1_262_304_000_000
"""2010-01-01: no record is older."""


def parse_time(text: str) -> str | int:
    """Read ``earliest``, ``latest``, ms since 1970, or ISO 8601 (as ms). Raises ConfigError."""
    if text in {"earliest", "latest"}:
        return text
    if text.isascii() and text.isdigit():
        if 0 < (milliseconds := int(text)) < _FIRST_MS:
            # 20240501 is a date to whoever wrote it, and would be the morning of 1970-01-01
            raise ConfigError(
                f"--to: {text}: as ms since 1970 that is before the first Kafka; write a date as 2024-05-01, or use earliest"
            )
        return milliseconds
    with contextlib.suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        if (milliseconds := int(moment.timestamp() * 1000)) >= 0:
            return milliseconds
    raise ConfigError(
        f"--to: {text!r}: expected earliest, latest, a time such as 2024-05-01T12:00:00Z, or ms since 1970"
    )


def _check_distinct(targets: Sequence[Target]) -> None:
    seen: dict[TopicPartition, int] = {}
    for target in targets:
        if target.partition in seen:
            raise ConfigError(f"{target.partition} is named twice")
        seen[target.partition] = target.position


def _author() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _wall_ms() -> int:
    return int(time.time() * 1000)
