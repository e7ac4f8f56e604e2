# SPDX-License-Identifier: Apache-2.0
"""``consumerd doctor``: finds problems of a consumer group, and gives advice on each."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from consumerd.admin.doctor.examine import examine
from consumerd.admin.doctor.findings import encode_finding
from consumerd.cli.options import add_connection_options, group_settings, read_place
from consumerd.config.load import load_settings
from consumerd.landing.findings import Finding
from consumerd.telemetry.text_tables import escape_unprintable


def add_doctor_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``consumerd doctor`` to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="look for what is wrong with a group, and say what to do",
        description=(
            "Look at the group's nodes in ZooKeeper and at its positions in the brokers' logs: stale, malformed, "
            "orphaned and "
            "duplicate nodes with the sessions that hold them, partitions without an owner, positions that are in no "
            "log, "
            "requests that nobody carries out, rights that members lack. With --config also at settings that do not go "
            "together, "
            "and at this machine: landing folders (by a hidden file that is written, linked and removed again), free "
            "space "
            "and inodes, the clock against ZooKeeper's (by an ephemeral node that is deleted again), /metrics, and the "
            "partitions that the daemon there says are stopped or failing. Run it "
            "as the daemon's user. Leaves everything as it was. Exit code 1 for errors and warnings, 0 if there are "
            "none, 3 if ZooKeeper is not reached."
        ),
    )
    add_connection_options(parser, group=True)
    parser.set_defaults(command=doctor)


async def doctor(args: argparse.Namespace) -> int:
    """Run ``consumerd doctor``: examine a group, and print the problems found.

    Returns the exit code: 1 if an error or a warning was found, else 0.
    """
    settings, _ = group_settings(args)
    full = None
    if args.config is not None or args.properties is not None:
        full = load_settings(
            config=args.config, properties=args.properties, overrides=args.overrides, extra=read_place(args)
        )
    found = await examine(settings, full, timeout_s=args.timeout)
    if args.json:
        for one in found:
            sys.stdout.write(json.dumps(encode_finding(one)) + "\n")
    else:
        sys.stdout.write(_render(found))
    return 1 if any(one.needs_look for one in found) else 0


def _render(found: Sequence[Finding]) -> str:
    if not found:
        return "nothing found\n"
    lines: list[str] = []
    for one in found:
        lines += [f"{one.severity.upper()} {one.kind} at {one.where}", f"  {one.detail}", f"  what to do: {one.advice}"]
    return "".join(f"{escape_unprintable(line)}\n" for line in lines)
