# SPDX-License-Identifier: Apache-2.0
"""``consumerd offsets cancel``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from consumerd.admin.inspection import inspect, require_group
from consumerd.aio.timeouts import timeout
from consumerd.cli.options import add_connection_options, inspection_settings
from consumerd.cli.tables import print_rows
from consumerd.errors import ConfigError, NotFound
from consumerd.model import PartitionKey, TopicPartition
from consumerd.offsets.requests import Cancelled, ZooKeeperOffsetRequests

_CANCELLED: Final = ("topic", "partition", "outcome")

_TEXT: Final = """\
Take away requests of `consumerd offsets set | reset` that no member has carried
out yet, also such that nobody can read. One that is being carried out at this
moment may still take effect: look with `consumerd offsets show` where the
partition stands.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRow:
    """What became of one partition's request."""

    topic: str
    partition: str
    outcome: str


def add_cancel_options(parser: argparse.ArgumentParser) -> None:
    """Fill the command's parser."""
    parser.description = _TEXT
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_connection_options(parser, group=True)
    parser.add_argument("what", nargs="*", metavar="TOPIC[/PARTITION]", help="topics, or single partitions")
    parser.add_argument("--all", action="store_true", help="every request of the group")
    parser.set_defaults(command=cancel)


async def cancel(args: argparse.Namespace) -> int:
    """Take requests away. Exit code 1 where one that was found could not be cancelled any more."""
    if bool(args.what) == args.all:
        raise ConfigError("name topics or partitions, or give --all (and not both)")
    settings = inspection_settings(args, group=True)
    assert settings.group is not None
    group = settings.group.id
    async with inspect(settings, args.timeout) as access, timeout(args.timeout):
        await require_group(access.zk, group)
        requests = ZooKeeperOffsetRequests(access.zk, group)
        chosen = choose(await requests.list_partitions(), args.what)
        outcomes = {partition: await requests.cancel(partition) for partition in chosen}
    rows = [
        CancelRow(topic=one.topic, partition=str(one.partition), outcome=outcome.value)
        for one, outcome in outcomes.items()
    ]
    print_rows(rows, _CANCELLED, as_json=args.json, empty="no requests")
    return 0 if set(outcomes.values()) <= {Cancelled.CANCELLED} else 1


def choose(waiting: Sequence[TopicPartition], wanted: Sequence[str]) -> list[TopicPartition]:
    """Return those of ``waiting`` that are named, or all where nothing is. Raises NotFound for a name that has none,
    ConfigError for what is no name.
    """
    chosen: dict[TopicPartition, None] = {}
    for text in wanted:
        topic, separator, key = text.partition("/")
        try:
            partition = TopicPartition(topic, PartitionKey.parse(key)) if separator else None
        except ValueError as error:
            raise ConfigError(f"{text!r}: {error}") from error
        found = [one for one in waiting if one.topic == topic and partition in (None, one)]
        if not found:
            raise NotFound(f"{text}: there is no request; those that wait are on `consumerd offsets show`")
        chosen.update(dict.fromkeys(found))
    return list(chosen) if wanted else list(waiting)
