# SPDX-License-Identifier: Apache-2.0
"""Logging: structlog on stderr; JSON in a container, readable on a terminal.

Standard-library loggers (aiohttp, aiozk) use the same output. Event names are ``noun_verbed`` constants, data are keys.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Final, Literal, TextIO

import structlog

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logging(
    level: str = "info",
    style: Literal["auto", "json", "console"] = "auto",
    stream: TextIO | None = None,
    *,
    always: Mapping[str, str] | None = None,
) -> None:
    """Set up logging for the process. Called once, by the command line.

    Args:
        level: The least severe level that is written.
        style: ``console`` for people, ``json`` for programs; ``auto`` is ``console`` on a terminal.
        stream: The output; None is stderr.
        always: Fields of every line, including those of other libraries and threads.
    """

    def add_always(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        for name, value in (always or {}).items():
            event.setdefault(name, value)
        return event

    stream = sys.stderr if stream is None else stream
    people = style == "console" or (style == "auto" and stream.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_always,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=28)]
        if people
        else [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(default=str)]
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(), structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    for noisy in ("aiohttp.access", "aiozk", "asyncio"):
        # we report these ourselves: a lost session is one line, not one per layer
        logging.getLogger(noisy).setLevel(max(_LEVELS[level], logging.WARNING))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # a second call, with the settings' level, must take effect
    )


def log_to_standard_library() -> None:
    """Send consumerd's log to Python's ``logging``, with data as ``key=value``.

    For programs that use consumerd as a library: structlog alone would print everything on stdout. Does nothing if the
    program has configured structlog.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"], drop_missing=True),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # the program may configure structlog later
    )
