# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False
"""Pool of memory for received frames, which is reused as soon as its last view is gone.

Allocating a frame of a few megabytes costs as much as receiving it: the system maps the memory, clears every page, and
unmaps it again. Here the memory returns to its pool when its last view is dropped, in any thread, and the next frame of
about that size is received into it. Memory is not cleared: the owner of a frame must only hand out the bytes received.

Example: frames of 4 MiB are received one after the other, and at most three are in use. Three are allocated in all.

Access is through the buffer protocol only. The interpreter lock is held throughout.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.string cimport memmove

cdef enum:
    SLOTS = 64  # largest number of idle pieces
    GRAIN = 1 << 16  # sizes are rounded up to multiples of this, so that frames of similar size can share memory


cdef struct Idle:
    void* memory
    Py_ssize_t capacity


@cython.final
cdef class ReceivePool:
    """Allocates memory for frames, and keeps at most ``idle_limit`` bytes of returned memory for the next ones.

    Memory of frames below 64 KiB is not kept, as the allocator is as fast for those.
    """

    cdef readonly Py_ssize_t idle_limit
    cdef readonly Py_ssize_t idle_bytes
    """Memory kept for the next frames."""
    cdef readonly Py_ssize_t lent_bytes
    """Memory in use by frames, including what their sizes were rounded up by."""
    cdef Idle _idle[SLOTS]
    cdef Py_ssize_t _count

    def __cinit__(self, Py_ssize_t idle_limit):
        self.idle_limit = idle_limit
        self.idle_bytes = self.lent_bytes = self._count = 0

    def __dealloc__(self):
        self._shrink(0)

    def allocate(self, Py_ssize_t size):
        """Return a view of ``size`` bytes of uninitialized, writable memory. Raises MemoryError."""
        if size < 0:
            raise ValueError("negative size")
        cdef Frame frame = Frame.__new__(Frame)
        self._take(frame, size)
        return memoryview(frame)

    def trim(self):
        """Return idle memory to the system."""
        self._shrink(0)

    cdef int _take(self, Frame frame, Py_ssize_t size) except -1:
        cdef Py_ssize_t at, capacity, best = -1
        if size > PY_SSIZE_T_MAX - GRAIN:
            raise MemoryError()
        capacity = size if size < GRAIN else size + (-size) % GRAIN
        if capacity >= GRAIN:
            for at in range(self._count - 1, -1, -1):  # the newest first: its pages may still be in the CPU caches
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
@cython.no_gc  # it only refers to its pool, which refers to nothing: no cycle is possible
cdef class Frame:
    """Memory of one frame, from :meth:`ReceivePool.allocate`; it returns to the pool with its last view."""

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
