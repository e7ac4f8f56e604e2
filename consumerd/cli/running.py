"""The commands ``run``, ``check-config`` and ``version``."""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
from importlib import metadata

import structlog

from consumerd import __version__
from consumerd.aio.loops import describe_loop, explain_loop
from consumerd.cli.descriptors import raise_descriptor_limit
from consumerd.cli.options import daemon_settings
from consumerd.collector import keep_loaded
from consumerd.config.settings import Settings
from consumerd.daemon.allocator import tune_allocator
from consumerd.daemon.assemble import check_assembly
from consumerd.daemon.budget import explain_small_budget
from consumerd.daemon.routes import SinkRoutes
from consumerd.daemon.runner import run_until_stopped
from consumerd.telemetry.logs import configure_logging
from consumerd.telemetry.wording import counted
from consumerd.wire import kernel

_log = structlog.get_logger(__name__)


async def run(args: argparse.Namespace) -> int:
    """Run the daemon until it is told to stop."""
    settings = daemon_settings(args)
    tune_allocator(settings.fetch.memory_budget_bytes)
    configure_logging(settings.log.level, settings.log.format)
    loop = describe_loop(asyncio.get_running_loop())
    descriptors = raise_descriptor_limit()
    _log.info("daemon_starting", version=__version__, kernel=kernel.describe(), loop=loop, open_files=descriptors)
    keep_loaded()
    await run_until_stopped(settings)
    return 0


async def check_config(args: argparse.Namespace) -> int:
    """Check settings and say what they come to."""
    settings = daemon_settings(args)
    check_assembly(settings)
    if shared := SinkRoutes(settings, {}).find_shared():
        topic, names = shared
        sys.stderr.write(
            f"consumerd: warning: a topic named {topic!r} would match the patterns of sinks {' and '.join(names)}, and be "
            "stopped: exclude such topics from all but one (subscriptions.exclude)\n"
        )
    if small := explain_small_budget(settings):
        sys.stderr.write(f"consumerd: warning: {small}\n")
    sys.stdout.write(_summary(settings))
    return 0


async def version(_args: argparse.Namespace) -> int:
    """Print versions."""
    sys.stdout.write(f"consumerd {__version__}\n")
    sys.stdout.write(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}\n")
    sys.stdout.write(f"kernel: {kernel.describe()}\n")
    sys.stdout.write(f"loop: {explain_loop()}\n")
    for name in ("aiozk", "pyarrow", "python-snappy", "lz4", "zstandard", "google-crc32c"):
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "not installed"
        sys.stdout.write(f"{name} {found}\n")
    sinks = sorted({entry.name for entry in metadata.entry_points(group="consumerd.sinks")})
    sys.stdout.write(f"sinks: {', '.join(sinks)}\n")
    return 0


def _summary(settings: Settings) -> str:
    lines = [f"group {settings.group.id} at {settings.cluster.zookeeper}, {counted(settings.group.streams, 'stream')}"]
    for subscription in settings.subscriptions:
        what = f"topics {', '.join(subscription.topics)}" if subscription.topics else f"pattern {subscription.pattern}"
        if subscription.black_list is not None:
            what = f"all topics but {subscription.black_list}"
        what += f" without {subscription.exclude}" if subscription.exclude else ""
        lines.append(f"{what} -> {subscription.sink} ({settings.sinks[subscription.sink].type})")
    return "".join(f"{line}\n" for line in [*lines, "the settings are valid"])
