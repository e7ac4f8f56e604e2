# SPDX-License-Identifier: Apache-2.0
"""``consumerd broker``: runs a Kafka broker in the foreground, for development and tests.

Without the address of a ZooKeeper, it starts one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumerd.aio.signals import stopped_by_signals
from consumerd.aio.tasks import find_cause, unless
from consumerd.cli.descriptors import raise_descriptor_limit
from consumerd.cli.options import count, port, positive_count
from consumerd.embedded.releases import IMITATIONS, WITHOUT_ZOOKEEPER
from consumerd.embedded.topics import InvalidPartitions, InvalidTopic
from consumerd.errors import ConfigError
from consumerd.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from consumerd.embedded.cluster import EmbeddedCluster
    from consumerd.embedded.legacy.cluster import LegacyCluster

_RELEASE: Final = "1.1"
_RELEASE_WITHOUT_ZOOKEEPER: Final = "4.0"
_MAGICS: Final = (0, 1, 2)
_PARTITIONS: Final = 1
_NODES: Final = 1
_MODERN: Final = "modern"
_LEGACY: Final = "legacy"
_LEGACY_MAGICS: Final = (0, 1)
_NOT_OF_LEGACY: Final = ("without_zookeeper", "as_release", "message_format", "topics", "users", "acls")
"""Options, by their names as attributes, that mean nothing to brokers of Kafka 0.6 and 0.7."""


def add_broker_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``consumerd broker`` to the parser."""
    parser = commands.add_parser(
        "broker",
        help="run a broker in the foreground, for development and tests",
        description=(
            "Run one broker on 127.0.0.1, or several with --nodes, with a ZooKeeper of their own unless --zookeeper "
            "names one, and print their addresses. "
            "Speaks Kafka's protocol as the release of --as-release does. For development and tests: all nodes are in "
            "one process and share their logs. "
            "SIGTERM and Ctrl-C stop all of it. A ZooKeeper of its own needs the extra demo; "
            "where it is not installed, the command says how to install it."
        ),
    )
    parser.add_argument("--port", type=port, default=0, metavar="PORT", help="where it listens (a free port)")
    parser.add_argument(
        "--nodes", type=positive_count, default=_NODES, metavar="N",
        help=f"how many brokers; their ports go up from --port, and new topics are on all of them ({_NODES})",
    )  # fmt: skip
    parser.add_argument(
        "-z",
        "--zookeeper",
        metavar="CONNECT",
        help="register there instead of starting one; a chroot may follow: /kafka",
    )
    parser.add_argument(
        "--without-zookeeper", action="store_true",
        help="a cluster without ZooKeeper, as Kafka's since 4.0: topics have ids, and the oldest requests are refused",
    )  # fmt: skip
    parser.add_argument(
        "--directory", type=Path, metavar="FOLDER",
        help="keep logs and ZooKeeper's data here (a temporary folder, removed at the end)",
    )  # fmt: skip
    parser.add_argument(
        "--as-release", choices=(*IMITATIONS, *WITHOUT_ZOOKEEPER), metavar="RELEASE",
        help=f"the release that it passes for: {', '.join(IMITATIONS)} ({_RELEASE}); "
        f"without ZooKeeper: {_RELEASE_WITHOUT_ZOOKEEPER}",
    )  # fmt: skip
    parser.add_argument(
        "--message-format", type=int, choices=_MAGICS, metavar="MAGIC",
        help="what the logs store: 0, 1 or 2 (what the release stores)",
    )  # fmt: skip
    parser.add_argument(
        "--generation", choices=(_MODERN, _LEGACY), default=_MODERN,
        help=f"legacy: brokers of Kafka 0.6 and 0.7, whose offsets count bytes ({_MODERN})",
    )  # fmt: skip
    parser.add_argument(
        "--magic", type=int, choices=_LEGACY_MAGICS,
        help="with --generation legacy: the newest message format, 1 as of Kafka 0.7 or 0 as of 0.6 (1)",
    )  # fmt: skip
    parser.add_argument(
        "--broker-id", type=count, metavar="ID",
        help="with --generation legacy: id of the first broker, if others register in the same ZooKeeper (0)",
    )  # fmt: skip
    parser.add_argument(
        "--partitions", type=positive_count, default=_PARTITIONS, metavar="N",
        help=f"of topics that come into being when somebody asks for them ({_PARTITIONS})",
    )  # fmt: skip
    parser.add_argument(
        "--topic", dest="topics", type=_topic, action="append", default=[], metavar="NAME[:PARTITIONS]",
        help="a topic to make, if it is not there; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--users", type=Path, metavar="FILE",
        help="clients must log in by SASL (PLAIN or SCRAM): lines USER:PASSWORD, in a file that others cannot read",
    )  # fmt: skip
    parser.add_argument(
        "--acls", type=Path, metavar="FILE",
        help="only what a line allows: allow User:NAME OPERATION RESOURCE:NAME; read again when it has changed",
    )  # fmt: skip
    parser.set_defaults(command=broker)


async def broker(args: argparse.Namespace) -> int:
    """Run the command ``consumerd broker``: a broker, until a signal stops it.

    Returns the exit code.
    """
    cluster = _make_legacy_cluster(args) if args.generation == _LEGACY else _make_cluster(args)
    configure_logging("info")
    raise_descriptor_limit()
    with stopped_by_signals() as stop:
        try:
            await unless(stop.told, _serve(cluster))
        except BaseExceptionGroup as failures:
            raise find_cause(failures) from None
        except (InvalidTopic, InvalidPartitions) as error:
            raise ConfigError(f"--topic: {error}") from error
        except TimeoutError:
            raise  # no ZooKeeper answered: the options are not at fault
        except OSError as error:
            raise ConfigError(f"the broker cannot serve: {error}") from error
    return 0


def _make_cluster(args: argparse.Namespace) -> EmbeddedCluster:
    """Return brokers of Kafka 0.8 or later. Raises ConfigError for options that do not fit."""
    # here, since a daemon that only consumes should not load a broker
    from consumerd.embedded.acls import AclFile
    from consumerd.embedded.broker import BrokerSettings
    from consumerd.embedded.cluster import EmbeddedCluster
    from consumerd.embedded.sasl import read_users

    if args.magic is not None:
        raise ConfigError("--magic: needs --generation legacy; later releases have --message-format")
    if args.broker_id is not None:
        raise ConfigError("--broker-id: needs --generation legacy; later releases share partitions with --nodes")
    if args.without_zookeeper and args.zookeeper is not None:
        raise ConfigError("--without-zookeeper: give no --zookeeper")
    acls = None if args.acls is None else AclFile(args.acls).allows
    users = None if args.users is None else read_users(args.users)
    topics = {name: args.partitions if partitions is None else partitions for name, partitions in args.topics}
    make_broker = partial(
        BrokerSettings,
        port=args.port,
        as_release=args.as_release or (_RELEASE_WITHOUT_ZOOKEEPER if args.without_zookeeper else _RELEASE),
        message_format=args.message_format,
        num_partitions=args.partitions,
        users=users,
        acls=acls,
    )
    return EmbeddedCluster(
        _directory(args),
        zookeeper=args.zookeeper,
        without_zookeeper=args.without_zookeeper,
        topics=topics,
        nodes=args.nodes,
        make_broker=make_broker,
    )


def _make_legacy_cluster(args: argparse.Namespace) -> LegacyCluster:
    """Return brokers of Kafka 0.6 or 0.7. Raises ConfigError for options of later releases."""
    from consumerd.embedded.legacy.broker import LegacyBrokerSettings
    from consumerd.embedded.legacy.cluster import LegacyCluster

    for name in _NOT_OF_LEGACY:
        value = getattr(args, name)
        if value is not None and value is not False and value != []:
            option = "--topic" if name == "topics" else "--" + name.replace("_", "-")
            raise ConfigError(f"{option}: does not exist with --generation {_LEGACY}")
    make_broker = partial(
        LegacyBrokerSettings,
        broker_id=args.broker_id or 0,
        port=args.port,
        magic=_LEGACY_MAGICS[-1] if args.magic is None else args.magic,
        num_partitions=args.partitions,
    )
    return LegacyCluster(_directory(args), zookeeper=args.zookeeper, nodes=args.nodes, make_broker=make_broker)


def _directory(args: argparse.Namespace) -> Path | None:
    directory: Path | None = args.directory
    return None if directory is None else directory.absolute()


async def _serve(cluster: EmbeddedCluster | LegacyCluster) -> None:
    """Serve until cancelled: there is no other end."""
    async with cluster:
        sys.stdout.write(f"bootstrap {cluster.bootstrap}\n")
        if cluster.has_zookeeper:
            sys.stdout.write(f"zookeeper {cluster.zookeeper}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def _topic(text: str) -> tuple[str, int | None]:
    """Read ``NAME`` or ``NAME:PARTITIONS``. Raises ArgumentTypeError."""
    name, colon, partitions = text.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME or NAME:PARTITIONS")
    return name, positive_count(partitions) if colon else None
