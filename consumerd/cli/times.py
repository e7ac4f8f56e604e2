# SPDX-License-Identifier: Apache-2.0
"""Reading of times that are given on the command line."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Final

from consumerd.errors import ConfigError

_FIRST_MS: Final = 1_262_304_000_000
"""2010-01-01: no record is older."""


def read_time_ms(text: str, *, option: str) -> int | None:
    """Read a time, and return it in ms since the epoch.

    The text is a number of ms since the epoch, or a time in ISO 8601; a time without a zone is UTC. Returns None for
    any other text. Raises ConfigError for a number that is probably a date, such as 20240501.

    Args:
        option: Name of the option, for the error.
    """
    if text.isascii() and text.isdigit():
        if 0 < (milliseconds := int(text)) < _FIRST_MS:
            # 20240501 is meant as a date, and as ms it would be the morning of 1970-01-01
            raise ConfigError(
                f"{option}: {text}: as ms since 1970 that is before the first Kafka; write a date as 2024-05-01, or "
                f"use "
                "earliest"
            )
        return milliseconds
    with contextlib.suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        if (milliseconds := int(moment.timestamp() * 1000)) >= 0:
            return milliseconds
    return None
