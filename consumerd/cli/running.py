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
    """Run the daemon until it is told to stop."""
    loaded = load_daemon(args)
    settings = loaded.settings
    tune_allocator(settings.fetch.memory_budget_bytes)
    # lines of many groups meet in one place
    configure_logging(settings.log.level, settings.log.format, always={"group": settings.group.id})
    log_doubts(loaded.doubts)
    loop = describe_loop(asyncio.get_running_loop())
    descriptors = raise_descriptor_limit()
    _log.info("daemon_starting", version=__version__, kernel=kernel.describe(), loop=loop, open_files=descriptors)
    keep_loaded()
    await run_until_stopped(settings)
    return 0


async def check_config(args: argparse.Namespace) -> int:
    """Check settings, and print each with its origin. Warnings are exit code 1 with ``--strict``."""
    loaded = load_daemon(args)
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


async def config_example(_args: argparse.Namespace) -> int:
    """Print the example of all settings."""
    sys.stdout.write(read_example())
    return 0


def _find_more_doubts(settings: Settings) -> list[Doubt]:
    """Return warnings that need to know what patterns match, and what libraries take."""
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
    lines = [f"group {settings.group.id} at {settings.cluster.zookeeper}, {counted(settings.group.streams, 'stream')}"]
    for subscription in settings.subscriptions:
        what = f"topics {', '.join(subscription.topics)}" if subscription.topics else f"pattern {subscription.pattern}"
        if subscription.black_list is not None:
            what = f"all topics but {subscription.black_list}"
        what += f" without {subscription.exclude}" if subscription.exclude else ""
        lines.append(f"{what} -> {subscription.sink} ({settings.sinks[subscription.sink].type})")
    return "".join(f"{escape_unprintable(line)}\n" for line in lines)
