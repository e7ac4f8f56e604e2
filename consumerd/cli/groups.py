# SPDX-License-Identifier: Apache-2.0
"""``consumerd groups`` and ``consumerd groups describe``: all groups of a cluster, and one of them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

from consumerd.admin.groups import GroupReport, GroupRow, describe_group, find_groups
from consumerd.admin.inspection import inspect
from consumerd.aio.timeouts import timeout
from consumerd.cli.options import add_connection_options, inspection_settings
from consumerd.cli.tables import print_rows
from consumerd.telemetry.text_tables import escape_unprintable, render_table
from consumerd.telemetry.wording import counted, join_shown

SILENCE_SHARE: Final = 0.25
"""Share of ``--timeout`` for which the commands wait for brokers that do not answer.

The rest of the time is left for the brokers that answer.
"""
_TOPICS_SHOWN: Final = 3
_PARTITIONS_SHOWN: Final = 10
_PARTITION_COLUMNS: Final = ("topic", "partition", "owner", "position", "kafka", "latest", "lag", "note")
_UNKNOWN_MEMBERS: Final = "members unknown"
_SOME_MISSING: Final = 1


def add_groups_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands ``consumerd groups`` and ``consumerd groups describe`` to the parser."""
    parser = commands.add_parser(
        "groups",
        help="list all groups, ZooKeeper's and Kafka's",
        description=(
            "List all groups of the cluster: where their members are registered, how many they are, their state, where "
            "their positions are, their topics and total lag. Lag of groups in ZooKeeper is counted from the positions "
            "of offsets.storage in the settings, that of groups that brokers coordinate from those in Kafka. Exit code "
            "1 if groups may be missing, since a broker does not tell its own."
        ),
    )
    add_connection_options(parser, group=False)
    parser.set_defaults(command=groups)
    describe = parser.add_subparsers(metavar="describe", required=False).add_parser(
        "describe",
        help="show one group: members, and partitions with position, lag and owner",
        description=(
            "Show one group, in ZooKeeper or in Kafka: its members with their subscriptions and partitions, and each "
            "partition with its position, lag and owner."
        ),
    )
    describe.add_argument("name", metavar="GROUP")
    add_connection_options(describe, group=False)
    describe.set_defaults(command=describe_one)


async def groups(args: argparse.Namespace) -> int:
    """Run ``consumerd groups``: list all consumer groups.

    Returns the exit code: 1 if groups may be missing, else 0.
    """
    settings = inspection_settings(args)
    patience_s = args.timeout * SILENCE_SHARE
    async with inspect(settings, args.timeout) as access, timeout(args.timeout):
        found = await find_groups(access, settings.places, patience_s=patience_s)
    if args.json:
        print_rows(found.rows, (), as_json=True, empty="")
    elif not found.rows:
        sys.stdout.write("no groups\n")
    else:
        sys.stdout.write(render_table(*_tabulate(found.rows)))
    tell([*found.notes, *found.problems])
    return _SOME_MISSING if found.problems else 0


async def describe_one(args: argparse.Namespace) -> int:
    """Run ``consumerd groups describe``: print one group with its members and partitions.

    Returns the exit code: 1 if something could not be read, else 0.
    """
    settings = inspection_settings(args)
    patience_s = args.timeout * SILENCE_SHARE
    async with inspect(settings, args.timeout) as access, timeout(args.timeout):
        report = await describe_group(access, args.name, settings.places, patience_s=patience_s)
    if args.json:
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
    else:
        _print_report(report)
    tell([*report.notes, *report.problems])
    return _SOME_MISSING if report.problems else 0


def tell(texts: Iterable[str]) -> None:
    """Print notes and problems on stderr, one per line."""
    sys.stdout.flush()
    for text in texts:
        sys.stderr.write(f"consumerd: {escape_unprintable(text)}\n")


def _tabulate(rows: Sequence[GroupRow]) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    heads = ("group", "registered", "members", "state", "positions", "topics", "lag", "note")
    return heads, [
        (
            row.group,
            row.registered,
            row.members,
            row.state,
            row.positions,
            join_shown(row.topics, _TOPICS_SHOWN),
            row.lag,
            row.note,
        )
        for row in rows
    ]


def _print_report(report: GroupReport) -> None:
    summary = report.summary
    members = _UNKNOWN_MEMBERS if summary.members is None else counted(summary.members, "member")
    lag = summary.lag if summary.lag is not None else f"unknown, at least {summary.known_lag}"
    facts = [f"registered: {summary.registered}", members, f"state: {summary.state}"]
    facts += [f"positions: {summary.positions}", f"total lag: {lag}"]
    lines = [f"group {summary.group}: {', '.join(facts)}"]
    if report.coordinator is not None:
        protocol = " ".join(filter(None, (report.protocol_type, report.protocol))) or "none, it only commits positions"
        lines.append(f"coordinator: broker {report.coordinator}, protocol: {protocol}")
    lines += [f"note: {summary.note}"] if summary.note else []
    sys.stdout.write("".join(f"{escape_unprintable(line)}\n" for line in lines))
    if report.members:
        heads = ("member", "registered", "client id", "host", "session", "threads", "topics", "partitions", "note")
        rows = [
            (
                one.member,
                one.registered,
                one.client_id,
                one.host,
                one.session,
                len(one.threads) if one.threads else None,
                join_shown(one.topics, _TOPICS_SHOWN),
                join_shown(one.owned, _PARTITIONS_SHOWN),
                one.note,
            )
            for one in report.members
        ]
        sys.stdout.write(f"\n{render_table(heads, rows)}")
    sys.stdout.write("\n")
    print_rows(report.partitions, _PARTITION_COLUMNS, as_json=False, empty="no partitions")
