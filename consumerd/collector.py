# SPDX-License-Identifier: Apache-2.0
"""Settings of Python's garbage collector."""

from __future__ import annotations

import gc


def keep_loaded() -> None:
    """Exclude all objects that exist now from garbage collection.

    Modules, classes and settings live as long as the process. Each full collection over them takes 40 to 70 ms, during
    which the event loop stands still.
    """
    gc.collect()
    gc.freeze()
