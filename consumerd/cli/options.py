# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and the settings that they give."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from consumerd.config.inspection import InspectionSettings
from consumerd.config.load import Loaded, load, load_inspection_settings
from consumerd.config.origins import Layer
from consumerd.daemon.assemble import check_assembly
from consumerd.errors import ConfigError

_LAST_PORT: Final = 65535


def seconds(text: str) -> float:
    """Read a number of seconds, 0 or more, such as ``1.5``. Raises ArgumentTypeError."""
    with contextlib.suppress(ValueError):
        if math.isfinite(value := float(text)) and value >= 0:
            return value
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number of seconds")


def positive_seconds(text: str) -> float:
    """Read a number of seconds above 0, such as ``1.5``. Raises ArgumentTypeError."""
    if (value := seconds(text)) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected more than 0 seconds")
    return value


def count(text: str) -> int:
    """Read a whole number of 0 or more. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number")
    return int(text)


def positive_count(text: str) -> int:
    """Read a whole number of 1 or more. Raises ArgumentTypeError."""
    if (value := count(text)) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 1 or more")
    return value


def port(text: str) -> int:
    """Read a port number, 0 to 65535; 0 stands for a free port. Raises ArgumentTypeError."""
    if (value := count(text)) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port, 0 to {_LAST_PORT}")
    return value


def add_settings_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that give settings: ``--config``, ``--properties`` and ``--set``."""
    parser.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="YAML settings; `consumerd config example` prints them all"
    )
    parser.add_argument(
        "--properties",
        type=Path,
        metavar="FILE",
        help="a Java consumer's consumer.properties; the YAML file wins over it",
    )
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
        help="one setting, such as group.id=lake; wins over files and environment; may be repeated",
    )  # fmt: skip


def add_daemon_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``consumerd run`` and ``consumerd check-config``.

    The daemon's settings come from files, or from options for the cluster, the group and a subscription.
    """
    add_settings_options(parser)
    _add_place_options(parser, group="the group to be a member of", brokers=False)
    _add_subscription_options(parser)


def _add_place_options(parser: argparse.ArgumentParser, *, group: str | None, brokers: bool) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-z", "--zookeeper", metavar="CONNECT", help="connect string, such as zk1:2181,zk2:2181/kafka")
    if brokers:
        where.add_argument(
            "--bootstrap", metavar="HOST:PORT,...", help="brokers to begin with, of a cluster without ZooKeeper"
        )
    if group is not None:
        parser.add_argument("-g", "--group", metavar="ID", help=group)


def _add_subscription_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that define a subscription on the command line."""
    group = add_topic_options(parser)
    group.add_argument(
        "--sink",
        metavar="TYPE[=PATH]",
        help="stdout, null, jsonl=FOLDER or parquet=FOLDER (stdout). Files hold each record exactly once; stdout, and "
        "http of a settings file, get it at least once",
    )


def add_topic_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options that name the topics of a subscription; return their group."""
    group = parser.add_argument_group("subscription, instead of the file's")
    what = group.add_mutually_exclusive_group()
    what.add_argument("--topics", metavar="A,B", help="topics by name")
    what.add_argument("--pattern", metavar="REGEX", help="topics whose whole name matches")
    what.add_argument("--blacklist", metavar="REGEX", help="all topics but those whose whole name matches, as Java's")
    group.add_argument("--exclude", metavar="REGEX", help="topics of the pattern to leave out")
    return group


def add_cluster_options(parser: argparse.ArgumentParser, *, group: str | None, timeout: str) -> None:
    """Add the options with which a command connects to a cluster.

    Args:
        group: Help of ``--group``; None leaves the option out.
        timeout: Help of ``--timeout``.
    """
    add_settings_options(parser)
    _add_place_options(parser, group=group, brokers=True)
    parser.add_argument("--timeout", type=positive_seconds, default=15.0, metavar="SECONDS", help=f"{timeout} (15)")


def add_connection_options(parser: argparse.ArgumentParser, *, group: bool) -> None:
    """Add the options of one-shot commands: those that connect to a cluster, and ``--json``.

    Args:
        group: True to add ``--group``.
    """
    add_cluster_options(
        parser,
        group="the group to look at; any group, not only one of ours" if group else None,
        timeout="give up after this long",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")


def load_daemon(args: argparse.Namespace) -> Loaded:
    """Return the settings of ``consumerd run`` and ``check-config``, with the origin of each.

    Raises ConfigError.
    """
    return load_assembled(args, {**read_place(args), **_subscription(args)})


def load_assembled(args: argparse.Namespace, extra: Mapping[str, object], defaults: Layer | None = None) -> Loaded:
    """Return the settings of a daemon from files and options, with all checks.

    Args:
        extra: Values of the command's own options, nested in sections.
        defaults: Values of the command that win over the built-in defaults only; None for none.

    Raises ConfigError.
    """
    loaded = load(
        config=args.config, properties=args.properties, overrides=args.overrides, extra=extra, defaults=defaults
    )
    try:
        check_assembly(loaded.settings)
    except ConfigError as error:
        raise ConfigError(loaded.layers.locate_message(str(error))) from error
    return loaded


def inspection_settings(args: argparse.Namespace) -> InspectionSettings:
    """Return the settings of a one-shot command, from files and options.

    Raises ConfigError with one line per mistake.
    """
    return load_inspection_settings(
        config=args.config, properties=args.properties, overrides=args.overrides, extra=read_place(args)
    )


def group_settings(args: argparse.Namespace, *, instead: str = "") -> tuple[InspectionSettings, str]:
    """Return the settings of a one-shot command, and the id of its group.

    Args:
        instead: Text for the error without a group's id: another option that the operator may give. Empty for none.

    Raises ConfigError, also if no group's id is given.
    """
    settings = inspection_settings(args)
    if settings.group is None:
        raise ConfigError(f"group.id: missing; give --group ID, or a settings file that has it{instead}")
    return settings, settings.group.id


def read_place(args: argparse.Namespace) -> dict[str, object]:
    """Return the settings given by ``--zookeeper``, ``--bootstrap`` and ``--group``, nested in sections.

    Example: ``{"cluster": {"zookeeper": "zk:2181"}, "group": {"id": "lake"}}``.
    """
    extra: dict[str, object] = {}
    if args.zookeeper is not None:
        extra["cluster"] = {"zookeeper": args.zookeeper}
    elif getattr(args, "bootstrap", None) is not None:
        extra["cluster"] = {"bootstrap": args.bootstrap}
    if getattr(args, "group", None) is not None:
        extra["group"] = {"id": args.group}
    return extra


def _subscription(args: argparse.Namespace) -> dict[str, object]:
    topics = read_topics(args)
    if topics is None:
        if args.exclude is not None or args.sink is not None:
            raise ConfigError("--exclude and --sink go with --topics, --pattern or --blacklist")
        return {}
    kind, separator, path = (args.sink or "stdout").partition("=")
    sink: dict[str, object] = {"type": kind, **({"path": path} if separator else {})}
    return {"subscriptions": [{"sink": kind, **topics}], "sinks": {kind: sink}}


def read_topics(args: argparse.Namespace) -> dict[str, object] | None:
    """Return the subscription that options define, without its sink; None without one."""
    if args.topics is None and args.pattern is None and args.blacklist is None:
        return None
    subscription: dict[str, object] = {}
    if args.topics is not None:
        subscription["topics"] = [topic.strip() for topic in args.topics.split(",") if topic.strip()]
    elif args.pattern is not None:
        subscription["pattern"] = args.pattern
    else:
        subscription["black_list"] = args.blacklist
    if args.exclude is not None:
        subscription["exclude"] = args.exclude
    return subscription
