# SPDX-License-Identifier: Apache-2.0
"""What is logged in the Python processes that Spark starts for readers and writers: warnings and worse, on stderr.

Spark shows or keeps that with its own logs. Without this structlog would print everything to stdout, debug included.
"""

from __future__ import annotations

import logging
import sys

import structlog


def log_warnings() -> None:
    """Log from warnings on, unless somebody has already said what is logged; for processes of Spark's alone."""
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
