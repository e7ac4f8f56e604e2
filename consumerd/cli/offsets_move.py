# SPDX-License-Identifier: Apache-2.0
"""Options, question and output of the commands that change committed positions."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Final, Self

from consumerd.admin.inspection import find_coordinated
from consumerd.admin.kafka_moves import move_in_kafka, plan_kafka_moves
from consumerd.admin.operations import (
    OffsetMover,
    Plan,
    PositionMoveRow,
    Target,
    Way,
    describe,
    explain_undone,
    plan_moves,
)
from consumerd.aio.timeouts import timeout
from consumerd.cli.options import add_connection_options, seconds
from consumerd.cli.tables import print_rows
from consumerd.client.opening import ClusterAccess
from consumerd.config.inspection import InspectionSettings
from consumerd.errors import ConfigError, OffsetError
from consumerd.model import PartitionKey, TopicPartition
from consumerd.offsets.group_positions import GroupPositions
from consumerd.offsets.opening import open_kafka_writer, open_positions
from consumerd.telemetry.wording import counted

_PLANNED: Final = ("topic", "partition", "owner", "position", "target", "effect", "way")
_SETTLED: Final = ("topic", "partition", "position", "target", "effect", "outcome")
_NO_FILES: Final = "--new-chain says nothing where no files have been landed"
_NO_REQUESTS: Final = (
    "--new-chain says nothing without ZooKeeper: the next owner begins a new chain if the position is below the end of "
    "what it has landed, and goes on in the old one otherwise"
)


def add_move_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all commands have which change positions, such as ``--force``."""
    add_connection_options(parser, group=True)
    add_question_options(parser)
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


def add_question_options(parser: argparse.ArgumentParser) -> None:
    """Add the options ``--dry-run`` and ``--yes``, of commands that ask before they write."""
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask; needed where there is no terminal to ask on")


async def move(
    access: ClusterAccess, settings: InspectionSettings, targets: Sequence[Target], args: argparse.Namespace
) -> int:
    """Plan changes of committed positions, ask the operator, and carry the changes out.

    Returns the exit code.

    Args:
        settings: Settings of the command, with the stores in which members read positions.
        targets: New position of each partition.
        args: Options of the command line, such as ``--force`` and ``--dry-run``.
    """
    assert settings.group is not None
    group, places = settings.group.id, settings.places
    positions = open_positions(access.cluster, group)

    async def make_plan() -> Plan:
        async with timeout(args.timeout):
            if access.has_zookeeper:
                return await plan_moves(access.zk, positions, targets, places, force=args.force)
            return await plan_kafka_moves(positions, await find_coordinated(access, group), targets)

    plan = await make_plan()
    if args.dry_run:
        print_rows([describe(one, "dry run") for one in plan.moves], _PLANNED, as_json=args.json, empty="nothing to do")
        sys.stdout.flush()
        _check_allowed(plan)
        return 0
    _check_allowed(plan)
    if not args.yes:
        _require_terminal()
        print_rows([describe(one, "") for one in plan.moves], _PLANNED, as_json=False, empty="nothing to do")
        if not await confirm(f"Move {counted(len(plan.moves), 'partition')} of group {group}? [y/N] "):
            return 1
        # members may have joined or left while the question stood
        plan = await make_plan()
        _check_allowed(plan)
    return await _carry_out(access, positions, plan, args)


def _check_allowed(plan: Plan) -> None:
    if (refusal := plan.refusal()) is not None:
        raise OffsetError(refusal)


async def _carry_out(access: ClusterAccess, positions: GroupPositions, plan: Plan, args: argparse.Namespace) -> int:
    with SettledMoves(as_json=args.json) as settled:
        if access.has_zookeeper:
            mover = make_mover(access, positions)
            undone = await mover.carry_out(plan, new_chain=args.new_chain, wait_s=args.wait, show=settled.take)
        else:
            undone = await move_in_kafka(open_kafka_writer(access.cluster, positions.group), plan, settled.take)
    if args.new_chain and any(move.way is Way.DIRECTLY for move in plan.moves):
        sys.stderr.write(f"consumerd: {_NO_FILES if access.has_zookeeper else _NO_REQUESTS}\n")
    if undone:
        raise explain_undone(undone, args.wait)
    return 0


def make_mover(access: ClusterAccess, positions: GroupPositions) -> OffsetMover:
    """Return the object that carries out planned position changes.

    Requests to members that it leaves in ZooKeeper carry the name of the user who runs the command.
    """
    return OffsetMover(
        access.zk,
        positions,
        author=_author(),
        new_id=lambda: uuid.uuid4().hex,
        wall_ms=wall_ms,
        kafka=open_kafka_writer(access.cluster, positions.group),
    )


class SettledMoves:
    """Prints the outcomes of position changes, as JSON or as a table.

    Each outcome is printed at once as JSON, or collected for a table. The table is printed when the ``with`` block
    ends, also after an error, in order of partitions.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._rows: list[PositionMoveRow] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._rows and not self._as_json:
            self._rows.sort(key=lambda row: TopicPartition(row.topic, PartitionKey.parse(row.partition)))
            print_rows(self._rows, _SETTLED, as_json=False, empty="")
            sys.stdout.flush()

    def take(self, row: PositionMoveRow) -> None:
        """Add the outcome of one partition's position change."""
        self._rows.append(row)
        if self._as_json:
            print_rows([row], _SETTLED, as_json=True, empty="")
            sys.stdout.flush()


def _require_terminal() -> None:
    if not sys.stdin.isatty():
        raise ConfigError("there is no terminal to ask on: give --yes to go on, or --dry-run to look")


async def confirm(question: str) -> bool:
    """Ask the operator on the terminal, without a timeout; return True for yes.

    Raises ConfigError without a terminal. The event loop keeps the ZooKeeper session alive meanwhile.
    """
    _require_terminal()
    sys.stderr.write(question)
    sys.stderr.flush()
    typed = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    is_confirmed = sys.stdin.readline().strip().lower() in {"y", "yes"}
    if not is_confirmed:
        sys.stderr.write("consumerd: nothing was done\n")
    return is_confirmed


def _author() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def wall_ms() -> int:
    """Return the present time, in ms since the epoch."""
    return int(time.time() * 1000)
