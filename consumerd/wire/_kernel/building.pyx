# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Encoding of records of magic 2. Contract: ``consumerd.wire.kernel``. C code in ``building.h`` writes the bytes."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport INT32_MAX, INT64_MIN, int64_t, uint8_t


cdef extern from "building.h" nogil:
    enum:
        MOST_FRAME
        UNENCODABLE

    ctypedef struct new_record_t:
        const uint8_t *key
        const uint8_t *value
        const uint8_t *headers
        int64_t key_size
        int64_t value_size
        int64_t headers_size
        int64_t timestamp_delta
        int64_t offset_delta

    ctypedef struct rows_t:
        const uint8_t *buffer
        int64_t size
        const int64_t *timestamps
        const int64_t *key_starts
        const int64_t *key_ends
        const int64_t *value_starts
        const int64_t *value_ends
        const int64_t *header_starts
        const int64_t *header_ends
        int64_t base_row
        int64_t base_timestamp

    const uint8_t no_headers[1]
    bint differs_too_much(int64_t one, int64_t other)
    int64_t body_size(const new_record_t *record)
    uint8_t *put_record(uint8_t *out, const new_record_t *record, int64_t body)
    int64_t measure_rows(
        const rows_t *rows, int64_t first, int64_t end, int64_t most, int64_t *size, int64_t *max_timestamp)
    int write_rows(const rows_t *rows, int64_t first, int64_t end, uint8_t *out, int64_t size)


# Output size, in bytes, below which releasing the interpreter lock costs more than it saves.
cdef enum:
    WORTH_RELEASING = 1 << 15
    FIRST_CAPACITY = 1 << 14


cdef class _Output:
    """Growing memory for encoded records."""

    cdef uint8_t *data
    cdef int64_t size, capacity

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef int reserve(self, int64_t more) except -1:
        """Make room for `more` bytes after the present ones."""
        cdef int64_t capacity
        cdef void *data
        if more <= self.capacity - self.size:
            return 0
        capacity = max(self.size + more, 2 * self.capacity, <int64_t> FIRST_CAPACITY)
        data = PyMem_Realloc(self.data, <size_t> capacity)
        if data == NULL:
            raise MemoryError
        self.data = <uint8_t *> data
        self.capacity = capacity
        return 0


cdef inline bint find_bytes(object content, const uint8_t **data, int64_t *size) noexcept:
    """Point to a key or value; returns whether it is bytes or None."""
    if content is None:
        data[0] = NULL
        size[0] = -1
        return True
    if type(content) is not bytes:
        return False
    data[0] = <const uint8_t *> PyBytes_AS_STRING(content)
    size[0] = PyBytes_GET_SIZE(content)
    return size[0] <= INT32_MAX


def encode_records(records, encode_headers, /):
    cdef _Output out = _Output()
    cdef new_record_t one
    cdef int64_t timestamp, base_timestamp = 0, max_timestamp = INT64_MIN, count = 0, body
    cdef int overflow
    cdef uint8_t *end
    for record in records:
        key, value, headers, time = record.key, record.value, record.headers, record.timestamp
        if not find_bytes(key, &one.key, &one.key_size) or not find_bytes(value, &one.value, &one.value_size):
            return None
        one.headers, one.headers_size = no_headers, 1
        if headers:
            encoded = encode_headers(headers)
            if not find_bytes(encoded, &one.headers, &one.headers_size) or encoded is None:
                return None
        if type(time) is not int:
            return None
        timestamp = PyLong_AsLongLongAndOverflow(time, &overflow)
        if count == 0:
            base_timestamp = timestamp
        if overflow or differs_too_much(timestamp, base_timestamp):
            return None
        max_timestamp = max(max_timestamp, timestamp)
        one.timestamp_delta = timestamp - base_timestamp
        one.offset_delta = count
        body = body_size(&one)
        if body > INT32_MAX or count == INT32_MAX:
            return None
        out.reserve(body + MOST_FRAME)
        end = put_record(out.data + out.size, &one, body)
        out.size = end - out.data
        count += 1
    if count == 0:
        return None
    return PyBytes_FromStringAndSize(<char *> out.data, <Py_ssize_t> out.size), base_timestamp, max_timestamp


def encode_rows(
    buffer, columns, headers, Py_ssize_t row, Py_ssize_t end, int64_t first_delta, int64_t base_timestamp, int64_t most, /
):
    cdef const int64_t[::1] timestamps = columns[0]
    cdef const int64_t[::1] key_starts = columns[1]
    cdef const int64_t[::1] key_ends = columns[2]
    cdef const int64_t[::1] value_starts = columns[3]
    cdef const int64_t[::1] value_ends = columns[4]
    cdef const int64_t[::1] header_starts = None
    cdef const int64_t[::1] header_ends = None
    cdef Py_buffer source
    cdef rows_t rows
    cdef int64_t size, max_timestamp, stop
    cdef int filled
    if not 0 <= row < end or not 0 <= first_delta <= INT32_MAX:
        return None
    if min(timestamps.shape[0], key_starts.shape[0], key_ends.shape[0], value_starts.shape[0], value_ends.shape[0]) < end:
        return None
    rows.header_starts = rows.header_ends = NULL
    if headers is not None:
        header_starts, header_ends = headers
        if min(header_starts.shape[0], header_ends.shape[0]) < end:
            return None
        rows.header_starts = &header_starts[0]
        rows.header_ends = &header_ends[0]
    rows.base_row = row - first_delta
    rows.base_timestamp = base_timestamp
    rows.timestamps = &timestamps[0]
    rows.key_starts = &key_starts[0]
    rows.key_ends = &key_ends[0]
    rows.value_starts = &value_starts[0]
    rows.value_ends = &value_ends[0]
    PyObject_GetBuffer(buffer, &source, PyBUF_SIMPLE)
    try:
        rows.buffer = <const uint8_t *> source.buf
        rows.size = source.len
        with nogil:
            stop = measure_rows(&rows, row, end, max(most, 0), &size, &max_timestamp)
        if stop == UNENCODABLE:
            return None
        encoded = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> size)
        filled = fill(&rows, row, stop, <uint8_t *> PyBytes_AS_STRING(encoded), size)
    finally:
        PyBuffer_Release(&source)
    return (encoded, stop, max_timestamp) if filled else None


cdef int fill(const rows_t *rows, int64_t row, int64_t stop, uint8_t *out, int64_t size) noexcept:
    cdef int filled
    if size < WORTH_RELEASING:
        return write_rows(rows, row, stop, out, size)
    with nogil:
        filled = write_rows(rows, row, stop, out, size)
    return filled
