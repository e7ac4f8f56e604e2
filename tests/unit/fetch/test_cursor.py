# SPDX-License-Identifier: Apache-2.0
"""Position, fetch size and state of one partition."""

from consumerd.fetch.cursor import Cursor, CursorState, TooLarge
from consumerd.model import TopicPartition

PARTITION = TopicPartition.modern("t", 3)
MIB = 1 << 20


def make(position: int = 0, limit_bytes: int = 64 * MIB) -> Cursor:
    return Cursor(PARTITION, position, limit_bytes=limit_bytes)


def test_a_new_cursor_may_be_asked_for():
    """A feed starts without waiting for anything."""
    cursor = make(7)

    assert cursor.ready(0.0)
    assert cursor.key == ("t", 3)
    assert cursor.position == 7


def test_backing_off_ends_when_it_is_due():
    """A failing partition is left alone until its time, and comes back by itself."""
    cursor = make()
    cursor.back_off(10.0)

    assert not cursor.ready(9.9)
    assert cursor.ready(10.0)
    assert cursor.state is CursorState.ACTIVE


def test_whatever_makes_an_answer_unwanted_changes_the_generation():
    """An answer that was under way during one of these must not move the cursor."""
    cursor = make()
    seen = {cursor.generation}
    for change in (
        lambda: cursor.back_off(1.0),
        cursor.move,
        cursor.confirm,
        cursor.fail,
        lambda: cursor.seek(5),
        cursor.close,
    ):
        change()
        assert cursor.generation not in seen
        seen.add(cursor.generation)


def test_progress_keeps_the_generation():
    """Pipelined requests follow each other without being taken for stale."""
    cursor = make()
    before = cursor.generation
    cursor.advance(10)

    assert (cursor.generation, cursor.position) == (before, 10)


def test_a_failed_or_confirming_cursor_is_not_asked_for_until_activated():
    """Only the consuming side, or the confirmation, sets it going again."""
    cursor = make()
    for stop in (cursor.fail, cursor.confirm):
        stop()
        assert not cursor.ready(1e9)
        cursor.activate()
        assert cursor.ready(0.0)


def test_a_cursor_with_an_end_is_asked_for_up_to_it():
    """Whoever reads a range needs nothing behind it; what turns out to be missing is asked for again."""
    cursor = Cursor(PARTITION, 3, limit_bytes=MIB, end=10)

    assert cursor.ready(0.0)
    cursor.advance(12)
    assert not cursor.ready(0.0)
    cursor.seek(9)
    assert cursor.ready(0.0)


def test_a_closed_cursor_stays_closed():
    """A late activation or seek of a closed feed starts nothing."""
    cursor = make()
    cursor.close()
    cursor.activate()
    cursor.seek(3)

    assert cursor.state is CursorState.CLOSED
    assert not cursor.ready(1e9)


def test_the_fetch_size_doubles_while_the_message_size_is_unknown():
    """Fewer than twelve bytes came: nothing says how large the message is."""
    cursor = make()

    assert cursor.grow(MIB, None) is None
    assert cursor.grown_bytes == 2 * MIB
    assert cursor.grow(2 * MIB, None) is None
    assert cursor.grown_bytes == 4 * MIB


def test_the_fetch_size_grows_to_the_message_size_at_once_when_its_header_came_along():
    """One more request is enough then."""
    cursor = make()

    assert cursor.grow(MIB, 5 * MIB + 1) is None
    assert cursor.grown_bytes == 5 * MIB + 1


def test_a_size_that_should_have_fitted_still_doubles():
    """A broker that cuts off a message smaller than what was asked for must not make us ask byte by byte."""
    cursor = make()

    assert cursor.grow(MIB, 1000) is None
    assert cursor.grown_bytes == 2 * MIB


def test_growth_ends_at_the_limit():
    """The limit is tried before anything is called too large, whatever doubling would have skipped."""
    cursor = make(limit_bytes=5 * MIB)

    assert cursor.grow(4 * MIB, None) is None
    assert cursor.grown_bytes == 5 * MIB
    assert cursor.grow(5 * MIB, None) == TooLarge(size=None)


def test_a_message_above_the_limit_is_too_large_at_once():
    """No memory is spent on finding out what its header says."""
    assert make(limit_bytes=5 * MIB).grow(MIB, 6 * MIB) == TooLarge(size=6 * MIB)


def test_the_fetch_size_shrinks_after_a_run_of_successes():
    """One large message must not inflate every fetch for ever, nor a topic full of them fail every other fetch."""
    cursor = make()
    cursor.grow(MIB, 8 * MIB)
    for offset in range(15):
        cursor.advance(offset)
    assert cursor.grown_bytes == 8 * MIB
    cursor.advance(16)
    assert cursor.grown_bytes == 4 * MIB
    for offset in range(16 * 30):
        cursor.advance(offset)
    assert cursor.grown_bytes == 0


def test_expansion_is_learned_and_never_below_one():
    """It sizes reservations and slices; a decoded batch is never taken for smaller than what was fetched."""
    cursor = make()
    assert cursor.expansion is None
    cursor.observe_expansion(100, 1000)
    assert cursor.expansion == 10.0  # the first piece tells at once: the next one is cut by it
    for _ in range(80):
        cursor.observe_expansion(100, 1)
    assert 1.0 <= cursor.expansion < 1.1


def test_what_cannot_expand_teaches_nothing():
    """An empty piece has no ratio."""
    cursor = make()
    cursor.observe_expansion(0, 100)

    assert cursor.expansion is None
