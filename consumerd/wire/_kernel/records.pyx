# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Record batches, compressed wrapper messages, and headers of units. Contract: ``consumerd.wire.kernel``.

C code in ``records.h``, ``packed.h``, ``wrappers.h`` and ``heads.h`` reads the bytes. The functions here enlarge the
columns before, and cut them to the rows written after.
"""

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef extern from "records.h" nogil:
    enum:
        READ_ON
        READ_NEEDS_HEADERS
        READ_NEEDS_SEGMENTS
        READ_NEEDS_ROWS
        LEAST_RECORD

    ctypedef struct columns_t:
        int64_t *offsets
        int64_t *timestamps
        int64_t *key_starts
        int64_t *key_ends
        int64_t *value_starts
        int64_t *value_ends
        int64_t *header_starts
        int64_t *header_ends
        uint8_t *types
        int64_t rows
        int64_t capacity
        int64_t header_rows

    ctypedef struct place_t:
        int64_t position
        int64_t end
        int64_t start
        int transactional
        int left_out

    ctypedef struct segments_t:
        int64_t first
        int64_t delta
        int64_t over[512][2]
        int count

    ctypedef struct head_t:
        int64_t base_offset
        int64_t base_timestamp
        int64_t max_timestamp
        int32_t count
        int log_append_time

    const char *crc32c_choose()
    uint32_t crc32c_of(const uint8_t *data, size_t size)
    uint32_t crc32c_of_by_table(const uint8_t *data, size_t size)
    int64_t count_records(const uint8_t *data, int64_t at, int64_t size, place_t place)
    int read_run(const uint8_t *data, int64_t *at, int64_t size, int64_t shift, place_t *place, columns_t *to)
    int follows(const head_t *head, int32_t last_delta, int64_t size, const place_t *place)
    int c_read_block "read_block"(
        const uint8_t *data, int64_t at, int64_t end, const head_t *head, int64_t shift, place_t *place, columns_t *to)
    int c_read_records "read_records"(
        const uint8_t *data, int64_t *at, int64_t size, int64_t count, int64_t shift, int64_t base_timestamp,
        columns_t *to, segments_t *segments)

cdef extern from "varints.h" nogil:
    bint are_headers(const uint8_t *data, const uint8_t *at, const uint8_t *end)

cdef extern from "packed.h" nogil:
    int64_t count_packed(const uint8_t *data, int64_t at, int64_t size, int64_t room, place_t place)
    int read_packed_run(
        const uint8_t *data, int64_t *at, int64_t size, uint8_t *out, int64_t room, int64_t *used, int64_t shift,
        place_t *place, columns_t *to)

cdef extern from "wrappers.h" nogil:
    ctypedef struct wrapper_t:
        pass

    ctypedef struct wrapper_run_t:
        int64_t at
        int64_t used
        int64_t count
        int64_t wanted

    int crc32_setup()
    int read_wrapper_head(const uint8_t *data, int64_t at, int64_t size, wrapper_t *wrapper)
    int read_wrapper_run(
        const uint8_t *data, int64_t size, uint8_t *out, int64_t room, int64_t shift, wrapper_run_t *run,
        place_t *place, columns_t *to)

cdef extern from "columns.h":
    bint COLUMN_IS_LENT(array.array column)

cdef extern from "heads.h" nogil:
    void c_step_messages "step_messages"(
        const uint8_t *data, int64_t until, int64_t *at, int64_t *last, int64_t *before)
    void c_step_units "step_units"(
        const uint8_t *data, int64_t size, double most, double expansion, double doubt, int64_t *at, int64_t *last,
        double *weight, int64_t *expanded)


CRC32C = crc32c_choose().decode()
crc32_setup()

# Input size, in bytes, below which releasing the interpreter lock costs more than it saves.
cdef enum:
    WORTH_RELEASING = 1 << 16
    WORTH_RELEASING_PACKED = 1 << 13


# Length below which shrinking a column costs more than it saves.
cdef enum:
    WORTH_TRIMMING = 1 << 10


cdef class _Columns:
    """The arrays of a ColumnBuilder, enlarged beyond their rows while C code fills them.

    `whole` is whether offsets and types are filled too.
    """

    cdef columns_t to
    cdef array.array offsets, timestamps, key_starts, key_ends, value_starts, value_ends, header_starts, header_ends
    cdef bytearray types
    cdef bint whole

    def __init__(self, columns, bint whole):
        self.whole = whole
        self.offsets = columns.offsets
        self.timestamps = columns.timestamps
        self.key_starts = columns.key_starts
        self.key_ends = columns.key_ends
        self.value_starts = columns.value_starts
        self.value_ends = columns.value_ends
        self.header_starts = columns.header_starts
        self.header_ends = columns.header_ends
        self.types = columns.timestamp_types
        self.to.rows = self.to.capacity = len(self.timestamps)
        self.to.header_rows = len(self.header_starts)
        for column in (self.timestamps, self.key_starts, self.key_ends, self.value_starts, self.value_ends):
            check(column, self.to.rows)
        if whole:
            check(self.offsets, self.to.rows)
        check(self.header_starts, self.to.header_rows)
        check(self.header_ends, self.to.header_rows)
        if self.to.header_rows > self.to.rows or (whole and len(self.types) != self.to.rows):
            raise ValueError(UNEQUAL)

    cdef int widen(self, int64_t more) except -1:
        """Enlarge all columns by `more` rows. If that fails, none is enlarged."""
        cdef bint first = not self.to.rows
        self.to.capacity = self.to.rows + more
        try:
            self.fit(self.to.capacity, first)
            if self.to.header_rows:
                self.widen_headers()
        except BaseException:
            self.narrow()
            raise
        self.to.timestamps = <int64_t *>self.timestamps.data.as_voidptr
        self.to.key_starts = <int64_t *>self.key_starts.data.as_voidptr
        self.to.key_ends = <int64_t *>self.key_ends.data.as_voidptr
        self.to.value_starts = <int64_t *>self.value_starts.data.as_voidptr
        self.to.value_ends = <int64_t *>self.value_ends.data.as_voidptr
        if self.whole:
            self.to.offsets = <int64_t *>self.offsets.data.as_voidptr
            self.to.types = <uint8_t *>PyByteArray_AS_STRING(self.types)
        return 0

    cdef int widen_headers(self) except -1:
        """Enlarge the header columns to the capacity of the others."""
        fit(self.header_starts, self.to.capacity, False)
        fit(self.header_ends, self.to.capacity, False)
        self.to.header_starts = <int64_t *>self.header_starts.data.as_voidptr
        self.to.header_ends = <int64_t *>self.header_ends.data.as_voidptr
        return 0

    cdef int narrow(self) except -1:
        """Cut all columns to their rows."""
        self.fit(self.to.rows, False)
        fit(self.header_starts, self.to.header_rows, False)
        fit(self.header_ends, self.to.header_rows, False)
        return 0

    cdef int fit(self, int64_t rows, bint exactly) except -1:
        fit(self.timestamps, rows, exactly)
        fit(self.key_starts, rows, exactly)
        fit(self.key_ends, rows, exactly)
        fit(self.value_starts, rows, exactly)
        fit(self.value_ends, rows, exactly)
        if self.whole:
            fit(self.offsets, rows, exactly)
            PyByteArray_Resize(self.types, rows)
        return 0


UNEQUAL = "columns of int64 and of one length are needed"
LENT = "cannot resize a column that is exporting buffers"


cdef int check(array.array column, Py_ssize_t rows) except -1:
    """Raise for a column that cannot be filled: of another type or length, or with an exported buffer."""
    if column.ob_descr.itemsize != sizeof(int64_t) or len(column) != rows:
        raise ValueError(UNEQUAL)
    if COLUMN_IS_LENT(column):
        raise BufferError(LENT)
    return 0


cdef int fit(array.array column, Py_ssize_t rows, bint exactly) except -1:
    """Resize a column to `rows`, with a reserve for further growth unless `exactly`."""
    if len(column) == rows:
        return 0
    return array.resize(column, rows) if exactly else array.resize_smart(column, rows)


cdef int where(columns, place_t *place) except -1:
    """Copy the progress in offsets from the columns."""
    place.position = columns.position
    place.end = columns.end
    place.start = columns.start
    place.transactional = True
    place.left_out = False
    return 0


cdef int note(columns, const place_t *place) except -1:
    """Copy the progress back to the columns. There are no new gaps."""
    columns.position = place.position
    columns.end = place.end
    columns.unattested = None
    if place.left_out:
        columns.left_out = True
    return 0


def crc32c(data, Py_ssize_t begin=0, end=None, /):
    cdef Py_buffer view
    cdef Py_ssize_t stop
    cdef uint32_t checksum
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        stop = view.len if end is None else min(max(<Py_ssize_t>end, 0), view.len)
        begin = min(max(begin, 0), stop)
        if stop - begin < WORTH_RELEASING:
            checksum = crc32c_of(<const uint8_t *>view.buf + begin, stop - begin)
        else:
            with nogil:
                checksum = crc32c_of(<const uint8_t *>view.buf + begin, stop - begin)
    finally:
        PyBuffer_Release(&view)
    return checksum


def crc32c_by_table(data, /):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return crc32c_of_by_table(<const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def read_batches(data, Py_ssize_t at, Py_ssize_t end, int64_t shift, columns, bint transactional, /):
    cdef Py_buffer view
    cdef place_t place
    cdef _Columns to
    cdef int64_t count, stop = at
    cdef bint releases
    cdef int how
    where(columns, &place)
    place.transactional = transactional
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        end = min(end, view.len)
        if at < 0 or at >= end:
            return at
        count = count_records(<const uint8_t *>view.buf, at, end, place)
        if count == 0:
            return at
        releases = end - at >= WORTH_RELEASING
        to = _Columns(columns, True)
        to.widen(count)
        try:
            while True:
                if releases:
                    with nogil:
                        how = read_run(<const uint8_t *>view.buf, &stop, end, shift, &place, &to.to)
                else:
                    how = read_run(<const uint8_t *>view.buf, &stop, end, shift, &place, &to.to)
                if how != READ_NEEDS_HEADERS:
                    break
                to.widen_headers()
        finally:
            to.narrow()
    finally:
        PyBuffer_Release(&view)
    if stop > at:
        note(columns, &place)
    return stop


def read_packed(data, Py_ssize_t at, Py_ssize_t end, columns, Py_ssize_t limit, bint transactional, /):
    cdef Py_buffer view
    cdef place_t place
    cdef int64_t shift
    where(columns, &place)
    place.transactional = transactional
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        end = min(end, view.len)
        if at < 0 or at >= end or not count_packed(<const uint8_t *>view.buf, at, end, PY_SSIZE_T_MAX, place):
            return at
        room, shift = columns.peek_room(at)
        limit -= columns.decompressed_bytes
        if room is None or limit <= 0:
            return at
        return unpack_into(room[:limit], shift, &view, at, end, columns, &place)
    finally:
        PyBuffer_Release(&view)


cdef unpack_into(room, int64_t shift, Py_buffer *view, Py_ssize_t at, Py_ssize_t end, columns, place_t *place):
    """Read compressed batches into the room and commit them; returns the position after them."""
    cdef Py_buffer target
    cdef _Columns to
    cdef int64_t count, stop = at, used = 0
    cdef bint releases = end - at >= WORTH_RELEASING_PACKED
    cdef int how
    PyObject_GetBuffer(room, &target, PyBUF_WRITABLE)
    try:
        count = count_packed(<const uint8_t *>view.buf, at, end, target.len, place[0])
        if count == 0:
            return at
        to = _Columns(columns, True)
        to.widen(count)
        try:
            while True:
                if releases:
                    with nogil:
                        how = read_packed_run(
                            <const uint8_t *>view.buf, &stop, end, <uint8_t *>target.buf, target.len, &used, shift,
                            place, &to.to)
                else:
                    how = read_packed_run(
                        <const uint8_t *>view.buf, &stop, end, <uint8_t *>target.buf, target.len, &used, shift, place,
                        &to.to)
                if how != READ_NEEDS_HEADERS:
                    break
                to.widen_headers()
        finally:
            to.narrow()
    finally:
        PyBuffer_Release(&target)
    if stop > at:
        columns.add_block(at, room[:used])
        note(columns, place)
    return stop


def read_wrappers(data, Py_ssize_t at, Py_ssize_t end, columns, Py_ssize_t limit, /):
    cdef Py_buffer view
    cdef wrapper_t wrapper
    cdef int64_t shift
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        end = min(end, view.len)
        if at < 0 or at >= end or not read_wrapper_head(<const uint8_t *>view.buf, at, end, &wrapper):
            return at
        room, shift = columns.peek_room(at)
        limit -= columns.decompressed_bytes
        if room is None or limit <= 0:
            return at
        return unwrap_into(room[:limit], shift, &view, at, end, columns)
    finally:
        PyBuffer_Release(&view)


cdef unwrap_into(room, int64_t shift, Py_buffer *view, Py_ssize_t at, Py_ssize_t end, columns):
    """Read wrappers into the room and commit them; returns the position after them."""
    cdef Py_buffer target
    cdef place_t place
    cdef wrapper_run_t run
    cdef _Columns to = _Columns(columns, True)
    cdef bint releases = end - at >= WORTH_RELEASING_PACKED
    cdef int how
    where(columns, &place)
    run.at = at
    run.used = run.count = 0
    PyObject_GetBuffer(room, &target, PyBUF_WRITABLE)
    try:
        try:
            while True:
                if releases:
                    with nogil:
                        how = read_wrapper_run(
                            <const uint8_t *>view.buf, end, <uint8_t *>target.buf, target.len, shift, &run, &place,
                            &to.to)
                else:
                    how = read_wrapper_run(
                        <const uint8_t *>view.buf, end, <uint8_t *>target.buf, target.len, shift, &run, &place, &to.to)
                if how != READ_NEEDS_ROWS:
                    break
                to.widen(run.wanted)
        finally:
            to.narrow()
    finally:
        PyBuffer_Release(&target)
    if run.at > at:
        columns.add_block(at, room[:run.used])
        note(columns, &place)
    return run.at


def read_block(
    data, Py_ssize_t at, Py_ssize_t end, int64_t shift, columns, int64_t base_offset, int32_t last_delta, int32_t count,
    int64_t base_timestamp, int64_t max_timestamp, bint log_append_time, /,
):
    cdef Py_buffer view
    cdef head_t head
    cdef place_t place
    cdef _Columns to
    cdef bint releases
    cdef int how
    head.base_offset = base_offset
    head.count = count
    head.base_timestamp = base_timestamp
    head.max_timestamp = max_timestamp
    head.log_append_time = log_append_time
    where(columns, &place)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        end = min(end, view.len)
        if at < 0 or at >= end or not follows(&head, last_delta, end - at, &place):
            return False
        releases = end - at >= WORTH_RELEASING
        to = _Columns(columns, True)
        to.widen(count)
        try:
            while True:
                if releases:
                    with nogil:
                        how = c_read_block(<const uint8_t *>view.buf, at, end, &head, shift, &place, &to.to)
                else:
                    how = c_read_block(<const uint8_t *>view.buf, at, end, &head, shift, &place, &to.to)
                if how != READ_NEEDS_HEADERS:
                    break
                to.widen_headers()
        finally:
            to.narrow()
    finally:
        PyBuffer_Release(&view)
    if how == READ_ON:
        note(columns, &place)
    return how == READ_ON


def read_records(
    data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count, int64_t shift, int64_t base_timestamp, columns,
    list segments, int64_t first, int64_t delta, /,
):
    cdef Py_buffer view
    cdef segments_t found
    cdef _Columns to
    cdef int64_t stop = at, rows
    cdef int each, how
    cdef bint releases
    found.first = first
    found.delta = delta
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        end = min(end, view.len)
        if at < 0 or at >= end or count <= 0:
            return 0, at, first, delta
        count = min(count, (end - at) // LEAST_RECORD)
        releases = end - at >= WORTH_RELEASING
        to = _Columns(columns, False)
        rows = to.to.rows
        to.widen(count)
        try:
            while True:
                found.count = 0
                if releases:
                    with nogil:
                        how = c_read_records(
                            <const uint8_t *>view.buf, &stop, end, rows + count - to.to.rows, shift, base_timestamp,
                            &to.to, &found)
                else:
                    how = c_read_records(
                        <const uint8_t *>view.buf, &stop, end, rows + count - to.to.rows, shift, base_timestamp,
                        &to.to, &found)
                for each in range(found.count):
                    segments.append((found.over[each][0], found.over[each][1]))
                if how == READ_NEEDS_HEADERS:
                    to.widen_headers()
                elif how != READ_NEEDS_SEGMENTS:
                    break
        finally:
            to.narrow()
        return to.to.rows - rows, stop, found.first, found.delta
    finally:
        PyBuffer_Release(&view)


def find_unreadable(data, const int64_t[::1] starts not None, const int64_t[::1] ends not None, /):
    cdef Py_ssize_t row = 0, count = starts.shape[0]
    cdef int64_t start, end
    cdef const uint8_t *head
    cdef Py_buffer view
    if ends.shape[0] != count:
        return None
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        head = <const uint8_t *> view.buf
        with nogil:
            while row < count:
                start, end = starts[row], ends[row]
                if start >= 0 and not (start <= end <= view.len and are_headers(head, head + start, head + end)):
                    break
                row += 1
    finally:
        PyBuffer_Release(&view)
    return row


def step_messages(data, Py_ssize_t at, Py_ssize_t until, /):
    cdef Py_buffer view
    cdef int64_t stop = at, last = at, before = at
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if at >= 0:
            c_step_messages(<const uint8_t *>view.buf, min(until, view.len - 12), &stop, &last, &before)
        return (stop, last) if stop <= view.len else (last, before)
    finally:
        PyBuffer_Release(&view)


def step_units(data, Py_ssize_t at, double weight, double most, double expansion, double doubt, /):
    cdef Py_buffer view
    cdef int64_t stop = at, last = at, expanded = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if at >= 0:
            c_step_units(
                <const uint8_t *>view.buf, view.len, most, expansion, doubt, &stop, &last, &weight, &expanded)
        return stop, last, weight, expanded
    finally:
        PyBuffer_Release(&view)


def extend_steps(array.array column, int64_t first, int64_t step, Py_ssize_t count, /):
    cdef Py_ssize_t length = len(column), row
    cdef int64_t *to
    if count <= 0:
        return
    check(column, length)
    fit(column, length + count, not length)
    to = <int64_t *>column.data.as_voidptr + length
    for row in range(count):
        to[row] = first + row * step


def trim(columns, /):
    cdef array.array column
    for column in (
        columns.offsets, columns.timestamps, columns.key_starts, columns.key_ends, columns.value_starts,
        columns.value_ends, columns.header_starts, columns.header_ends,
    ):
        if len(column) >= WORTH_TRIMMING and not COLUMN_IS_LENT(column):
            array.resize(column, len(column))
