# SPDX-License-Identifier: Apache-2.0
"""``consumerd doctor``: what is wrong with a group, and what to do about it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from consumerd.admin.doctor.examine import examine
from consumerd.admin.doctor.findings import Finding
from consumerd.cli.options import add_connection_options, inspection_settings
from consumerd.config.load import load_settings
from consumerd.telemetry.text_tables import escape_unprintable


def add_doctor_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``doctor`` to the parser."""
    parser = commands.add_parser("doctor", help="look for what is wrong with a group, and say what to do")
    parser.description = (
        "Look at the group's nodes in ZooKeeper and at its positions in the brokers' logs: stale, malformed, orphaned and "
        "duplicate nodes with the sessions that hold them, partitions without an owner, positions that are in no log, "
        "requests that nobody carries out, rights that members lack. With --config also at settings that do not go together, "
        "and at this machine: landing folders (by a hidden file that is written, linked and removed again), free space "
        "and inodes, the clock against ZooKeeper's (by an ephemeral node that is deleted again), /metrics, and the partitions that the daemon there says are stopped or failing. Run it "
        "as the daemon's user. Leaves everything as it was. Exit code 1 for errors and warnings, 0 if there are none, 3 if ZooKeeper is not reached."
    )
    add_connection_options(parser, group=True)
    parser.set_defaults(command=doctor)


async def doctor(args: argparse.Namespace) -> int:
    """Examine a group and print what was found."""
    settings = inspection_settings(args, group=True)
    full = None
    if args.config is not None or args.properties is not None:
        assert settings.group is not None
        extra: dict[str, object] = {} if args.zookeeper is None else {"cluster": {"zookeeper": args.zookeeper}}
        if args.group is not None:
            extra["group"] = {"id": args.group}
        full = load_settings(config=args.config, properties=args.properties, overrides=args.overrides, extra=extra)
    found = await examine(settings, full, timeout_s=args.timeout)
    if args.json:
        for one in found:
            sys.stdout.write(json.dumps(asdict(one)) + "\n")
    else:
        sys.stdout.write(_render(found))
    return 1 if any(one.counts for one in found) else 0


def _render(found: Sequence[Finding]) -> str:
    if not found:
        return "nothing found\n"
    return "".join(f"{line}\n" for one in found for line in map(escape_unprintable, _lines(one)))


def _lines(one: Finding) -> tuple[str, ...]:
    return (f"{one.severity.upper()} {one.check} at {one.where}", f"  {one.what}", f"  what to do: {one.advice}")
