# SPDX-License-Identifier: Apache-2.0
"""``consumerd mirror``: mirrors topics into another cluster, as a member of a group.

It is ``consumerd run`` with the sink ``kafka``, and with defaults of its own: the group, and ``read_committed``, since
a mirror must not commit records of transactions that were aborted in the source.
"""

from __future__ import annotations

import argparse
from typing import Final

from consumerd.cli.options import add_settings_options, add_topic_options, load_assembled, read_place, read_topics
from consumerd.cli.running import add_check_options, print_settings, run_daemon
from consumerd.config.load import Loaded
from consumerd.config.origins import Layer
from consumerd.daemon.assemble import MIRROR_TYPE
from consumerd.errors import ConfigError
from consumerd.mirror.positions import DEFAULT_GROUP

_SINK: Final = "mirror"
"""Name of the sink that options define."""
_DEFAULTS: Final = Layer(
    name="default of consumerd mirror",
    values={"group": {"id": DEFAULT_GROUP}, "fetch": {"isolation": "read_committed"}},
)
_EPILOG: Final = """\
examples:
  consumerd mirror --zookeeper zk1:2181/kafka --topics orders,clicks --bootstrap new1:9092,new2:9092
  consumerd mirror --zookeeper zk1:2181/kafka --pattern "web[.].*" --bootstrap new1:9092 --name "old.{topic}"
  consumerd mirror --config mirror.yaml --check

docs/mirror.md says how groups are moved afterwards.
"""


def add_mirror_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``consumerd mirror`` to the parser."""
    parser = commands.add_parser(
        "mirror",
        help="mirror topics into another cluster, each record exactly once",
        description=(
            "Consume topics as a member of a group, and write each record exactly once into topics of another cluster "
            "(0.11 and later), which are made like those of the source. Start as many processes as you like: they "
            "share the partitions. SIGTERM and Ctrl-C end the open transactions and leave the group."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_settings_options(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-z", "--zookeeper", metavar="CONNECT", help="the source, such as zk1:2181,zk2:2181/kafka")
    where.add_argument(
        "--from", dest="source", metavar="HOST:PORT,...", help="brokers of a source without ZooKeeper, to ask first"
    )
    parser.add_argument("-g", "--group", metavar="ID", help=f"the group to be a member of ({DEFAULT_GROUP})")
    group = add_topic_options(parser)
    group.add_argument("--bootstrap", metavar="HOST:PORT,...", help="brokers of the target, to ask first")
    group.add_argument("--name", metavar="TEMPLATE", help="topic in the target; {topic} is the source's ({topic})")
    parser.add_argument(
        "--check", action="store_true", help="check the settings as check-config does, and connect to nothing"
    )
    add_check_options(parser)
    parser.set_defaults(command=mirror)


async def mirror(args: argparse.Namespace) -> int:
    """Run ``consumerd mirror``, or check its settings. Returns the exit code."""
    loaded = load_mirror(args)
    return print_settings(args, loaded) if args.check else await run_daemon(loaded)


def load_mirror(args: argparse.Namespace) -> Loaded:
    """Return the settings of ``consumerd mirror``, with the origin of each.

    Raises ConfigError, also if no subscription has a sink ``kafka``.
    """
    loaded = load_assembled(args, {**_read_source(args), **_read_subscription(args)}, _DEFAULTS)
    settings = loaded.settings
    if not any(settings.sinks[one.sink].type == MIRROR_TYPE for one in settings.subscriptions):
        raise ConfigError(
            "subscriptions: none has a sink of type kafka, so nothing is mirrored: add one, give --topics with "
            "--bootstrap, or use consumerd run"
        )
    return loaded


def _read_source(args: argparse.Namespace) -> dict[str, object]:
    place = argparse.Namespace(zookeeper=args.zookeeper, bootstrap=args.source, group=args.group)
    extra = read_place(place)
    if args.source is not None:
        # members of a cluster without ZooKeeper are coordinated by brokers, which keep their positions, too
        extra |= {"offsets": {"storage": "kafka", "dual_commit": False}}
        extra["group"] = {**_as_section(extra.get("group")), "membership": "kafka"}
    return extra


def _as_section(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}


def _read_subscription(args: argparse.Namespace) -> dict[str, object]:
    topics = read_topics(args)
    if topics is None:
        if args.exclude is not None or args.bootstrap is not None or args.name is not None:
            raise ConfigError("--exclude, --bootstrap and --name go with --topics, --pattern or --blacklist")
        return {}
    if args.bootstrap is None:
        raise ConfigError("--topics, --pattern and --blacklist need --bootstrap HOST:PORT, brokers of the target")
    sink: dict[str, object] = {"type": MIRROR_TYPE, "bootstrap": args.bootstrap}
    if args.name is not None:
        sink["topic"] = args.name
    return {"subscriptions": [{"sink": _SINK, **topics}], "sinks": {_SINK: sink}}
