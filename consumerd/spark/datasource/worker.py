# SPDX-License-Identifier: Apache-2.0
"""Logging and garbage collection in Spark's Python processes; workers are used for many tasks."""

from __future__ import annotations

import logging
import sys
from functools import cache

import structlog

from consumerd.collector import keep_loaded


def log_warnings() -> None:
    """Log warnings and errors of a Spark process to stderr, unless logging is configured already.

    Spark adds its processes' stderr to its own logs. Without this call, structlog would print everything to stdout,
    even debug events.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


@cache  # only once in a process, before tasks leave garbage
def prepare_worker() -> None:
    """Prepare a Python process of Spark for its tasks, once.

    The process then logs warnings and errors to stderr. Modules loaded so far are excluded from garbage collection.
    """
    log_warnings()
    # pyspark collects garbage after each task. Going through all modules takes longer than reading a few megabytes.
    import pyarrow.compute  # noqa: F401 - the largest module, which every task needs

    keep_loaded()
