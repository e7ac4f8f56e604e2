# SPDX-License-Identifier: Apache-2.0
"""One daemon in one process: signals, and how it ends.

The first SIGTERM or SIGINT asks for an orderly end; a second one, or ``shutdown.timeout_ms``, cuts it short.
"""

from __future__ import annotations

import asyncio
import os
import signal

import structlog

from consumerd.config.settings import Settings
from consumerd.daemon.assemble import Daemon
from consumerd.daemon.service_manager import find_service_manager
from consumerd.errors import ConsumerdError

_log = structlog.get_logger(__name__)


class DrainCutShort(ConsumerdError):
    """Somebody was in a hurry: what was not safe yet is fetched again by whoever owns the partitions next."""


async def run_until_stopped(settings: Settings) -> None:
    """Run until a signal.

    Raises ConfigError and other ConsumerdErrors that end the process, DrainCutShort after a second signal; logs the
    others.
    """
    stop = asyncio.Event()
    main = asyncio.current_task()
    assert main is not None
    loop = asyncio.get_running_loop()
    cut_short = False

    def stopped(name: str) -> None:
        nonlocal cut_short
        if stop.is_set():
            cut_short = True
            _log.warning("shutdown_cut_short", signal=name)
            main.cancel()
            return
        _log.info("shutdown_requested", signal=name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped, number.name)
    try:
        manager = find_service_manager(os.environ, pid=os.getpid(), stop_timeout_s=settings.shutdown.timeout_ms / 1000)
        await Daemon(settings, manager).run(stop)
    except BaseExceptionGroup as failures:
        cause = find_cause(failures)
        _log.error("daemon_failed", exc_info=cause)
        raise cause from None
    except asyncio.CancelledError:
        if not cut_short:
            raise
        raise DrainCutShort("a second signal ended it before everything was flushed and committed") from None
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def find_cause(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the failure that says most: one of ours rather than what followed from it."""
    leaves = list(_leaves(failures))
    return next((leaf for leaf in leaves if isinstance(leaf, ConsumerdError)), leaves[0])


def _leaves(failures: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for one in failures.exceptions:
        leaves += _leaves(one) if isinstance(one, BaseExceptionGroup) else [one]
    return leaves
