# SPDX-License-Identifier: Apache-2.0
"""``consumerd offsets cancel``: cancels requests to move positions that no member has carried out."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from consumerd.admin.cancellation import cancel_requests
from consumerd.admin.inspection import inspect
from consumerd.aio.timeouts import timeout
from consumerd.cli.options import add_connection_options, group_settings
from consumerd.cli.tables import print_rows
from consumerd.errors import ConfigError
from consumerd.offsets.requests import Cancelled

_CANCELLED: Final = ("topic", "partition", "outcome")

_TEXT: Final = """\
Take away requests of `consumerd offsets set | reset` that no member has carried
out yet, also such that nobody can read. One that is being carried out at this
moment may still take effect: look with `consumerd offsets show` where the
partition stands.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRow:
    """Outcome of cancelling the request to move one partition's position."""

    topic: str
    partition: str
    outcome: str


def add_cancel_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``consumerd offsets cancel`` to its parser."""
    parser.description = _TEXT
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_connection_options(parser, group=True)
    parser.add_argument("what", nargs="*", metavar="TOPIC[/PARTITION]", help="topics, or single partitions")
    parser.add_argument("--all", action="store_true", help="every request of the group")
    parser.set_defaults(command=cancel)


async def cancel(args: argparse.Namespace) -> int:
    """Run ``consumerd offsets cancel``: cancel requests to move positions.

    Returns the exit code: 1 if one of them could not be cancelled any more, else 0.
    """
    if bool(args.what) == args.all:
        raise ConfigError("name topics or partitions, or give --all (and not both)")
    settings, _ = group_settings(args)
    assert settings.group is not None
    async with inspect(settings, args.timeout) as access, timeout(args.timeout):
        outcomes = await cancel_requests(access, settings.group.id, args.what)
    rows = [
        CancelRow(topic=one.topic, partition=str(one.partition), outcome=outcome.value)
        for one, outcome in outcomes.items()
    ]
    print_rows(rows, _CANCELLED, as_json=args.json, empty="no requests")
    return 0 if set(outcomes.values()) <= {Cancelled.CANCELLED} else 1
