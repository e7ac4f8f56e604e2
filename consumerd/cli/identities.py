# SPDX-License-Identifier: Apache-2.0
"""``consumerd identities``: record how a cluster is identified in ZooKeeper, before it leaves it."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from consumerd.admin.identities import find_identities
from consumerd.admin.inspection import inspect
from consumerd.aio.timeouts import timeout
from consumerd.cli.documents import add_output_option, print_document
from consumerd.cli.options import add_cluster_options, inspection_settings
from consumerd.errors import ConfigError
from consumerd.telemetry.wording import counted, join_shown

_TOPICS_SHOWN: Final = 10


def add_identities_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``consumerd identities`` to the parser."""
    parser = commands.add_parser(
        "identities",
        help="record the cluster's identities in ZooKeeper, before it leaves ZooKeeper",
        description=(
            "Print how the cluster and its topics are identified in ZooKeeper and by brokers, as a JSON document. With "
            "it as cluster.identities, a daemon on the same cluster without ZooKeeper continues the chains of files, "
            "tables and positions of the time before. Needs brokers of 2.8 or later. Changes nothing."
        ),
    )
    add_cluster_options(parser, group=None, timeout="give up after this long")
    add_output_option(parser)
    parser.set_defaults(command=identities)


async def identities(args: argparse.Namespace) -> int:
    """Run ``consumerd identities``: print the identities as a JSON document. Returns the exit code."""
    settings = inspection_settings(args)
    if settings.cluster.zookeeper is None:
        raise ConfigError("cluster.bootstrap: the identities are read from ZooKeeper: give cluster.zookeeper instead")
    async with inspect(settings, args.timeout) as access, timeout(args.timeout):
        found = await find_identities(access)
    if found.without_id:
        shown = join_shown(found.without_id, _TOPICS_SHOWN)
        sys.stderr.write(f"consumerd: without a topic id, and left out: {shown}\n")
    content = f"identities of {counted(len(found.identities.topics), 'topic')}"
    print_document(found.identities.encode(), args.output, content=content)
    return 0
