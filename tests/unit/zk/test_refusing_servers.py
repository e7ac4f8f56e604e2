# SPDX-License-Identifier: Apache-2.0
"""How long a server that refuses our identity is left alone."""

from __future__ import annotations

from consumerd.zk.authentication import LoginFailed, RefusingServers
from consumerd.zk.connect_string import Server

ONE, OTHER = Server("one", 2181), Server("other", 2181)


def test_pauses_grow_to_a_minute_and_begin_again_after_a_success() -> None:
    """A wrong password must not be tried ten times a second; and each server is judged by itself."""
    refusing = RefusingServers(lambda: 0.0)
    refusal = LoginFailed("no")
    now, pauses = 100.0, []
    for count in range(1, 9):
        refusing.note(ONE, refusal, now)
        assert refusing.count(ONE) == count
        assert refusing.find(ONE, now) is refusal
        began = now
        while refusing.find(ONE, now) is not None:
            now += 0.5
        pauses.append(now - began)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert refusing.find(OTHER, 100.0) is None

    refusing.forget(ONE)
    assert refusing.count(ONE) == 0
    refusing.note(ONE, refusal, now)
    assert refusing.find(ONE, now + 0.9) is refusal
    assert refusing.find(ONE, now + 1.0) is None
