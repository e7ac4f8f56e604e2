# SPDX-License-Identifier: Apache-2.0
"""A sample belongs to the stage of its innermost frame that is known."""

from __future__ import annotations

import pytest

from bench.profiling import LOCKED, WAITING, count_stages, show_shares, stage_of


@pytest.mark.parametrize(
    ("stack", "stage"),
    [
        (["run (asyncio/runners.py:190)", "crc32c_hw (records.cpython-311-x86_64-linux-gnu.so)"], "CRC"),
        (["run_once (asyncio/base_events.py:1)", "read (consumerd/fetch/feed.py:3)", "memcpy (libc.so.6)"], "fetch"),
        (["_selector_loop (asyncio/selector_events.py:1)", "recv (libc.so.6)"], "socket"),
        (["write (consumerd/sinks/null.py:40)"], "fold"),
        (
            ["BaseSelectorEventLoop._write_to_self (asyncio/selector_events.py:139)", "send (libc)"],
            "hand-over between threads",
        ),
        (["x (pyarrow/parquet/core.py:1)", "ZSTD_compressBlock (libarrow.so)"], "compression"),
        (["main (libpython3.11.so)"], "interpreter and the rest"),
        ([], "interpreter and the rest"),
        (
            ["read (consumerd/fetch/feed.py:3)", "PyEval_RestoreThread", "pthread_cond_timedwait", "0x7f (libc.so.6)"],
            LOCKED,
        ),
        (
            ["_worker (concurrent/futures/thread.py:81)", "PyThread_acquire_lock_timed (libpython)", "0x7f (libc)"],
            WAITING,
        ),
        (["select (selectors.py:468)", "epoll_wait (libc.so.6)"], WAITING),
    ],
)
def test_stages(stack: list[str], stage: str) -> None:
    """From the outside in: what is innermost and known decides."""
    assert stage_of(stack) == stage


def test_shares_are_of_all_samples() -> None:
    """Counts of a line are its samples; who waits does not work."""
    raw = (
        "a (x.py:1);recv (libc.so.6) 3\nwrite (consumerd/sinks/null.py:40) 1\n"
        "select (selectors.py:468);epoll_wait (libc.so.6) 90\nx (y.py:1);pthread_cond_timedwait (libc.so.6) 7\n"
    )
    assert count_stages(raw) == {"socket": 3, "fold": 1, WAITING: 90, LOCKED: 7}
    text = show_shares(raw)
    assert " 75.0 %  socket\n" in text
    assert " 25.0 %  fold\n" in text
    assert " 75.0 %  recv (libc.so.6)\n" in text
    assert "7 samples of threads that waited for the interpreter's lock" in text
