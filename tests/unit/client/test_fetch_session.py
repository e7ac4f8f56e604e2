# SPDX-License-Identifier: Apache-2.0
"""Fetch sessions: what a request says, given what the broker remembers (KIP-227)."""

import functools

from consumerd.client.fetch_protocol import Key
from consumerd.client.fetch_session import FetchSession
from consumerd.fetch.cursor import Cursor
from consumerd.fetch.planner import Ask
from consumerd.model import TopicPartition
from consumerd.wire.errorcodes import ErrorCode
from consumerd.wire.primitives import MAX_INT32
from tests.support.clocks import ManualClock


@functools.cache
def cursor(number: int, name: str = "first") -> Cursor:
    """One partition's cursor; another ``name``, another one."""
    return Cursor(TopicPartition.modern("t", number), 0, limit_bytes=1000)


def ask(number: int, offset: int = 0, size: int = 100, name: str = "first") -> Ask:
    return Ask(cursor(number, name), 0, offset, size)


def lines(*asks: Ask) -> dict[Key, Ask]:
    return {one.cursor.key: one for one in asks}


def opened(*asks: Ask, session_id: int = 9) -> FetchSession:
    session = FetchSession(ManualClock(0.0))
    session.plan(lines(*asks))
    session.answered(session_id)
    return session


def test_the_first_request_is_full_and_asks_for_a_session():
    """Session id 0 with epoch 0."""
    step = FetchSession(ManualClock(0.0)).plan(lines(ask(0), ask(1)))

    assert (step.session_id, step.epoch, len(step.asks), step.forgotten) == (0, 0, 2, ())


def test_later_requests_name_only_what_changed():
    """Hundreds of quiet partitions cost nothing."""
    session = opened(ask(0), ask(1), ask(2))
    step = session.plan(lines(ask(0), ask(1, offset=5), ask(2)))

    assert (step.session_id, step.epoch) == (9, 1)
    assert [one.cursor.key for one in step.asks] == [("t", 1)]
    assert list(step.forgotten) == []


def test_another_size_is_a_change():
    """A partition with an oversized message is asked for more at the same offset."""
    step = opened(ask(0)).plan(lines(ask(0, size=200)))

    assert len(step.asks) == 1


def test_another_reader_of_a_partition_begins_a_session_anew():
    """What the broker has said of a log it does not say again while nothing changes, and the new one has not heard it."""
    session = opened(ask(0), ask(1))
    step = session.plan(lines(ask(0), ask(1, name="second")))

    assert (step.session_id, step.epoch, len(step.asks), step.forgotten) == (9, 0, 2, ())


def test_what_is_left_out_is_forgotten_and_can_come_back():
    """A full partition must not be sent on; when it has room again it is new to the broker."""
    session = opened(ask(0), ask(1))
    assert list(session.plan(lines(ask(0))).forgotten) == [("t", 1)]
    session.answered(9)
    step = session.plan(lines(ask(0), ask(1)))

    assert [one.cursor.key for one in step.asks] == [("t", 1)]
    assert step.epoch == 2


def test_a_broker_without_room_for_sessions_is_asked_in_full_each_time():
    """An answer with id 0 means that it keeps none."""
    session = opened(ask(0), session_id=0)
    step = session.plan(lines(ask(0)))

    assert (step.session_id, step.epoch, len(step.asks)) == (0, 0, 1)


def test_a_lost_session_begins_anew():
    """Error 70: the broker evicted it, or restarted."""
    session = opened(ask(0))
    session.refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    step = session.plan(lines(ask(0)))

    assert (step.session_id, step.epoch, len(step.asks)) == (0, 0, 1)


def test_a_session_out_of_step_is_replaced():
    """Error 71: naming the old id with epoch 0 lets the broker drop it instead of keeping it until eviction."""
    session = opened(ask(0))
    session.refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    step = session.plan(lines(ask(0)))

    assert (step.session_id, step.epoch, len(step.asks)) == (9, 0, 1)
    session.answered(10)
    assert (session.plan(lines(ask(0))).session_id, session.incremental) == (10, True)


def test_a_request_without_an_answer_makes_the_next_one_full():
    """Whether the broker took the changes is unknown."""
    session = opened(ask(0))
    session.plan(lines(ask(0, offset=3)))
    session.unanswered()
    step = session.plan(lines(ask(0, offset=3)))

    assert (step.session_id, step.epoch, len(step.asks)) == (9, 0, 1)


def test_the_epoch_wraps_to_one():
    """0 would ask for a new session."""
    session = opened(ask(0))
    session._epoch = MAX_INT32
    session.answered(9)

    assert session.plan(lines(ask(0))).epoch == 1


def test_a_session_that_could_not_be_begun_in_time_is_not_asked_for_again_soon():
    """Brokers of 1.1 may need minutes for a large one, and would be asked again and again without one answer."""
    clock = ManualClock(0.0)
    session = FetchSession(clock)
    session.plan(lines(ask(0)))
    session.unanswered(late=True)
    steps = []
    for _ in range(2):
        steps.append(session.plan(lines(ask(0), ask(1)), news=()))
        session.answered(0)
        clock.seconds += 1500

    assert [(step.session_id, step.epoch, len(step.asks)) for step in steps] == [(0, -1, 2)] * 2


def test_a_session_that_could_not_be_begun_in_time_is_tried_again_later_and_later():
    """The broker may have hung for a minute, and the process runs for months."""
    clock = ManualClock(0.0)
    session = FetchSession(clock)
    for rest in (3600, 7200):
        assert session.plan(lines(ask(0))).epoch == 0
        session.unanswered(late=True)
        session.unanswered(late=True)  # one without a session: that says nothing of sessions
        clock.seconds += rest - 1
        assert session.plan(lines(ask(0))).epoch == -1
        session.answered(0)
        clock.seconds += 1
    step = session.plan(lines(ask(0), ask(1)), news=())
    assert (step.session_id, step.epoch, len(step.asks)) == (0, 0, 2)
    session.answered(9)
    assert session.plan(lines(ask(0), ask(1))).epoch == 1
    session.refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    session.unanswered(late=True)
    clock.seconds += 3600

    assert session.plan(lines(ask(0))).epoch == 0, "it went well meanwhile"


def test_a_broker_that_hangs_later_on_keeps_its_sessions():
    """That it began one in time was seen."""
    session = opened(ask(0))
    session.plan(lines(ask(0)))
    session.unanswered(late=True)

    assert session.plan(lines(ask(0))).epoch == 0
