# SPDX-License-Identifier: Apache-2.0
"""Room for requests: the bound holds, everybody has a turn, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from consumerd.embedded.request_memory import MemoryClaim, RequestMemory

STEP = 64 << 10


def receive(claim: MemoryClaim) -> None:
    """Have a request arrive in full, as far as it finds room."""
    while claim.held and claim.reserved_bytes < claim.size:
        claim.reserve_more()
    if claim.held and not claim.complete:
        claim.finish()


def test_turns_are_in_order_of_arrival_and_a_large_one_is_not_passed() -> None:
    """Small requests that would fit must not keep a large one waiting as long as there are any."""
    memory, let_in = RequestMemory(100), list[str]()
    first = memory.take(80, lambda: let_in.append("first"))
    receive(first)
    large = memory.take(90, lambda: let_in.append("large"))
    small = memory.take(10, lambda: let_in.append("small"))
    assert (True, False, False) == (first.held, large.held, small.held)
    first.release()
    assert ["large", "small"] == let_in
    assert 100 == memory.taken_bytes


def test_what_is_announced_takes_a_step_until_it_arrives() -> None:
    """A size costs its peer nothing to say."""
    memory = RequestMemory(10 * STEP)
    announced = [memory.take(100 * STEP, lambda: None) for _ in range(4)]
    assert 4 * STEP == memory.taken_bytes
    sent = memory.take(6 * STEP, lambda: None)
    receive(sent)
    assert (True, 10 * STEP) == (sent.complete, memory.taken_bytes)
    assert all(claim.held for claim in announced)


def test_the_first_that_waits_goes_beyond_while_none_is_complete() -> None:
    """Requests that have arrived in part, and stall, would keep each other waiting for ever."""
    memory = RequestMemory(2 * STEP)
    stalled = [memory.take(10 * STEP, lambda: None) for _ in range(2)]
    first, second = memory.take(2 * STEP, lambda: None), memory.take(2 * STEP, lambda: None)
    assert (True, False) == (first.held, second.held)
    receive(first)
    assert (True, 4 * STEP) == (first.complete, memory.taken_bytes)
    first.release()
    receive(second)
    assert second.complete
    assert all(claim.held for claim in stalled)


def test_one_that_goes_while_it_waits_makes_way() -> None:
    """Its connection was lost; releasing again changes nothing."""
    memory = RequestMemory(100)
    receive(memory.take(50, lambda: None))
    gone = memory.take(60, lambda: None)
    behind = memory.take(50, lambda: None)
    for _ in range(2):
        gone.release()
    assert (False, True, 100) == (gone.held, behind.held, memory.taken_bytes)


@given(
    st.lists(st.tuples(st.integers(1, 5 * STEP), st.integers(0, 4), st.lists(st.integers(0, 10))), max_size=40),
)
def test_the_bound_holds_and_every_request_is_received(
    steps: list[tuple[int, int, list[int]]],
) -> None:
    """Whatever comes, stalls and goes: the limit and one request; and who goes on sending is received."""
    limit = 3 * STEP
    memory, claims = RequestMemory(limit), list[MemoryClaim]()
    granted: list[int] = []

    def note(number: int) -> Callable[[], None]:
        return lambda: granted.append(number)

    def check() -> None:
        assert memory.taken_bytes == sum(claim.reserved_bytes for claim in claims)
        assert memory.taken_bytes <= limit + 5 * STEP
        assert memory.contended == any(not claim.held for claim in claims)

    for number, (size, leaving, sending) in enumerate(steps):
        claims.append(memory.take(size, note(number)))
        check()
        for index in sending:
            if index < len(claims):
                receive(claims[index])
                check()
        for claim in claims[:leaving]:
            claims.remove(claim)
            claim.release()
            check()
    while claims:
        for claim in claims:
            receive(claim)
        done = [claim for claim in claims if claim.complete]
        assert done, "one of them at least is received in full"
        for claim in done:
            claims.remove(claim)
            claim.release()
        check()
    assert 0 == memory.taken_bytes
