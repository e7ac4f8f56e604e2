# SPDX-License-Identifier: Apache-2.0
"""The lease: phases by age, counted from the sending of what was answered."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from consumerd.zk.lease import Lease
from consumerd.zk.port import LeasePhase


def test_phases_change_at_half_and_at_two_thirds() -> None:
    """Before the server can give the claim to another, and early enough to stop in order."""
    lease = Lease(6.0, sent_at=100.0)

    assert lease.phase(102.99) is LeasePhase.FRESH
    assert lease.phase(103.0) is LeasePhase.PAUSED
    assert lease.phase(103.99) is LeasePhase.PAUSED
    assert lease.phase(104.0) is LeasePhase.SUSPENDED
    assert lease.phase(1e9) is LeasePhase.SUSPENDED


def test_answers_out_of_order_never_shorten_it() -> None:
    """A late answer to an old request says nothing about a newer one."""
    lease = Lease(6.0, sent_at=100.0)
    lease.renew(105.0)
    lease.renew(103.0)

    assert lease.age(106.0) == 1.0


@given(timeout_s=st.floats(0.1, 100), age=st.floats(0, 200))
def test_next_change_is_when_the_phase_changes(timeout_s: float, age: float) -> None:
    """Whoever sleeps until then must wake in the next phase, and not before."""
    lease = Lease(timeout_s, sent_at=0.0)
    phase, wait = lease.phase(age), lease.next_change_s(age)

    if math.isinf(wait):
        assert phase is LeasePhase.SUSPENDED
    else:
        assert wait > 0
        assert lease.phase(age + wait * 0.99) is phase
        assert lease.phase(age + wait * 1.001 + 1e-9) is not phase
