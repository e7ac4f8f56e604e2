# SPDX-License-Identifier: Apache-2.0
"""Exponential backoff with jitter."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Delays that grow from ``initial_s`` to ``maximum_s`` seconds, with jitter.

    Delay number n, from 0, is ``step * (1 - jitter * random())``, where ``step`` is ``initial_s * factor ** n`` and at
    most ``maximum_s``; ``random`` returns floats in [0, 1).

    Example with ``initial_s`` 0.2, factor 2 and jitter 0.5: 0.1-0.2 s, 0.2-0.4 s, 0.4-0.8 s, ...
    """

    def __init__(
        self,
        *,
        initial_s: float,
        maximum_s: float,
        random: Callable[[], float],
        factor: float = 2.0,
        jitter: float = 0.5,
    ) -> None:
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._factor = factor
        self._jitter = jitter
        self._random = random
        self.attempts = 0
        """Number of delays drawn since the last reset."""

    def next(self) -> float:
        """Return the next delay, in seconds."""
        # the exponent is bounded so that a year of retries does not overflow a float
        step = min(self._maximum_s, self._initial_s * self._factor ** min(self.attempts, 64))
        self.attempts += 1
        return step * (1 - self._jitter * self._random())

    def reset(self) -> None:
        """Begin again with the shortest delay, after a success."""
        self.attempts = 0
