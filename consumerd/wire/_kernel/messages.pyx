# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain messages of magic 0 and 1, and CRC-32. Contract: ``consumerd.wire.kernel``."""

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.stdint cimport int64_t, uint8_t

cdef extern from "columns.h":
    bint COLUMN_IS_LENT(array.array column)

cdef extern from "crc32.h" nogil:
    int crc32_setup()
    unsigned int crc32_of(const uint8_t *data, size_t size)
    unsigned int crc32_slice(unsigned int state, const uint8_t *data, size_t size)

cdef extern from "messages.h" nogil:
    ctypedef struct messages_run:
        int64_t *timestamps
        int64_t *key_starts
        int64_t *key_ends
        int64_t *value_starts
        int64_t *value_ends
        int64_t rows
        int64_t room
        int64_t *segments
        int64_t segment_count
        int64_t segment_room
        int64_t first
        int64_t following
        int full

    int64_t messages_read(const uint8_t *data, int64_t at, int64_t end, int64_t shift, messages_run *run)
    int messages_int32(const uint8_t *at)


CRC32 = "pclmulqdq" if crc32_setup() else "table"

cdef enum:
    SEGMENTS = 1024
    LEAST_MESSAGE = 26
    # Input size below which releasing the interpreter lock costs more than it saves.
    UNLOCKED_BYTES = 8192


def crc32(data, Py_ssize_t begin=0, Py_ssize_t end=PY_SSIZE_T_MAX, /):
    cdef Py_buffer view
    cdef const uint8_t *start
    cdef size_t size
    cdef unsigned int checksum
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        begin = min(max(begin, 0), view.len)
        size = min(max(end, begin), view.len) - begin
        start = <const uint8_t *>view.buf + begin
        if size < UNLOCKED_BYTES:
            checksum = crc32_of(start, size)
        else:
            with nogil:
                checksum = crc32_of(start, size)
    finally:
        PyBuffer_Release(&view)
    return checksum


def crc32_by_table(data, /):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return ~crc32_slice(~<unsigned int>0, <const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def read_messages(
    data,
    Py_ssize_t at,
    Py_ssize_t end,
    int64_t shift,
    columns,
    list segments,
    int64_t first,
    int64_t following,
    /,
):
    cdef Py_buffer view
    cdef Columns rows = Columns(columns)
    cdef int64_t ends[2 * SEGMENTS]
    cdef int64_t index
    cdef int64_t size
    rows.run.first = first
    rows.run.following = following
    rows.run.segments = ends
    rows.run.segment_room = SEGMENTS
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        end = min(end, view.len)
        if at < 0 or end - at < LEAST_MESSAGE:
            return at, first, following
        size = max(<int64_t>messages_int32(<const uint8_t *>view.buf + at + 8) + 12, LEAST_MESSAGE)
        rows.grow(min((end - at) // size + 8, (end - at) // LEAST_MESSAGE))
        while True:
            rows.run.segment_count = 0
            if end - at < UNLOCKED_BYTES:
                at = messages_read(<const uint8_t *>view.buf, at, end, shift, &rows.run)
            else:
                with nogil:
                    at = messages_read(<const uint8_t *>view.buf, at, end, shift, &rows.run)
            for index in range(rows.run.segment_count):
                segments.append((ends[2 * index], ends[2 * index + 1]))
            if not rows.run.full:
                break
            if rows.run.rows == rows.run.room:
                rows.grow(min((end - at) // LEAST_MESSAGE, max(rows.run.rows, 64)))
    finally:
        PyBuffer_Release(&view)
        rows.close()
    return at, rows.run.first, rows.run.following


cdef class Columns:
    """The columns to fill, enlarged beyond their rows."""

    cdef messages_run run
    cdef array.array timestamps, key_starts, key_ends, value_starts, value_ends

    def __cinit__(self, columns):
        self.timestamps = columns.timestamps
        self.key_starts = columns.key_starts
        self.key_ends = columns.key_ends
        self.value_starts = columns.value_starts
        self.value_ends = columns.value_ends
        rows = len(self.timestamps)
        for column in (self.timestamps, self.key_starts, self.key_ends, self.value_starts, self.value_ends):
            if column.typecode != "q" or len(column) != rows:
                raise ValueError("columns of int64 and of one length are needed")
            if COLUMN_IS_LENT(column):
                raise BufferError("cannot resize a column that is exporting buffers")
        self.run.rows = self.run.room = rows

    cdef int resize(self, Py_ssize_t rows) except -1:
        array.resize_smart(self.timestamps, rows)
        array.resize_smart(self.key_starts, rows)
        array.resize_smart(self.key_ends, rows)
        array.resize_smart(self.value_starts, rows)
        array.resize_smart(self.value_ends, rows)
        return 0

    cdef int grow(self, int64_t count) except -1:
        """Enlarge all columns by `count` rows."""
        self.resize(self.run.room + count)
        self.run.room += count
        self.run.timestamps = <int64_t *>self.timestamps.data.as_voidptr
        self.run.key_starts = <int64_t *>self.key_starts.data.as_voidptr
        self.run.key_ends = <int64_t *>self.key_ends.data.as_voidptr
        self.run.value_starts = <int64_t *>self.value_starts.data.as_voidptr
        self.run.value_ends = <int64_t *>self.value_ends.data.as_voidptr
        return 0

    cdef int close(self) except -1:
        """Cut all columns to their rows."""
        return self.resize(self.run.rows)
