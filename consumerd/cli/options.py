# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and the settings they give."""

from __future__ import annotations

import argparse
import contextlib
import math
from pathlib import Path
from typing import Final

from consumerd.config.load import Loaded, load, load_inspection_settings
from consumerd.config.settings import InspectionSettings
from consumerd.daemon.assemble import check_assembly
from consumerd.errors import ConfigError

_LAST_PORT: Final = 65535


def seconds(text: str) -> float:
    """Read a length of time. Raises ArgumentTypeError, which argparse shows."""
    with contextlib.suppress(ValueError):
        if math.isfinite(value := float(text)) and value >= 0:
            return value
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number of seconds")


def positive_seconds(text: str) -> float:
    """Read a length of time that is not nothing. Raises ArgumentTypeError."""
    if (value := seconds(text)) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected more than 0 seconds")
    return value


def count(text: str) -> int:
    """Read a whole number, 0 among them. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number")
    return int(text)


def positive_count(text: str) -> int:
    """Read a whole number from 1 on. Raises ArgumentTypeError."""
    if (value := count(text)) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 1 or more")
    return value


def port(text: str) -> int:
    """Read the number of a port, 0 for a free one. Raises ArgumentTypeError."""
    if (value := count(text)) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port, 0 to {_LAST_PORT}")
    return value


def add_settings_options(parser: argparse.ArgumentParser) -> None:
    """Where settings come from."""
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
    """Add the options of ``run``: files of settings, or the cluster, the group and a subscription."""
    add_settings_options(parser)
    _add_place_options(parser, group="the group to be a member of")
    _add_subscription_options(parser)


def _add_place_options(parser: argparse.ArgumentParser, *, group: str | None) -> None:
    parser.add_argument("-z", "--zookeeper", metavar="CONNECT", help="connect string, such as zk1:2181,zk2:2181/kafka")
    if group is not None:
        parser.add_argument("-g", "--group", metavar="ID", help=group)


def _add_subscription_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a subscription without a file."""
    group = parser.add_argument_group("subscription, instead of the file's")
    what = group.add_mutually_exclusive_group()
    what.add_argument("--topics", metavar="A,B", help="topics by name")
    what.add_argument("--pattern", metavar="REGEX", help="topics whose whole name matches")
    what.add_argument("--blacklist", metavar="REGEX", help="all topics but those whose whole name matches, as Java's")
    group.add_argument("--exclude", metavar="REGEX", help="topics of the pattern to leave out")
    group.add_argument("--sink", metavar="TYPE[=PATH]", help="stdout, null, jsonl=FOLDER or parquet=FOLDER (stdout)")


def add_connection_options(parser: argparse.ArgumentParser, *, group: bool) -> None:
    """What one-shot commands need to look at a cluster."""
    add_settings_options(parser)
    _add_place_options(parser, group="the group to look at; any group, not only one of ours" if group else None)
    parser.add_argument(
        "--timeout", type=positive_seconds, default=15.0, metavar="SECONDS", help="give up after this long (15)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")


def load_daemon(args: argparse.Namespace) -> Loaded:
    """Return the settings of ``run`` and ``check-config``, and where they come from. Raises ConfigError."""
    extra = {**_place(args, group=True), **_subscription(args)}
    loaded = load(config=args.config, properties=args.properties, overrides=args.overrides, extra=extra)
    try:
        check_assembly(loaded.settings)
    except ConfigError as error:
        raise ConfigError(loaded.layers.locate_message(str(error))) from error
    return loaded


def inspection_settings(args: argparse.Namespace, *, group: bool) -> InspectionSettings:
    """Return the settings of a one-shot command. Raises ConfigError."""
    extra = _place(args, group=group)
    settings = load_inspection_settings(
        config=args.config, properties=args.properties, overrides=args.overrides, extra=extra
    )
    if group and settings.group is None:
        raise ConfigError("group.id: missing; give --group ID, or a settings file that has it")
    return settings


def _place(args: argparse.Namespace, *, group: bool) -> dict[str, object]:
    extra: dict[str, object] = {}
    if args.zookeeper is not None:
        extra["cluster"] = {"zookeeper": args.zookeeper}
    if group and args.group is not None:
        extra["group"] = {"id": args.group}
    return extra


def _subscription(args: argparse.Namespace) -> dict[str, object]:
    if args.topics is None and args.pattern is None and args.blacklist is None:
        if args.exclude is not None or args.sink is not None:
            raise ConfigError("--exclude and --sink go with --topics, --pattern or --blacklist")
        return {}
    kind, separator, path = (args.sink or "stdout").partition("=")
    subscription: dict[str, object] = {"sink": kind}
    if args.topics is not None:
        subscription["topics"] = [topic.strip() for topic in args.topics.split(",") if topic.strip()]
    elif args.pattern is not None:
        subscription["pattern"] = args.pattern
    else:
        subscription["black_list"] = args.blacklist
    if args.exclude is not None:
        subscription["exclude"] = args.exclude
    sink: dict[str, object] = {"type": kind, **({"path": path} if separator else {})}
    return {"subscriptions": [subscription], "sinks": {kind: sink}}
