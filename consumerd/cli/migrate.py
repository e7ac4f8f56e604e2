# SPDX-License-Identifier: Apache-2.0
"""``consumerd migrate``: moves groups to another cluster, which a mirror writes.

Its commands are ``plan``, ``status``, ``translate``, ``cutover``, ``verify`` and ``rollback``.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from consumerd.admin.migrate.carrying_back import carry_back, describe_return, read_return
from consumerd.admin.migrate.comparing import CopyComparison
from consumerd.admin.migrate.cutover import CutoverStep, describe_start
from consumerd.admin.migrate.decisions import GroupMove, MoveOptions
from consumerd.admin.migrate.moving import Cutover, check_written, write_group
from consumerd.admin.migrate.opening import MigrationSettings, OpenMigration, open_migration
from consumerd.admin.migrate.reading import read_groups
from consumerd.admin.migrate.verifying import verify_partitions
from consumerd.cli.groups import tell
from consumerd.cli.migrate_rows import (
    COMPARED_COLUMNS,
    GROUP_COLUMNS,
    MOVE_COLUMNS,
    RETURN_COLUMNS,
    STATUS_COLUMNS,
    make_compared_rows,
    make_group_rows,
    make_move_rows,
    make_return_rows,
)
from consumerd.cli.offsets_move import SettledMoves, add_question_options, confirm, make_mover, wall_ms
from consumerd.cli.options import add_cluster_options, inspection_settings, positive_count, read_place, seconds
from consumerd.cli.tables import print_rows
from consumerd.config.load import load, load_inspection_settings
from consumerd.errors import ConfigError, OffsetError
from consumerd.mirror.positions import DEFAULT_TOPIC, open_mirror_positions
from consumerd.offsets.opening import open_positions
from consumerd.sinks.kafka.options import KafkaOptions
from consumerd.telemetry.wording import counted

_WHAT: Final = """\
Move groups to another cluster, which a mirror writes. Each group goes on in the
target with the record that it would have read next in the source:

  plan       all groups: their positions, what becomes of them, what would refuse
  status     how far the mirror is for each group, and if it can be cut over
  translate  write a group's translated positions into the target
  cutover    wait for the mirror, write, compare, and say what to start
  verify     compare records of both clusters
  rollback   write a group's positions of the target into the source
"""
_EXAMPLES: Final = """\
examples:
  consumerd migrate plan -z zk1:2181 --target new1:9092 --mirror-group mirror
  consumerd migrate status -c mirror.yaml
  consumerd migrate cutover -c mirror.yaml --group billing
  consumerd migrate verify -c mirror.yaml --sample 100
  consumerd migrate rollback -c mirror.yaml --group billing
"""
_ALIAS: Final = "source"
_CLIENT: Final = "consumerd-migrate"
_SESSION_TIMEOUT_MS: Final = 10_000


def add_migrate_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands below ``consumerd migrate`` to the parser."""
    migrate = commands.add_parser(
        "migrate",
        help="move groups to another cluster, which a mirror writes",
        description=_WHAT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = migrate.add_subparsers(title="commands", metavar="COMMAND", required=True)

    one = below.add_parser(
        "plan",
        help="show all groups, and what becomes of their positions",
        description="Show the positions of all groups, or of one, and what becomes of each. Changes nothing.",
    )
    _add_options(one, group=False)
    _add_move_options(one)
    one.set_defaults(command=plan)

    one = below.add_parser(
        "status",
        help="show how far the mirror is for each group, and if it can be cut over",
        description=(
            "Show for each group if it can be cut over, and why not; with --group, each of its partitions. Exit code "
            "1 if a group cannot be cut over."
        ),
    )
    _add_options(one, group=False)
    _add_move_options(one)
    one.set_defaults(command=status)

    one = below.add_parser(
        "translate",
        help="write a group's translated positions into the target",
        description=(
            "Write a group's translated positions into the target, if the group has no live members there, and "
            "checkpoints for Java's RemoteClusterUtils. Members in the source may be alive: write again after they "
            "are stopped. If one partition is refused, nothing is written."
        ),
    )
    _add_options(one, group=True)
    _add_move_options(one)
    add_question_options(one)
    _add_checkpoint_options(one)
    one.set_defaults(command=translate)

    one = below.add_parser(
        "cutover",
        help="wait for the mirror, write, compare, and say what to start",
        description=(
            "Cut a group over: wait until its members in the source are stopped and the mirror has passed their final "
            "positions, write the translated positions into the target, compare the next records of both clusters, "
            "and say what to start. After a failure, give the same command again: it goes on."
        ),
    )
    _add_options(one, group=True)
    _add_move_options(one)
    _add_checkpoint_options(one)
    one.add_argument(
        "--wait", type=seconds, default=300.0, metavar="SECONDS", help="how long to wait for members and mirror (300)"
    )
    one.set_defaults(command=cutover)

    one = below.add_parser(
        "verify",
        help="compare records of both clusters",
        description=(
            "Compare records of the source with their copies: key, value, headers and timestamp. Exit code 1 if they "
            "differ."
        ),
    )
    _add_options(one, group=None)
    how = one.add_mutually_exclusive_group()
    how.add_argument(
        "--sample",
        type=positive_count,
        default=20,
        metavar="N",
        help="positions of each partition to compare, beside its edges (20)",
    )
    how.add_argument("--full", action="store_true", help="compare all records")
    one.set_defaults(command=verify)

    one = below.add_parser(
        "rollback",
        help="write a group's positions of the target into the source",
        description=(
            "Bring a group back that has consumed in the target: write its positions into the source, where it had "
            "them before. Both clusters must have no live members of it."
        ),
    )
    _add_options(one, group=True)
    one.add_argument("--allow-backwards", action="store_true", help="write also where the source has a larger position")
    add_question_options(one)
    one.set_defaults(command=rollback)


def _add_options(parser: argparse.ArgumentParser, *, group: bool | None) -> None:
    """Add the options of all commands.

    Args:
        group: True to require a group, False to make it optional, None to leave it out.
    """
    add_cluster_options(parser, group=None, timeout="give up connecting after this long")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    target = parser.add_argument_group("the target, and the mirror that writes it")
    where = target.add_mutually_exclusive_group()
    where.add_argument("--target", metavar="HOST:PORT,...", help="brokers of the target to begin with")
    where.add_argument(
        "--target-config", type=Path, metavar="FILE", help="settings file whose section cluster is the target's"
    )
    where.add_argument("--sink", metavar="NAME", help="sink of --config, if several are of type kafka")
    target.add_argument("--mirror-group", metavar="ID", help="the group that mirrors (group.id of --config)")
    target.add_argument(
        "--positions-topic",
        metavar="TOPIC",
        help=f"topic of its positions (that of the sink, or {DEFAULT_TOPIC})",
    )
    if group is not None:
        # not "group": that is the mirror's, in the settings
        parser.add_argument("-g", "--group", dest="moving", metavar="ID", required=group, help="the group to move")
    parser.add_argument("topic", nargs="*", help="only these topics of the source")


def _add_move_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-backwards", action="store_true", help="write also where the target has a larger position"
    )
    parser.add_argument(
        "--accept-missing", action="store_true", help="move also where records not read yet are in the source only"
    )


def _add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--alias",
        default=_ALIAS,
        metavar="NAME",
        help="name of the source for Java's RemoteClusterUtils; checkpoints go to NAME.checkpoints.internal "
        f"({_ALIAS})",
    )
    how.add_argument("--no-checkpoints", action="store_true", help="write no checkpoints")


# -- the commands


async def plan(args: argparse.Namespace) -> int:
    """Run ``migrate plan``: show groups, and what becomes of their positions. Returns the exit code."""
    async with _open(args) as opened:
        found = await _read(opened, args)
    print_rows(make_move_rows(found), MOVE_COLUMNS, as_json=args.json, empty="no positions")
    for group in found:
        members = f"{counted(group.members, 'live member')} in the source, " if group.members else ""
        if refusal := group.find_refusal():
            tell(f"group {group.group}: {line}" for line in refusal.splitlines())
        else:
            moved = counted(len(group.moved), "position")
            tell([f"group {group.group}: {members}{moved} to move; translate, or cutover"])
    return 0


async def status(args: argparse.Namespace) -> int:
    """Run ``migrate status``: show for each group if it can be cut over.

    Returns the exit code: 1 if one cannot be.
    """
    async with _open(args) as opened:
        found = await _read(opened, args)
    groups = make_group_rows(found)
    if args.moving is not None:
        print_rows(make_move_rows(found), STATUS_COLUMNS, as_json=args.json, empty="no positions")
    if args.moving is None or not args.json:
        print_rows(groups, GROUP_COLUMNS, as_json=args.json, empty="no groups")
    return 0 if all(one.safe == "yes" for one in groups) else 1


async def translate(args: argparse.Namespace) -> int:
    """Run ``migrate translate``: write a group's translated positions into the target. Returns the exit code."""
    async with _open(args) as opened:
        (group,) = await _read(opened, args)
        if args.dry_run or not args.yes:
            _print_moves([group], args)
        _check(group)
        if args.dry_run:
            return 0
        if group.writes and not args.yes:
            question = f"Write {counted(len(group.writes), 'position')} of group {group.group} into the target? [y/N] "
            if not await confirm(question):
                return 1
            (group,) = await _read(opened, args)  # members may have joined or committed while the question stood
            _check(group)
        await write_group(opened, group, _find_alias(args))
        (after,) = await _read(opened, args)
        check_written(group, after)
    if args.yes:
        _print_moves([after], args)
    if group.members:
        tell(
            [f"group {group.group} has {counted(group.members, 'live member')} in the source: write again once stopped"]
        )
    return 0


async def cutover(args: argparse.Namespace) -> int:
    """Run ``migrate cutover``: carry out the steps of a group's cut-over that are left.

    Returns the exit code.
    """

    def show(step: CutoverStep, why: str) -> None:
        tell([f"{step.value}{f' ({why.splitlines()[0]})' if why and step is not CutoverStep.REFUSE else ''}"])

    async with _open(args) as opened:
        run = Cutover(
            opened,
            args.moving,
            topics=args.topic,
            options=_read_options(args),
            alias=_find_alias(args),
            wall_ms=wall_ms,
            now=asyncio.get_running_loop().time,
            show=show,
        )
        group = await run.run(args.wait)
        bootstrap = ",".join(str(one.address) for one in opened.clusters.target.directory.view.brokers.values())
    _print_moves([group], args)
    tell([describe_start(group.group, bootstrap, group.moved)])
    return 0


async def verify(args: argparse.Namespace) -> int:
    """Run ``migrate verify``: compare records of both clusters. Returns the exit code."""
    results = list[CopyComparison]()

    def show(result: CopyComparison) -> None:
        results.append(result)
        if args.json:
            print_rows(make_compared_rows([result]), COMPARED_COLUMNS, as_json=True, empty="")
            sys.stdout.flush()

    async with _open(args) as opened:
        sample = None if args.full else args.sample
        await verify_partitions(opened, args.topic, sample=sample, random=random.Random(), show=show)
    if not args.json:
        print_rows(make_compared_rows(results), COMPARED_COLUMNS, as_json=False, empty="nothing to compare")
    different = [text for one in results for text in one.differences]
    if more := sum(one.more for one in results):
        different.append(f"and {more} more")
    if different:
        sys.stdout.flush()
        raise OffsetError("\n".join(different))
    return 0


async def rollback(args: argparse.Namespace) -> int:
    """Run ``migrate rollback``: write a group's positions of the target into the source.

    Returns the exit code.
    """
    async with _open(args) as opened:
        source = opened.clusters.source
        found = await read_return(opened, args.moving, args.topic, allow_backwards=args.allow_backwards)
        if args.dry_run or not args.yes:
            print_rows(make_return_rows(found.partitions), RETURN_COLUMNS, as_json=args.json, empty="no positions")
            sys.stdout.flush()
        if found.refusal:
            raise OffsetError(f"nothing was written\n{found.refusal}")
        if args.dry_run:
            return 0
        if found.plan.moves and not args.yes:
            question = (
                f"Write {counted(len(found.plan.moves), 'position')} of group {args.moving} into the source? [y/N] "
            )
            if not await confirm(question):
                return 1
            found = await read_return(opened, args.moving, args.topic, allow_backwards=args.allow_backwards)
        with SettledMoves(as_json=args.json) as settled:
            await carry_back(
                opened,
                found,
                lambda: make_mover(source, open_positions(source.cluster, args.moving)),
                settled.take,
                wall_ms,
            )
        place = source.cluster.address.zookeeper or source.cluster.address.bootstrap or ""
    tell([describe_return(found, place)])
    return 0


# -- what they share


@asynccontextmanager
async def _open(args: argparse.Namespace) -> AsyncIterator[OpenMigration]:
    async with open_migration(_read_settings(args), open_mirror_positions, args.timeout) as opened:
        yield opened


def _read_settings(args: argparse.Namespace) -> MigrationSettings:
    """Return both addresses, and the mirror's group and topic.

    They are those of the mirror's settings file, unless options give the target. Raises ConfigError.
    """
    if args.target is None and args.target_config is None:
        return _read_mirror_settings(args)
    source = inspection_settings(args)
    extra = {} if args.target is None else {"cluster": {"bootstrap": args.target}}
    target = load_inspection_settings(config=args.target_config, environment={}, extra=extra)
    mirror = args.mirror_group or (None if source.group is None else source.group.id)
    if mirror is None:
        raise ConfigError(
            "the group that mirrors is missing: give --mirror-group ID, or --config with the mirror's file"
        )
    return MigrationSettings(
        source=source,
        target=target.cluster.locate(client_id=_CLIENT, session_timeout_ms=_SESSION_TIMEOUT_MS),
        mirror_group=mirror,
        positions_topic=args.positions_topic or DEFAULT_TOPIC,
    )


def _read_mirror_settings(args: argparse.Namespace) -> MigrationSettings:
    if args.config is None:
        raise ConfigError(
            "the target is missing: give --config with the mirror's file, --target HOST:PORT,... or "
            "--target-config FILE"
        )
    loaded = load(config=args.config, properties=args.properties, overrides=args.overrides, extra=read_place(args))
    found = {name: one for name, one in loaded.sinks.items() if isinstance(one, KafkaOptions)}
    if args.sink is not None:
        found = {name: one for name, one in found.items() if name == args.sink}
    if len(found) != 1:
        names = ", ".join(found) or "none"
        raise ConfigError(
            f"{args.config}: expected one sink of type kafka, found {names}: give --sink NAME, or --target"
        )
    ((name, options),) = found.items()
    group = args.mirror_group or loaded.settings.group.id
    return MigrationSettings(
        source=inspection_settings(args),
        target=options.locate(name, _CLIENT),
        mirror_group=group,
        positions_topic=args.positions_topic or options.positions_topic,
    )


def _read_options(args: argparse.Namespace) -> MoveOptions:
    return MoveOptions(allow_backwards=args.allow_backwards, accept_missing=args.accept_missing)


def _find_alias(args: argparse.Namespace) -> str | None:
    return None if args.no_checkpoints else args.alias


async def _read(opened: OpenMigration, args: argparse.Namespace) -> list[GroupMove]:
    groups = [] if args.moving is None else [args.moving]
    return await read_groups(opened.clusters, groups, args.topic, _read_options(args))


def _print_moves(groups: Iterable[GroupMove], args: argparse.Namespace) -> None:
    print_rows(make_move_rows(groups), MOVE_COLUMNS, as_json=args.json, empty="no positions")
    sys.stdout.flush()


def _check(group: GroupMove) -> None:
    if refusal := group.find_refusal():
        raise OffsetError(f"nothing was written\n{refusal}")
