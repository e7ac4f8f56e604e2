# SPDX-License-Identifier: Apache-2.0
"""The commands ``run``, ``check-config`` and ``config example``."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import structlog

from consumerd import __version__
from consumerd.aio.loops import describe_loop
from consumerd.cli.descriptors import raise_descriptor_limit
from consumerd.cli.options import load_daemon
from consumerd.collector import keep_loaded
from consumerd.config.example import read_example
from consumerd.config.listing import list_effective, list_shown, render_value
from consumerd.config.load import Loaded, log_doubts
from consumerd.config.memory import explain_small_budget
from consumerd.config.origins import Doubt
from consumerd.config.settings import Settings
from consumerd.daemon.allocator import tune_allocator
from consumerd.daemon.routes import SinkRoutes
from consumerd.daemon.runner import run_until_stopped
from consumerd.telemetry.logs import configure_logging
from consumerd.telemetry.text_tables import escape_unprintable, render_table
from consumerd.telemetry.wording import counted
from consumerd.wire import kernel

_log = structlog.get_logger(__name__)


async def run(args: argparse.Namespace) -> int:
    """Run ``consumerd run``: the daemon, until a signal stops it. Returns the exit code."""
    return await run_daemon(load_daemon(args))


async def run_daemon(loaded: Loaded) -> int:
    """Run the daemon with these settings, until a signal stops it. Returns the exit code."""
    settings = loaded.settings
    tune_allocator(settings.fetch.memory_budget_bytes)
    # log collectors hold lines of many groups
    configure_logging(settings.log.level, settings.log.format, always={"group": settings.group.id})
    log_doubts(loaded.doubts)
    loop = describe_loop(asyncio.get_running_loop())
    descriptors = raise_descriptor_limit()
    _log.info("daemon_starting", version=__version__, kernel=kernel.describe(), loop=loop, open_files=descriptors)
    keep_loaded()
    await run_until_stopped(settings)
    return 0


async def check_config(args: argparse.Namespace) -> int:
    """Run ``check-config``: check settings, and print each with its origin.

    Returns the exit code. With ``--strict``, warnings give exit code 1.
    """
    return print_settings(args, load_daemon(args))


def print_settings(args: argparse.Namespace, loaded: Loaded) -> int:
    """Print settings with their origins, and warnings; return the exit code of ``check-config``.

    Args:
        args: Has the options ``--format`` and ``--strict``.
    """
    doubts = [*loaded.doubts, *_find_more_doubts(loaded.settings)]
    if args.format == "json":
        sys.stdout.write(json.dumps(_describe(loaded, doubts), ensure_ascii=False) + "\n")
    else:
        for doubt in doubts:
            sys.stderr.write(f"consumerd: warning: {escape_unprintable(doubt.text)} [{doubt.name}]\n")
        sys.stdout.write(_summary(loaded.settings))
        rows = [(one.key, render_value(one.value), one.origin) for one in list_shown(loaded)]
        sys.stdout.write(f"\n{render_table(('setting', 'value', 'from'), rows)}\nthe settings are valid\n")
    return 1 if doubts and args.strict else 0


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`print_settings`."""
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one object (text)")
    parser.add_argument("--strict", action="store_true", help="exit code 1 for warnings")


async def config_example(_args: argparse.Namespace) -> int:
    """Run ``consumerd config example``: print the documented example of all settings.

    Returns the exit code.
    """
    sys.stdout.write(read_example())
    return 0


def _find_more_doubts(settings: Settings) -> list[Doubt]:
    """Return warnings about overlapping patterns, and about too little memory for libraries."""
    found = []
    if shared := SinkRoutes(settings, {}).find_shared():
        topic, names = shared
        text = (
            f"subscriptions: a topic named {topic!r} would match the patterns of sinks {' and '.join(names)}, "
            "and be stopped: exclude such topics from all but one (subscriptions.exclude)"
        )
        found.append(Doubt(name="patterns-overlap", text=text))
    if small := explain_small_budget(settings):
        found.append(Doubt(name="memory-below-libraries", text=small))
    return found


def _describe(loaded: Loaded, doubts: Sequence[Doubt]) -> dict[str, object]:
    return {
        "settings": [asdict(one) for one in list_effective(loaded)],
        "warnings": [asdict(doubt) for doubt in doubts],
    }


def _summary(settings: Settings) -> str:
    lines = [f"group {settings.group.id} at {settings.cluster.place}, {counted(settings.group.streams, 'stream')}"]
    for subscription in settings.subscriptions:
        what = f"topics {', '.join(subscription.topics)}" if subscription.topics else f"pattern {subscription.pattern}"
        if subscription.black_list is not None:
            what = f"all topics but {subscription.black_list}"
        what += f" without {subscription.exclude}" if subscription.exclude else ""
        lines.append(f"{what} -> {subscription.sink} ({settings.sinks[subscription.sink].type})")
    return "".join(f"{escape_unprintable(line)}\n" for line in lines)
