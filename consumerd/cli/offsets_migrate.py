# SPDX-License-Identifier: Apache-2.0
"""``consumerd offsets migrate``: moves a group's positions between ZooKeeper and Kafka.

Its commands are ``plan``, ``apply``, ``verify`` and ``rollback``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from consumerd.admin.inspection import inspect
from consumerd.admin.lag import name_place
from consumerd.admin.migration import (
    Migration,
    PartitionMigration,
    check_applied,
    explain_differences,
    read_migration,
    wait_until_equal,
)
from consumerd.admin.migration_file import encode_applied, parse_applied
from consumerd.admin.migration_steps import RETENTION, describe_road, list_steps
from consumerd.admin.operations import describe
from consumerd.admin.rollback import carry_out_rollback, plan_rollback
from consumerd.aio.timeouts import timeout
from consumerd.cli.offsets_move import SettledMoves, add_question_options, confirm, make_mover, wall_ms
from consumerd.cli.options import add_connection_options, group_settings, seconds
from consumerd.cli.tables import print_rows
from consumerd.client.opening import ClusterAccess
from consumerd.config.inspection import InspectionSettings
from consumerd.errors import ConfigError, OffsetError
from consumerd.offsets.opening import open_positions
from consumerd.offsets.store import Place
from consumerd.telemetry.wording import counted

_SHOWN: Final = ("topic", "partition", "zookeeper", "kafka", "difference", "counts", "writes", "note")
_PLANNED: Final = ("topic", "partition", "position", "target", "effect", "outcome")

_EXAMPLES: Final = """\
examples:
  consumerd offsets migrate plan -z zk1:2181 -g lake
  consumerd offsets migrate verify -z zk1:2181 -g lake
  consumerd offsets migrate apply -z zk1:2181 -g lake --save before.json
  consumerd offsets migrate rollback -z zk1:2181 -g lake before.json
  consumerd offsets migrate plan -z zk1:2181 -g lake --to zookeeper
"""

_WHAT: Final = """\
Move a group's positions from ZooKeeper to Kafka (offsets.storage=kafka), or back
with --to zookeeper. A group moves by rolling restarts of its members, while they
commit to both places:

  plan       show both places, what apply would write, and the steps
  verify     compare both places: 0 if the last step loses nothing, else 1
  apply      write missing and smaller positions, of topics that no member consumes
  rollback   restore what apply has replaced
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRow:
    """Positions of one partition in ZooKeeper and in Kafka, as ``offsets migrate`` prints them.

    Attributes:
        zookeeper: Position in ZooKeeper; None if there is none.
        kafka: Position in Kafka; None if there is none.
        difference: Position in Kafka minus that in ZooKeeper; None if one of them is missing.
        counts: Store from whose position members with these settings continue, ``zookeeper`` or ``kafka``; None without
            a usable position.
        comparison: Result for the store that the group moves to, such as ``smaller``.
        writes: Position that ``apply`` writes to that store; None if it writes none.
        note: Remark for the operator; empty if there is none.
    """

    topic: str
    partition: str
    zookeeper: int | None
    kafka: int | None
    difference: int | None
    counts: str | None
    comparison: str
    writes: int | None
    note: str


def add_migrate_options(migrate: argparse.ArgumentParser) -> None:
    """Add the commands below ``consumerd offsets migrate`` to its parser."""
    migrate.description = _WHAT
    migrate.epilog = _EXAMPLES
    migrate.formatter_class = argparse.RawDescriptionHelpFormatter
    below = migrate.add_subparsers(title="commands", metavar="COMMAND", required=True)

    one = below.add_parser(
        "plan",
        help="show both places, what apply would write, and the steps",
        description="Show the positions in both places, what apply would write, and the steps. Changes nothing.",
    )
    _add_options(one)
    one.add_argument(
        "--observe", type=seconds, default=0.0, metavar="SECONDS",
        help="look again after this long, and say in which place positions have moved (0)",
    )  # fmt: skip
    _add_replace_option(one)
    one.set_defaults(command=plan)

    one = below.add_parser(
        "apply",
        help="write missing and smaller positions to the place that the group moves to",
        description=(
            "Write missing and smaller positions to the place that the group moves to, and keep the ones before in a "
            "file. Topics that live members consume are left alone."
        ),
    )
    _add_options(one)
    add_question_options(one)
    _add_replace_option(one)
    one.add_argument(
        "--save", type=Path, metavar="FILE", help="the file for rollback (GROUP-before-kafka-TIME.json, in this folder)"
    )
    one.set_defaults(command=apply)

    one = below.add_parser(
        "verify",
        help="compare both places: exit code 0 if they hold the same",
        description=(
            "Compare both places. Exit code 0 if each has reached what the other one held when the command began, "
            "so that the last step loses nothing; else 1."
        ),
    )
    _add_options(one)
    one.add_argument(
        "--wait", type=seconds, default=10.0, metavar="SECONDS",
        help="how long to wait for commits that are under way, if members are alive (10)",
    )  # fmt: skip
    one.set_defaults(command=verify)

    one = below.add_parser(
        "rollback",
        help="restore what apply has replaced, from its file",
        description="Restore the positions that `apply` has replaced, from the file that it has written.",
    )
    add_connection_options(one, group=True)
    one.add_argument("file", type=Path, metavar="FILE", help="the file that apply has written")
    add_question_options(one)
    one.set_defaults(command=rollback)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_connection_options(parser, group=True)
    parser.add_argument("topic", nargs="*", help="only these")
    parser.add_argument(
        "--to",
        choices=[place.value for place in Place],
        default=Place.KAFKA.value,
        help="the place that the group moves to (kafka)",
    )


def _add_replace_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--replace-larger",
        action="store_true",
        help="write also where the place that the group moves to holds a larger position",
    )


# -- the commands


async def plan(args: argparse.Namespace) -> int:
    """Run ``offsets migrate plan``: show positions in ZooKeeper and Kafka, and the steps.

    It also shows what ``apply`` would write. Returns the exit code.
    """
    settings, _ = _read_settings(args)
    async with inspect(settings, args.timeout) as access:
        first = await _read(access, settings, args, replace_larger=args.replace_larger)
        second = None
        if args.observe:
            await asyncio.sleep(args.observe)
            second = await _read(access, settings, args, replace_larger=args.replace_larger)
    shown = second or first
    _print_partitions(shown.partitions, shown.to, args)
    sys.stdout.flush()
    notes = [describe_road(first, second, args.observe), *list_steps(shown.to)]
    if refusal := shown.find_refusal():
        notes += [f"apply refuses: {line}" for line in refusal.splitlines()]
    notes += filter(None, [shown.explain_left(), RETENTION])
    _tell(notes)
    return 0


async def apply(args: argparse.Namespace) -> int:
    """Run ``offsets migrate apply``: write positions that are missing or smaller in one store.

    The store is the one that the group moves to, ZooKeeper or Kafka. Returns the exit code.
    """
    settings, group = _read_settings(args)
    async with inspect(settings, args.timeout) as access:
        found = await _read(access, settings, args, replace_larger=args.replace_larger)
        if args.dry_run:
            _print_partitions(found.partitions, found.to, args)
            sys.stdout.flush()
        _check_allowed(found)
        if args.dry_run:
            return _end(found)
        if found.writes:
            if not args.yes:
                _print_partitions(found.writes, found.to, args)
                question = (
                    f"Write {counted(len(found.writes), 'position')} of group {group} to {found.to.label}? [y/N] "
                )
                if not await confirm(question):
                    return 1
                # members may have joined or committed while the question stood
                found = await _read(access, settings, args, replace_larger=args.replace_larger)
                _check_allowed(found)
            await _write(access, settings, found, args)
        return _end(found)


async def _write(
    access: ClusterAccess, settings: InspectionSettings, found: Migration, args: argparse.Namespace
) -> None:
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    file = args.save or Path(f"{found.group}-before-{found.to.value}-{moment}.json")
    _save(file, encode_applied(found.describe_applied(wall_ms())))
    _tell([f"what {found.to.label} held before is in {file}; it is restored by: consumerd offsets migrate rollback"])
    mover = make_mover(access, open_positions(access.cluster, found.group))
    with SettledMoves(as_json=args.json) as settled:
        await mover.carry_out(found.plan(), new_chain=False, wait_s=0.0, show=settled.take)
    check_applied(found, await _read(access, settings, args, replace_larger=args.replace_larger))


def _check_allowed(found: Migration) -> None:
    if refusal := found.find_refusal():
        raise OffsetError(f"nothing was written\n{refusal}")


def _end(found: Migration) -> int:
    """Say what is left, and return the exit code."""
    if found.to is Place.KAFKA and found.writes:
        _tell([RETENTION])
    if left := found.explain_left():
        raise OffsetError(left)
    if not found.writes:
        _tell([f"nothing to write: {found.to.label} holds all positions"])
    return 0


async def verify(args: argparse.Namespace) -> int:
    """Run ``offsets migrate verify``: compare the positions in ZooKeeper and in Kafka.

    Returns the exit code 0 if they agree; else raises OffsetError.
    """
    settings, _ = _read_settings(args)
    async with inspect(settings, args.timeout) as access:

        async def read() -> Migration:
            return await _read(access, settings, args)

        last, differing = await wait_until_equal(read, args.wait, asyncio.get_running_loop().time)
    if last.obstacle:
        raise OffsetError(last.obstacle)
    if not differing:
        if args.json:
            _print_partitions(last.partitions, last.to, args)
        else:
            sys.stdout.write(f"both places hold the same: {counted(len(last.partitions), 'partition')}\n")
        return 0
    differs = {one.partition for one in differing}
    _print_partitions([one for one in last.partitions if one.partition in differs], last.to, args)
    sys.stdout.flush()
    raise OffsetError(explain_differences([one for one in last.partitions if one.partition in differs], last.to))


async def rollback(args: argparse.Namespace) -> int:
    """Run ``offsets migrate rollback``: restore the positions that ``apply`` has replaced.

    Returns the exit code.
    """
    settings, group = _read_settings(args)
    applied = parse_applied(_load(args.file), str(args.file))
    async with inspect(settings, args.timeout) as access:
        async with timeout(args.timeout):
            found = await plan_rollback(access, group, applied, source=str(args.file))
        _tell(found.notes)
        if args.dry_run or not args.yes:
            rows = [describe(one, "") for one in found.plan.moves]
            print_rows(rows, _PLANNED, as_json=args.json, empty="nothing to restore")
            sys.stdout.flush()
        if args.dry_run or not found.count:
            return 0
        if not args.yes:
            question = f"Restore {counted(found.count, 'position')} of group {group}? [y/N] "
            if not await confirm(question):
                return 1
            async with timeout(args.timeout):
                found = await plan_rollback(access, group, applied, source=str(args.file))
        mover = make_mover(access, open_positions(access.cluster, group))
        with SettledMoves(as_json=args.json) as settled:
            await carry_out_rollback(access, found, mover, settled.take)
    return 0


# -- what they share


def _read_settings(args: argparse.Namespace) -> tuple[InspectionSettings, str]:
    """Return the settings and the group's id. Raises ConfigError, also for a cluster without ZooKeeper."""
    settings, group = group_settings(args)
    if settings.cluster.bootstrap is not None:
        raise ConfigError(
            "cluster.bootstrap: positions are moved between ZooKeeper and Kafka: give --zookeeper in place of "
            "--bootstrap"
        )
    return settings, group


async def _read(
    access: ClusterAccess, settings: InspectionSettings, args: argparse.Namespace, *, replace_larger: bool = False
) -> Migration:
    assert settings.group is not None
    async with timeout(args.timeout):
        return await read_migration(
            access,
            settings.group.id,
            args.topic,
            Place(args.to),
            settings.places,
            replace_larger=replace_larger,
        )


def _print_partitions(partitions: Sequence[PartitionMigration], to: Place, args: argparse.Namespace) -> None:
    print_rows([_describe(one, to) for one in partitions], _SHOWN, as_json=args.json, empty="no stored positions")


def _describe(one: PartitionMigration, to: Place) -> MigrationRow:
    zookeeper, kafka = (one.source, one.target) if to is Place.KAFKA else (one.target, one.source)
    known = zookeeper.believed is not None and kafka.believed is not None
    notes = [
        one.comparison.value if one.writes is None else "",
        "left to members" if one.is_consumed and one.writes is None else "",
        one.note,
        one.refusal,
    ]
    return MigrationRow(
        topic=one.partition.topic,
        partition=str(one.partition.partition),
        zookeeper=zookeeper.value,
        kafka=kafka.value,
        difference=(kafka.believed or 0) - (zookeeper.believed or 0) if known else None,
        counts=name_place(one.counts),
        comparison=one.comparison.value,
        writes=one.writes,
        note="; ".join(filter(None, notes)),
    )


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        sys.stderr.write(f"consumerd: {note}\n")


def _save(file: Path, text: str) -> None:
    """Write and sync a new file. Raises ConfigError, also if it exists."""
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror} (--save)") from error


def _load(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror} (FILE)") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not UTF-8 (FILE)") from None
