# SPDX-License-Identifier: Apache-2.0
"""The one-shot commands: connect, ask, print, leave."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from consumerd.admin.inspection import (
    JavaPatience,
    LagEstimator,
    LagRow,
    explain,
    find_lag,
    find_partitions,
    find_topics,
    inspect,
)
from consumerd.aio.timeouts import timeout
from consumerd.cli.options import inspection_settings
from consumerd.cli.tables import print_rows
from consumerd.client.opening import ClusterAccess
from consumerd.telemetry.wording import counted

_TOPIC_COLUMNS = ("topic", "partitions", "replication", "leaderless", "incarnation")
_PARTITION_COLUMNS = ("topic", "partition", "leader", "replicas", "in_sync", "earliest", "latest")
_LAG_COLUMNS = ("topic", "partition", "owner", "position", "latest", "lag", "seconds", "note")


async def topics(args: argparse.Namespace) -> int:
    """List topics, or their partitions."""
    settings = inspection_settings(args, group=False)
    async with inspect(settings, args.timeout) as access, timeout(args.timeout):
        if args.partitions:
            partitions = await find_partitions(access, args.topic)
            print_rows(partitions, _PARTITION_COLUMNS, as_json=args.json, empty="no partitions")
        else:
            rows = await find_topics(access, args.topic)
            print_rows(rows, _TOPIC_COLUMNS, as_json=args.json, empty="no topics")
    return 0


async def lag(args: argparse.Namespace) -> int:
    """Show a group's lag, once or again and again."""
    settings = inspection_settings(args, group=True)
    assert settings.group is not None
    if args.watch is None:
        async with inspect(settings, args.timeout) as access, timeout(args.timeout):
            _print_lag(await find_lag(access, settings.group.id, args.topic), args)
        return 0
    async with inspect(settings, args.timeout) as access:
        await _watch_lag(access, settings.group.id, args)
    return 0


async def _watch_lag(access: ClusterAccess, group: str, args: argparse.Namespace) -> None:
    """Print until interrupted, with estimates in the notes of partitions whose records have no timestamps."""
    estimator = LagEstimator(asyncio.get_running_loop().time)
    while True:
        async with timeout(args.timeout):
            rows = await find_lag(access, group, args.topic)
        _print_lag(estimator.estimate(rows), args)
        if not args.json:
            sys.stdout.write("\n")
        sys.stdout.flush()
        await asyncio.sleep(args.watch)


def _print_lag(rows: list[LagRow], args: argparse.Namespace) -> None:
    print_rows(rows, _LAG_COLUMNS, as_json=args.json, empty="no partitions")
    if not args.json:
        sys.stdout.write(f"{sum_lag(rows)}\n")


def sum_lag(rows: Sequence[LagRow]) -> str:
    """Return the line below the table. A lag that is unknown is never added as 0."""
    there = [row for row in rows if not row.deleted]
    known = [row.lag for row in there if row.lag is not None]
    partitions = counted(len(there), "partition")
    total = f"total lag {sum(known)}"
    if len(known) < len(there):
        total = f"total lag unknown: at least {sum(known)}, unknown in {len(there) - len(known)} of {partitions}"
    return f"{total}, {sum(row.owner is None for row in there)} of {partitions} without an owner"


async def explain_rebalance(args: argparse.Namespace) -> int:
    """Show the assignment, what would move, and what is wrong."""
    settings = inspection_settings(args, group=True)
    java = JavaPatience(retries=args.java_retries, backoff_ms=args.java_backoff_ms, session_ms=args.java_session_ms)
    async with inspect(settings, args.timeout) as access, timeout(args.timeout):
        plan = await explain(access, settings, replicas=args.replicas, streams=args.streams, java=java)
    columns: tuple[str, ...] = ("topic", "partition", "owner", "assigned")
    if args.replicas:
        columns += ("then", "moves")
    print_rows(plan.rows, columns, as_json=args.json, empty="nothing to assign" if plan.members else "no members yet")
    if plan.members and not args.json:
        moving = sum(bool(row.moves) for row in plan.rows)
        sys.stdout.write(f"{counted(plan.members, 'member')}, {counted(len(plan.rows), 'partition')}")
        more = counted(args.replicas, "more replica")
        sys.stdout.write(f", {moving} would move with {more}\n" if args.replicas else "\n")
    for problem in plan.problems:
        sys.stderr.write(f"consumerd: {problem}\n")
    return 0
