"""Room for requests: the bound holds, everybody has a turn, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from consumerd.embedded.request_memory import Claim, RequestMemory


def test_turns_are_in_order_of_arrival_and_a_large_one_is_not_passed() -> None:
    """Small requests that would fit must not keep a large one waiting as long as there are any."""
    memory, let_in = RequestMemory(100), list[str]()
    first = memory.take(80, lambda: let_in.append("first"))
    large = memory.take(90, lambda: let_in.append("large"))
    small = memory.take(10, lambda: let_in.append("small"))
    assert (True, False, False) == (first.held, large.held, small.held)
    first.release()
    assert ["large", "small"] == let_in
    assert 100 == memory.taken_bytes


def test_what_is_larger_than_all_is_let_in_alone() -> None:
    """It would wait for ever otherwise."""
    memory = RequestMemory(100)
    small = memory.take(10, lambda: None)
    larger = memory.take(500, lambda: None)
    assert not larger.held
    small.release()
    assert larger.held
    assert not memory.take(1, lambda: None).held


def test_one_that_goes_while_it_waits_makes_way() -> None:
    """Its connection was lost; releasing again changes nothing."""
    memory = RequestMemory(100)
    memory.take(50, lambda: None)
    gone = memory.take(60, lambda: None)
    behind = memory.take(50, lambda: None)
    for _ in range(2):
        gone.release()
    assert (False, True, 100) == (gone.held, behind.held, memory.taken_bytes)


@given(st.lists(st.tuples(st.integers(1, 150), st.integers(0, 5)), max_size=40))
def test_the_bound_holds_and_everything_is_let_in_once(steps: list[tuple[int, int]]) -> None:
    """Whatever comes and goes: taken is what is held, at most the limit or one alone, and in the end nothing is left."""
    memory, claims = RequestMemory(100), list[Claim]()
    granted: list[int] = []

    def note(number: int) -> Callable[[], None]:
        return lambda: granted.append(number)

    def check() -> None:
        held = [claim.size for claim in claims if claim.held]
        assert memory.taken_bytes == sum(held)
        assert sum(held) <= 100 or len(held) == 1
        assert held or not claims

    for number, (size, leaving) in enumerate(steps):
        claims.append(memory.take(size, note(number)))
        check()
        for claim in claims[:leaving]:
            claims.remove(claim)
            claim.release()
            check()
    while claims:
        claims.pop(0).release()
        check()
    assert 0 == memory.taken_bytes
    assert sorted(set(granted)) == granted
