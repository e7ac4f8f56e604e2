# SPDX-License-Identifier: Apache-2.0
"""The pool that frames are received into."""

import pytest

from consumerd.wire import kernel

MIB = 1 << 20

if kernel.memory is None:
    pytest.skip("the native kernel is not built", allow_module_level=True)

ReceivePool = kernel.memory.ReceivePool


def test_memory_is_used_again_once_its_last_view_is_gone() -> None:
    """Whoever keeps a part of a frame, however small, keeps it from being written again."""
    pool = ReceivePool(16 * MIB)
    frame = pool.allocate(4 * MIB)
    frame[:4] = b"kept"
    part = frame.toreadonly()[:4]
    del frame
    other = pool.allocate(4 * MIB)
    other[:4] = b"else"
    assert (bytes(part), pool.idle_bytes, pool.lent_bytes) == (b"kept", 0, 8 * MIB)

    del part
    assert (pool.idle_bytes, pool.lent_bytes) == (4 * MIB, 4 * MIB)
    again = pool.allocate(4 * MIB)
    assert (bytes(again[:4]), pool.idle_bytes) == (b"kept", 0)


def test_frames_have_the_size_asked_for_and_may_be_written() -> None:
    """Whatever the memory was rounded up to."""
    pool = ReceivePool(16 * MIB)
    for size in (0, 1, 65_535, 65_536, 65_537, 3 * MIB + 1):
        frame = pool.allocate(size)
        assert (len(frame), frame.readonly, frame.format, frame.itemsize) == (size, False, "B", 1)
        frame[:] = bytes(size)
        del frame
    assert pool.lent_bytes == 0


def test_a_frame_of_nearly_the_size_takes_what_lies_there_and_another_does_not() -> None:
    """Answers to the same request differ by a little; memory that is far too large would be wasted on a small one."""
    pool = ReceivePool(64 * MIB)
    frame = pool.allocate(4 * MIB)
    del frame
    small = pool.allocate(2 * MIB)
    assert pool.idle_bytes == 4 * MIB
    nearly = pool.allocate(4 * MIB - 200_000)
    assert (pool.idle_bytes, pool.lent_bytes) == (0, 6 * MIB)
    del small, nearly
    assert (pool.idle_bytes, pool.lent_bytes) == (6 * MIB, 0)


def test_no_more_lies_idle_than_allowed_and_the_oldest_goes_first() -> None:
    """What nobody receives into is the system's."""
    pool = ReceivePool(4 * MIB)
    frames = [pool.allocate(size * MIB) for size in (1, 2, 3, 5)]
    del frames[3]
    assert pool.idle_bytes == 0, "more than may lie idle at all"
    for idle in (1, 3, 3):
        del frames[0]
        assert pool.idle_bytes == idle * MIB
    pool.trim()
    assert (pool.idle_bytes, pool.lent_bytes) == (0, 0)


def test_any_number_of_frames_comes_back() -> None:
    """There are places for so many idle ones, and no more."""
    pool = ReceivePool(1 << 40)
    frames = [pool.allocate(65_536 + 65_536 * (number % 3)) for number in range(200)]
    frames.clear()
    assert pool.lent_bytes == 0
    assert 64 * 65_536 <= pool.idle_bytes <= 64 * 3 * 65_536


def test_small_frames_are_not_kept() -> None:
    """The allocator serves those as fast."""
    pool = ReceivePool(16 * MIB)
    frame = pool.allocate(65_535)
    assert pool.lent_bytes == 65_535
    del frame
    assert (pool.idle_bytes, pool.lent_bytes) == (0, 0)


def test_a_pool_may_go_before_its_frames() -> None:
    """A connector that is dropped while an answer is in use."""
    frame = ReceivePool(16 * MIB).allocate(MIB)
    frame[:] = b"x" * MIB
    assert frame[-1] == ord("x")


@pytest.mark.parametrize("size", [-1, (1 << 63) - 1])
def test_an_impossible_size_is_refused(size: int) -> None:
    """Nothing is rounded into another one."""
    with pytest.raises((ValueError, MemoryError)):
        ReceivePool(MIB).allocate(size)
