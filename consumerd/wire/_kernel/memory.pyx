# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False
"""Memory of received frames, used again as soon as the last view of it is gone.

A frame of a few megabytes that is made anew each time costs as much as receiving it: the system maps the memory, clears
every page of it, and takes it back when the frame is dropped. Here it goes back to its pool instead, whoever drops the last
view and wherever, and the next frame of about that size is received into it. What a frame holds before it is filled is
whatever stood there before: its owner hands out no more than was received.

Nothing here is read or written but by way of the buffer protocol. All of it happens under the interpreter's lock.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.string cimport memmove

cdef enum:
    SLOTS = 64  # so many pieces of memory may lie idle
    GRAIN = 1 << 16  # sizes are rounded up to this, so that frames of nearly the same size fit into each other's memory


cdef struct Idle:
    void* memory
    Py_ssize_t capacity


@cython.final
cdef class ReceivePool:
    """Gives out memory for frames; at most ``idle_limit`` bytes of what came back are kept for the next ones.

    Frames below 64 KiB have memory of their own, which is not kept: for those the allocator is as fast.
    """

    cdef readonly Py_ssize_t idle_limit
    cdef readonly Py_ssize_t idle_bytes
    """What lies here for the next frames."""
    cdef readonly Py_ssize_t lent_bytes
    """What is out, with what it was rounded up by."""
    cdef Idle _idle[SLOTS]
    cdef Py_ssize_t _count

    def __cinit__(self, Py_ssize_t idle_limit):
        self.idle_limit = idle_limit
        self.idle_bytes = self.lent_bytes = self._count = 0

    def __dealloc__(self):
        self._shrink(0)

    def allocate(self, Py_ssize_t size):
        """Return writable memory of ``size`` bytes, as a view; what stands in it is undefined. Raises MemoryError."""
        if size < 0:
            raise ValueError("negative size")
        cdef Frame frame = Frame.__new__(Frame)
        self._take(frame, size)
        return memoryview(frame)

    def trim(self):
        """Give back to the system what lies idle."""
        self._shrink(0)

    cdef int _take(self, Frame frame, Py_ssize_t size) except -1:
        cdef Py_ssize_t at, capacity, best = -1
        if size > PY_SSIZE_T_MAX - GRAIN:
            raise MemoryError()
        capacity = size if size < GRAIN else size + (-size) % GRAIN
        if capacity >= GRAIN:
            for at in range(self._count - 1, -1, -1):  # the newest first: its pages are still in the caches
                if capacity <= self._idle[at].capacity <= capacity + capacity // 16:
                    best = at
                    break
        if best >= 0:
            frame.memory = self._idle[best].memory
            frame.capacity = self._idle[best].capacity
            self._forget(best)
        else:
            frame.memory = PyMem_RawMalloc(capacity)
            if frame.memory == NULL:
                raise MemoryError()
            frame.capacity = capacity
        frame.size = size
        frame.pool = self
        self.lent_bytes += frame.capacity
        return 0

    cdef void _give_back(self, void* memory, Py_ssize_t capacity) noexcept:
        self.lent_bytes -= capacity
        if capacity < GRAIN or capacity > self.idle_limit:
            PyMem_RawFree(memory)
            return
        if self._count == SLOTS:
            self._drop_oldest()
        self._shrink(self.idle_limit - capacity)
        self._idle[self._count].memory = memory
        self._idle[self._count].capacity = capacity
        self._count += 1
        self.idle_bytes += capacity

    cdef void _shrink(self, Py_ssize_t limit) noexcept:
        while self.idle_bytes > limit:
            self._drop_oldest()

    cdef void _drop_oldest(self) noexcept:
        cdef void* memory = self._idle[0].memory
        self._forget(0)
        PyMem_RawFree(memory)

    cdef void _forget(self, Py_ssize_t at) noexcept:
        self.idle_bytes -= self._idle[at].capacity
        self._count -= 1
        memmove(&self._idle[at], &self._idle[at + 1], <size_t>(self._count - at) * sizeof(Idle))


@cython.final
@cython.no_gc  # it refers to its pool, which refers to nothing; so the pool is there for as long as the frame is
cdef class Frame:
    """Memory that is out; made by :meth:`ReceivePool.allocate` alone, and back in its pool when the last view of it is gone."""

    cdef ReceivePool pool
    cdef void* memory
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.memory, self.size, 0, flags)

    def __len__(self):
        return self.size

    def __dealloc__(self):
        if self.memory != NULL:
            self.pool._give_back(self.memory, self.capacity)
            self.memory = NULL
