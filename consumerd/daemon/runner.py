# SPDX-License-Identifier: Apache-2.0
"""Runs one daemon in one process: signals, and the end of the process.

The first SIGTERM or SIGINT begins an orderly stop. A second one, or ``shutdown.timeout_ms``, cuts it short.
"""

from __future__ import annotations

import asyncio
import os
import signal

import structlog

from consumerd.aio.tasks import find_cause
from consumerd.config.settings import Settings
from consumerd.daemon.assemble import Daemon
from consumerd.daemon.service_manager import find_service_manager
from consumerd.errors import ConsumerdError

_log = structlog.get_logger(__name__)


class DrainCutShort(ConsumerdError):
    """A second signal ended the orderly stop before all records were committed.

    The partitions' next owners fetch the records that were not committed again.
    """


async def run_until_stopped(settings: Settings) -> None:
    """Run the daemon in this process until SIGTERM or SIGINT, and stop in order.

    Raises DrainCutShort after a second signal, ConfigError, and other ConsumerdErrors that end the process. Failures
    are logged before they are raised.
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
