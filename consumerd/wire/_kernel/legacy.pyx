# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Messages of Kafka 0.6 and 0.7. Contract: ``consumerd.wire.kernel``."""

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.string cimport memset

cdef extern from "columns.h":
    bint COLUMN_IS_LENT(array.array column)

cdef extern from "crc32.h" nogil:
    int crc32_setup()

cdef extern from "legacy.h" nogil:
    enum:
        STORED_LEAST

    ctypedef struct stored_t:
        int64_t stop
        int codec

    ctypedef struct stored_columns:
        int64_t *offsets
        int64_t *next_offsets
        int64_t *indexes
        int64_t *value_starts
        int64_t *value_ends
        int64_t rows
        int64_t room
        int full

    ctypedef struct stored_run:
        int64_t at
        int64_t used
        int64_t given
        int64_t count
        int shares

    int stored_head(const uint8_t *data, int64_t at, int64_t end, stored_t *message)
    int64_t stored_read(
        const uint8_t *data, int64_t at, int64_t end, int64_t shift, int64_t start, stored_columns *to)
    void stored_read_packed(
        const uint8_t *data, int64_t end, uint8_t *out, int64_t room, int64_t shift, int64_t start, stored_run *run,
        stored_columns *to)
    int stored_step(
        const uint8_t *data, int64_t end, double most, double expansion, double doubt, int64_t *at, double *weight,
        int64_t *expanded)


crc32_setup()

cdef enum:
    CODEC_SNAPPY = 2
    # Input size below which releasing the interpreter lock costs more than it saves.
    UNLOCKED_BYTES = 8192
    # Length below which shrinking a column costs more than it saves.
    WORTH_TRIMMING = 1024
    # Rows for the beginning of a run, whose messages then tell how many rows the rest needs.
    FIRST_ROWS = 256


def read_stored(data, Py_ssize_t at, Py_ssize_t end, int64_t shift, int64_t start, columns, /):
    return read_run(data, at, end, shift, start, Rows(columns, True, False))


def read_inner(data, Py_ssize_t at, Py_ssize_t end, int64_t shift, columns, /):
    return read_run(data, at, end, shift, 0, Rows(columns, False, False))


cdef read_run(data, Py_ssize_t at, Py_ssize_t end, int64_t shift, int64_t start, Rows rows):
    """Read a run of uncompressed messages; returns the position after it."""
    cdef Py_buffer view
    cdef stored_t message
    cdef int64_t begin = at, before = rows.to.rows, wanted = FIRST_ROWS
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        end = min(end, view.len)
        if at < 0 or at >= end or not can_count(start, end):
            return at
        if not stored_head(<const uint8_t *>view.buf, at, end, &message) or message.codec:
            return at
        while True:
            rows.grow(min((end - at) // STORED_LEAST, wanted))
            if end - at < UNLOCKED_BYTES:
                at = stored_read(<const uint8_t *>view.buf, at, end, shift, start, &rows.to)
            else:
                with nogil:
                    at = stored_read(<const uint8_t *>view.buf, at, end, shift, start, &rows.to)
            if not rows.to.full:
                break
            # a row for each message of the rest, if their average size is that of the messages so far
            wanted = (end - at) // ((at - begin) // (rows.to.rows - before)) + 8
    finally:
        PyBuffer_Release(&view)
        rows.close()
    return at


def read_packed_stored(data, Py_ssize_t at, Py_ssize_t end, int64_t start, columns, Py_ssize_t limit, /):
    cdef Py_buffer view
    cdef stored_t message
    cdef int64_t shift
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        end = min(end, view.len)
        if at < 0 or at >= end or not can_count(start, end):
            return at
        if not stored_head(<const uint8_t *>view.buf, at, end, &message) or message.codec != CODEC_SNAPPY:
            return at
        room, shift = columns.peek_room(at)
        limit -= columns.decompressed_bytes
        if room is None or limit <= 0:
            return at
        return unpack_into(room[:limit], shift, &view, at, end, start, columns)
    finally:
        PyBuffer_Release(&view)


cdef unpack_into(room, int64_t shift, Py_buffer *view, Py_ssize_t at, Py_ssize_t end, int64_t start, columns):
    """Read compressed messages into the room and commit them; returns the position after them."""
    cdef Py_buffer target
    cdef stored_run run
    cdef Rows rows = Rows(columns, True, True)
    run.at = at
    run.used = run.given = run.count = run.shares = 0
    PyObject_GetBuffer(room, &target, PyBUF_WRITABLE)
    try:
        while True:
            if end - at < UNLOCKED_BYTES:
                stored_read_packed(
                    <const uint8_t *>view.buf, end, <uint8_t *>target.buf, target.len, shift, start, &run, &rows.to)
            else:
                with nogil:
                    stored_read_packed(
                        <const uint8_t *>view.buf, end, <uint8_t *>target.buf, target.len, shift, start, &run,
                        &rows.to)
            if not rows.to.full:
                break
            # the messages counted, and a reserve for what else fits into the room
            rows.grow(run.count + min(rows.to.rows, (target.len - run.used - run.given) // STORED_LEAST))
    finally:
        PyBuffer_Release(&target)
        rows.close()
    if run.at > at:
        columns.add_block(at, room[:run.used])
        if run.shares:
            columns.shares_offsets = True
    return run.at


def step_stored(data, Py_ssize_t at, double weight, double most, double expansion, double doubt, /):
    cdef Py_buffer view
    cdef int64_t stop = at, expanded = 0
    cdef bint packed = False
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if 0 <= at < view.len:
            packed = stored_step(
                <const uint8_t *>view.buf, view.len, most, expansion, doubt, &stop, &weight, &expanded)
    finally:
        PyBuffer_Release(&view)
    return stop, weight, expanded, packed


def trim_stored(columns, /):
    cdef array.array column
    for column in (
        columns.offsets, columns.next_offsets, columns.indexes, columns.value_starts, columns.value_ends,
    ):
        if len(column) >= WORTH_TRIMMING and not COLUMN_IS_LENT(column):
            array.resize(column, len(column))


cdef bint can_count(int64_t start, int64_t end) noexcept:
    """Return whether all offsets of the data are int64."""
    return start >= 0 and start <= INT64_MAX - end


cdef class Rows:
    """The columns to fill, enlarged beyond their rows.

    Without `whole`, those are only the positions of values. With `indexed`, the indexes are filled, too.
    """

    cdef stored_columns to
    cdef bint whole, indexed
    cdef array.array offsets, next_offsets, indexes, value_starts, value_ends

    def __cinit__(self, columns, bint whole, bint indexed):
        self.whole = whole
        self.indexed = indexed
        self.offsets = columns.offsets
        self.next_offsets = columns.next_offsets
        self.indexes = columns.indexes
        self.value_starts = columns.value_starts
        self.value_ends = columns.value_ends
        self.to.rows = self.to.room = len(self.value_starts)
        check(self.value_starts, self.to.rows)
        check(self.value_ends, self.to.rows)
        if whole:
            check(self.offsets, self.to.rows)
            check(self.next_offsets, self.to.rows)
        if indexed:
            self.fill_indexes()

    cdef int fill_indexes(self) except -1:
        """Append the indexes of earlier messages, which are 0."""
        cdef Py_ssize_t length = len(self.indexes)
        if length > self.to.rows:
            raise ValueError(UNEQUAL)
        check(self.indexes, length)
        array.resize_smart(self.indexes, self.to.rows)
        memset(self.indexes.data.as_chars + length * sizeof(int64_t), 0, (self.to.rows - length) * sizeof(int64_t))
        return 0

    cdef int resize(self, Py_ssize_t rows) except -1:
        fit(self.value_starts, rows)
        fit(self.value_ends, rows)
        if self.whole:
            fit(self.offsets, rows)
            fit(self.next_offsets, rows)
        if self.indexed:
            fit(self.indexes, rows)
        return 0

    cdef int grow(self, int64_t count) except -1:
        """Enlarge the columns by `count` rows."""
        self.resize(self.to.room + count)
        self.to.room += count
        self.to.value_starts = <int64_t *>self.value_starts.data.as_voidptr
        self.to.value_ends = <int64_t *>self.value_ends.data.as_voidptr
        if self.whole:
            self.to.offsets = <int64_t *>self.offsets.data.as_voidptr
            self.to.next_offsets = <int64_t *>self.next_offsets.data.as_voidptr
        if self.indexed:
            self.to.indexes = <int64_t *>self.indexes.data.as_voidptr
        return 0

    cdef int close(self) except -1:
        """Cut the columns to their rows."""
        return self.resize(self.to.rows)


UNEQUAL = "columns of int64 and of one length are needed"


cdef int check(array.array column, Py_ssize_t rows) except -1:
    """Raise for a column that cannot be filled: of another type or length, or with an exported buffer."""
    if column.typecode != "q" or len(column) != rows:
        raise ValueError(UNEQUAL)
    if COLUMN_IS_LENT(column):
        raise BufferError("cannot resize a column that is exporting buffers")
    return 0


cdef int fit(array.array column, Py_ssize_t rows) except -1:
    """Resize a column to `rows`: exactly if it was empty, else with a reserve for further growth."""
    if len(column) == rows:
        return 0
    return array.resize_smart(column, rows) if len(column) else array.resize(column, rows)
