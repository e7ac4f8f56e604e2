# SPDX-License-Identifier: Apache-2.0
"""The one-shot commands ``topics``, ``lag`` and ``explain-rebalance``: connect, read, print, exit."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Collection
from dataclasses import replace

from consumerd.admin.away import describe_away, read_group_away
from consumerd.admin.groups import find_lag_of_groups
from consumerd.admin.inspection import JavaPatience, explain, find_partitions, find_topics, inspect
from consumerd.admin.lag import GroupLag, LagEstimator, LagRowOfBoth, describe_total, explain_incarnations, find_lag
from consumerd.aio.timeouts import timeout
from consumerd.cli.groups import SILENCE_SHARE, tell
from consumerd.cli.options import group_settings, inspection_settings
from consumerd.cli.tables import print_rows
from consumerd.client.opening import ClusterAccess
from consumerd.errors import ConfigError
from consumerd.model import Generation
from consumerd.offsets.store import Place
from consumerd.telemetry.wording import counted

_TOPIC_COLUMNS = ("topic", "partitions", "replication", "leaderless", "incarnation")
_PARTITION_COLUMNS = ("topic", "partition", "leader", "replicas", "in_sync", "earliest", "latest")
_LAG_COLUMNS = ("topic", "partition", "owner", "position", "latest", "lag", "seconds", "note")
_LAG_COLUMNS_OF_GROUPS = ("group", "topic", "partition", "owner", "position", "kafka", "latest", "lag", "note")
_ONLY_REGISTERED = (
    "brokers of Kafka 0.6 and 0.7 that are away, and their partitions, are not listed: nothing in ZooKeeper names "
    "them. consumerd lag names those of which a group has positions"
)
_LAG_COLUMNS_OF_BOTH = ("topic", "partition", "owner", "position", "kafka", "latest", "lag", "seconds", "note")


async def topics(args: argparse.Namespace) -> int:
    """Run ``consumerd topics``: list topics, or their partitions. Returns the exit code."""
    settings = inspection_settings(args)
    async with inspect(settings, args.timeout) as access, timeout(args.timeout):
        if args.partitions:
            partitions = await find_partitions(access, args.topic)
            print_rows(partitions, _PARTITION_COLUMNS, as_json=args.json, empty="no partitions")
        else:
            rows = await find_topics(access, args.topic)
            print_rows(rows, _TOPIC_COLUMNS, as_json=args.json, empty="no topics")
        sys.stdout.flush()
        for note in explain_incarnations(access):
            sys.stderr.write(f"consumerd: {note}\n")
        if access.generation is Generation.LEGACY:
            sys.stderr.write(f"consumerd: {_ONLY_REGISTERED}\n")
    return 0


async def lag(args: argparse.Namespace) -> int:
    """Run ``consumerd lag``: print the lag of one group or all, once or periodically.

    Returns the exit code: 1 if the list of all groups may be incomplete, else 0.
    """
    if args.all_groups:
        return await _lag_of_groups(args)
    settings, group = group_settings(args, instead=", or --all-groups")
    if args.watch is None:
        async with inspect(settings, args.timeout) as access, timeout(args.timeout):
            _print_lag(await find_lag(access, group, args.topic, settings.places), args)
        return 0
    async with inspect(settings, args.timeout) as access:
        await _watch_lag(access, group, settings.places, args)
    return 0


async def _lag_of_groups(args: argparse.Namespace) -> int:
    if args.group is not None:
        raise ConfigError("--all-groups and --group exclude each other")
    settings = inspection_settings(args)
    async with inspect(settings, args.timeout) as access:
        while True:
            async with timeout(args.timeout):
                found = await find_lag_of_groups(
                    access, args.topic, settings.offsets.places, patience_s=args.timeout * SILENCE_SHARE
                )
            print_rows(found.rows, _LAG_COLUMNS_OF_GROUPS, as_json=args.json, empty="no partitions")
            if not args.json:
                sys.stdout.write(f"{describe_total(found.rows)}, in {counted(found.groups, 'group')}\n")
            tell([*found.notes, *found.problems])
            if args.watch is None:
                return 1 if found.problems else 0
            if not args.json:
                sys.stdout.write("\n")
            sys.stdout.flush()
            await asyncio.sleep(args.watch)


async def _watch_lag(access: ClusterAccess, group: str, places: Collection[Place], args: argparse.Namespace) -> None:
    """Print until interrupted, with estimates in the notes of partitions whose records have no timestamps."""
    estimator = LagEstimator(asyncio.get_running_loop().time)
    while True:
        async with timeout(args.timeout):
            found = await find_lag(access, group, args.topic, places)
        _print_lag(replace(found, rows=estimator.estimate(found.rows)), args)
        if not args.json:
            sys.stdout.write("\n")
        sys.stdout.flush()
        await asyncio.sleep(args.watch)


def _print_lag(found: GroupLag, args: argparse.Namespace) -> None:
    columns = _LAG_COLUMNS_OF_BOTH if found.rows and isinstance(found.rows[0], LagRowOfBoth) else _LAG_COLUMNS
    print_rows(found.rows, columns, as_json=args.json, empty="no partitions")
    if not args.json:
        sys.stdout.write(f"{describe_total(found.rows)}\n")
    sys.stdout.flush()
    for note in found.notes:
        sys.stderr.write(f"consumerd: {note}\n")


async def explain_rebalance(args: argparse.Namespace) -> int:
    """Run ``consumerd explain-rebalance``: print each partition's owner, and the assigned one.

    With ``--replicas N``, also print the owner that each partition would have if N more consumerd processes joined.
    Problems of the group are printed on stderr. Returns the exit code.
    """
    settings, group = group_settings(args)
    java = JavaPatience(retries=args.java_retries, backoff_ms=args.java_backoff_ms, session_ms=args.java_session_ms)
    async with inspect(settings, args.timeout) as access, timeout(args.timeout):
        plan = await explain(access, settings, replicas=args.replicas, streams=args.streams, java=java)
        away = await read_group_away(access, group)
    columns: tuple[str, ...] = ("topic", "partition", "owner", "assigned")
    if args.replicas:
        columns += ("then", "moves")
    print_rows(plan.rows, columns, as_json=args.json, empty="nothing to assign" if plan.members else "no members yet")
    if plan.members and not args.json:
        moving = sum(bool(row.moves) for row in plan.rows)
        sys.stdout.write(f"{counted(plan.members, 'member')}, {counted(len(plan.rows), 'partition')}")
        more = counted(args.replicas, "more replica")
        sys.stdout.write(f", {moving} would move with {more}\n" if args.replicas else "\n")
    for problem in (*plan.problems, *describe_away(away)):
        sys.stderr.write(f"consumerd: {problem}\n")
    return 0
