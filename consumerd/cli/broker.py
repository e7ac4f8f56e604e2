# SPDX-License-Identifier: Apache-2.0
"""``consumerd broker``: a broker in the foreground, with a ZooKeeper of its own if there is none."""

from __future__ import annotations

import argparse
import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumerd.aio.signals import stopped_by_signals
from consumerd.aio.tasks import unless
from consumerd.cli.descriptors import raise_descriptor_limit
from consumerd.cli.options import port, positive_count
from consumerd.daemon.runner import find_cause
from consumerd.embedded.releases import IMITATIONS
from consumerd.embedded.topics import InvalidPartitions, InvalidTopic
from consumerd.errors import ConfigError
from consumerd.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from consumerd.embedded.cluster import EmbeddedCluster

_RELEASE: Final = "1.1"
_MAGICS: Final = (0, 1, 2)
_PARTITIONS: Final = 1


def add_broker_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``broker`` to the parser."""
    parser = commands.add_parser("broker", help="run a broker in the foreground, for development and tests")
    parser.description = (
        "Run one broker on 127.0.0.1, with a ZooKeeper of its own unless --zookeeper names one, and print their addresses. "
        "Speaks Kafka's protocol as the release of --as-release does. For development and tests: one node, no replication. "
        "SIGTERM and Ctrl-C stop both. A ZooKeeper of its own needs the extra demo; "
        "where it is not installed, the command says how to install it."
    )
    parser.add_argument("--port", type=port, default=0, metavar="PORT", help="where it listens (a free port)")
    parser.add_argument(
        "-z",
        "--zookeeper",
        metavar="CONNECT",
        help="register there instead of starting one; a chroot may follow: /kafka",
    )
    parser.add_argument(
        "--directory", type=Path, metavar="FOLDER",
        help="keep logs and ZooKeeper's data here (a temporary folder, removed at the end)",
    )  # fmt: skip
    parser.add_argument(
        "--as-release", choices=tuple(IMITATIONS), default=_RELEASE, metavar="RELEASE",
        help=f"the release that it passes for: {', '.join(IMITATIONS)} ({_RELEASE})",
    )  # fmt: skip
    parser.add_argument(
        "--message-format", type=int, choices=_MAGICS, metavar="MAGIC",
        help="what the logs store: 0, 1 or 2 (what the release stores)",
    )  # fmt: skip
    parser.add_argument(
        "--partitions", type=positive_count, default=_PARTITIONS, metavar="N",
        help=f"of topics that come into being when somebody asks for them ({_PARTITIONS})",
    )  # fmt: skip
    parser.add_argument(
        "--topic", dest="topics", type=_topic, action="append", default=[], metavar="NAME[:PARTITIONS]",
        help="a topic to make, if it is not there; may be repeated",
    )  # fmt: skip
    parser.set_defaults(command=broker)


async def broker(args: argparse.Namespace) -> int:
    """Run the broker until it is told to stop."""
    # here, since a daemon that only consumes should not load a broker
    from consumerd.embedded.broker import BrokerSettings
    from consumerd.embedded.cluster import EmbeddedCluster

    configure_logging("info")
    raise_descriptor_limit()
    topics = {name: args.partitions if partitions is None else partitions for name, partitions in args.topics}
    make_broker = partial(
        BrokerSettings,
        port=args.port,
        as_release=args.as_release,
        message_format=args.message_format,
        num_partitions=args.partitions,
    )
    directory = None if args.directory is None else args.directory.absolute()
    cluster = EmbeddedCluster(directory, zookeeper=args.zookeeper, topics=topics, make_broker=make_broker)
    with stopped_by_signals() as stop:
        try:
            await unless(stop.told, _serve(cluster))
        except BaseExceptionGroup as failures:
            raise find_cause(failures) from None
        except (InvalidTopic, InvalidPartitions) as error:
            raise ConfigError(f"--topic: {error}") from error
        except TimeoutError:
            raise  # nobody answered, which is not a matter of options
        except OSError as error:
            raise ConfigError(f"the broker cannot serve: {error}") from error
    return 0


async def _serve(cluster: EmbeddedCluster) -> None:
    """Serve until cancelled: there is no other end."""
    async with cluster:
        sys.stdout.write(f"bootstrap {cluster.bootstrap}\nzookeeper {cluster.zookeeper}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def _topic(text: str) -> tuple[str, int | None]:
    """Read ``NAME`` or ``NAME:PARTITIONS``. Raises ArgumentTypeError."""
    name, colon, partitions = text.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME or NAME:PARTITIONS")
    return name, positive_count(partitions) if colon else None
