# SPDX-License-Identifier: Apache-2.0
"""Repeats a request to a broker with a role, for a bounded time.

Examples of a role are coordinator and controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from consumerd.aio.backoff import Backoff
from consumerd.aio.timeouts import timeout
from consumerd.errors import BrokerError, ConnectionLost, RequestTimedOut

T = TypeVar("T")


async def retry_passing(
    ask: Callable[[], Awaitable[T]], *, who: str, patience_s: float, random: Callable[[], float]
) -> T:
    """Call ``ask`` until it succeeds; return its result.

    It is called again, after a backoff of 0.1 to 1 s, when it raises ConnectionLost or a retriable BrokerError. Other
    errors are raised. Safe to cancel.

    Args:
        who: Who should answer, for the error.
        patience_s: Time limit of all calls together, in seconds.
        random: Returns floats in [0, 1), for the backoff.

    Raises RequestTimedOut with the last failure after ``patience_s``.
    """
    failure: BrokerError | ConnectionLost | None = None
    backoff = Backoff(initial_s=0.1, maximum_s=1.0, random=random)
    try:
        async with timeout(patience_s):
            while True:
                try:
                    return await ask()
                except ConnectionLost as error:
                    failure = error
                except BrokerError as error:
                    if not error.retriable:
                        raise
                    failure = error
                await asyncio.sleep(backoff.next())
    except TimeoutError:
        last = "no answer" if failure is None else failure
        raise RequestTimedOut(f"no {who} has answered within {patience_s:g} s; last: {last}") from failure
