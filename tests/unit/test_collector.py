# SPDX-License-Identifier: Apache-2.0
"""What Python's collector is told."""

from __future__ import annotations

import gc

from consumerd.collector import keep_loaded


def test_what_is_loaded_is_gone_through_no_more() -> None:
    """A collection that goes through all modules keeps the event loop for as long."""
    try:
        keep_loaded()

        assert gc.get_freeze_count() > 10_000
        assert len(gc.get_objects()) < 1_000
    finally:
        gc.unfreeze()
