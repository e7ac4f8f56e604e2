# SPDX-License-Identifier: Apache-2.0
"""What Python workers of Spark keep from one task to the next."""

from __future__ import annotations

from functools import cache

from consumerd.collector import keep_loaded


@cache  # once in a process: what later tasks leave is garbage
def spare_loaded_modules() -> None:
    """Leave what a worker has loaded out of its garbage collections. Does something once in a worker's life.

    pyspark collects garbage after each task, before the worker takes the next one. A task that reads a few megabytes takes
    less time than going through all modules.
    """
    import pyarrow.compute  # noqa: F401 - most of what is loaded, and every task needs it

    keep_loaded()
