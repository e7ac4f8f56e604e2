# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Encoding of records as JSON lines. Contract: ``consumerd.wire.kernel``; format: ``consumerd.sinks.lines``."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.string cimport memcpy


cdef extern from "Python.h":
    PyObject* PyBytes_FromStringAndSize(const char* text, Py_ssize_t size) except NULL
    int _PyBytes_Resize(PyObject** text, Py_ssize_t size) except -1
    char* PyBytes_AS_STRING(PyObject* text) nogil


cdef extern from "lines.h" nogil:
    const int64_t LINES_SLACK
    const int LINES_UNKNOWN
    uint8_t* lines_number(uint8_t* out, int64_t value)
    uint8_t* lines_field(
        uint8_t* out,
        const char* name,
        size_t name_length,
        const uint8_t* buffer,
        int64_t limit,
        int64_t start,
        int64_t end,
        int kind,
    )
    int64_t lines_field_most(int64_t start, int64_t end)
    int64_t lines_field_size(const uint8_t* buffer, int64_t start, int64_t end, int* kind)


cdef struct Span:
    int64_t start
    int64_t end
    int kind


cdef struct Rows:
    const uint8_t* buffer
    int64_t limit
    const uint8_t* head
    int64_t head_length
    const int64_t* offsets
    const int64_t* next_offsets
    const int64_t* indexes
    const int64_t* timestamps
    const int64_t* key_starts
    const int64_t* key_ends
    const int64_t* value_starts
    const int64_t* value_ends
    const uint8_t* headers
    int64_t headers_length
    const int64_t* header_bounds
    Py_ssize_t count


cdef enum:
    FRAME = 192  # rest of a line, at most: names, four numbers of 20 characters, "null", "[]" and punctuation
    NO_TIMESTAMP = -1


def encode_lines(buffer, const uint8_t[::1] head not None, columns, keys, values, headers, Py_ssize_t row, int64_t enough, /):
    cdef const int64_t[::1] offsets = columns[0]
    cdef const int64_t[::1] next_offsets = columns[1]
    cdef const int64_t[::1] indexes = columns[2]
    cdef const int64_t[::1] timestamps = columns[3]
    cdef const int64_t[::1] key_starts = keys[0]
    cdef const int64_t[::1] key_ends = keys[1]
    cdef const int64_t[::1] value_starts = values[0]
    cdef const int64_t[::1] value_ends = values[1]
    cdef const uint8_t[::1] header_texts = None
    cdef const int64_t[::1] header_bounds = None
    cdef Py_ssize_t count = offsets.shape[0]
    cdef Py_buffer source
    cdef Rows rows
    if not 0 <= row < count or not 0 < enough <= INT64_MAX // 4:
        return None
    if not timestamps.shape[0] == key_starts.shape[0] == key_ends.shape[0] == count:
        return None
    if not value_starts.shape[0] == value_ends.shape[0] == count:
        return None
    if next_offsets is not None and next_offsets.shape[0] != count:
        return None
    if indexes is not None and indexes.shape[0] != count:
        return None
    if headers is not None:
        header_texts, header_bounds = headers
        if header_bounds.shape[0] != count + 1:
            return None
    PyObject_GetBuffer(buffer, &source, PyBUF_SIMPLE)
    try:
        rows.buffer = <const uint8_t*> source.buf
        rows.limit = source.len
        rows.head = &head[0] if head.shape[0] else NULL
        rows.head_length = head.shape[0]
        rows.offsets = &offsets[0]
        rows.next_offsets = &next_offsets[0] if next_offsets is not None else NULL
        rows.indexes = &indexes[0] if indexes is not None else NULL
        rows.timestamps = &timestamps[0]
        rows.key_starts = &key_starts[0]
        rows.key_ends = &key_ends[0]
        rows.value_starts = &value_starts[0]
        rows.value_ends = &value_ends[0]
        rows.headers = &header_texts[0] if header_texts is not None and header_texts.shape[0] else NULL
        rows.headers_length = header_texts.shape[0] if header_texts is not None else 0
        rows.header_bounds = &header_bounds[0] if header_bounds is not None else NULL
        rows.count = count
        return _encode(&rows, row, enough)
    finally:
        PyBuffer_Release(&source)


cdef _encode(const Rows* rows, Py_ssize_t row, int64_t enough):
    cdef int64_t capacity, written = 0
    cdef Py_ssize_t stop
    cdef PyObject* text
    with nogil:
        capacity = _room(rows, row, 2 * enough)
    if capacity < 0:
        return None
    text = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> (capacity + LINES_SLACK))
    with nogil:
        stop = _write(rows, row, enough, <uint8_t*> PyBytes_AS_STRING(text), capacity, &written)
    _PyBytes_Resize(&text, <Py_ssize_t> written)
    result = <object> text
    Py_DECREF(result)
    return result, stop


cdef inline bint _is_within(int64_t start, int64_t end, int64_t limit) noexcept nogil:
    return start < 0 or start <= end <= limit


cdef bint _find_spans(const Rows* rows, Py_ssize_t row, Span* key, Span* value, Span* header) noexcept nogil:
    """Look up the spans of a row; returns whether they are valid, and its next offset is an int64."""
    key.start = rows.key_starts[row]
    key.end = rows.key_ends[row]
    value.start = rows.value_starts[row]
    value.end = rows.value_ends[row]
    key.kind = value.kind = header.kind = LINES_UNKNOWN
    header.start = header.end = 0
    if rows.header_bounds != NULL:
        header.start = rows.header_bounds[row]
        header.end = rows.header_bounds[row + 1]
    return (
        _is_within(key.start, key.end, rows.limit)
        and _is_within(value.start, value.end, rows.limit)
        and 0 <= header.start <= header.end <= rows.headers_length
        and (rows.next_offsets != NULL or rows.offsets[row] != INT64_MAX)
    )


cdef inline int64_t _most(const Rows* rows, const Span* key, const Span* value, const Span* header) noexcept nogil:
    """Return an upper bound of a line's size, from the lengths of the fields alone."""
    return (
        FRAME + rows.head_length + (header.end - header.start)
        + lines_field_most(key.start, key.end) + lines_field_most(value.start, value.end)
    )


cdef int64_t _measure(const Rows* rows, Span* key, Span* value, const Span* header) noexcept nogil:
    """Return a tight upper bound of a line's size, from the contents of the fields; also sets their kinds."""
    return (
        FRAME + rows.head_length + (header.end - header.start)
        + lines_field_size(rows.buffer, key.start, key.end, &key.kind)
        + lines_field_size(rows.buffer, value.start, value.end, &value.kind)
    )


cdef int64_t _room(const Rows* rows, Py_ssize_t row, int64_t enough) noexcept nogil:
    """Return the size to allocate: for all rows if that is at most ``enough``, but at least for the first row.

    -1 if the first row is invalid.
    """
    cdef Span key, value, header
    cdef Py_ssize_t each
    cdef int64_t room = 0, first = 0
    for each in range(row, rows.count):
        if not _find_spans(rows, each, &key, &value, &header):
            if each == row:
                return -1
            break
        room += _most(rows, &key, &value, &header)
        if each == row and room > enough:
            first = _measure(rows, &key, &value, &header)
        if room > enough:
            return max(first, enough)
    return room


cdef Py_ssize_t _write(
    const Rows* rows, Py_ssize_t row, int64_t enough, uint8_t* out, int64_t capacity, int64_t* written
) noexcept nogil:
    """Write lines until there are ``enough`` bytes, no capacity or no rows; returns the row after them."""
    cdef Span key, value, header
    cdef uint8_t* at = out
    while row < rows.count and at - out < enough:
        if not _find_spans(rows, row, &key, &value, &header):
            break
        if _most(rows, &key, &value, &header) > capacity - (at - out):
            if _measure(rows, &key, &value, &header) > capacity - (at - out):
                break
        at = _write_line(rows, row, at, &key, &value, &header)
        row += 1
    written[0] = at - out
    return row


cdef inline uint8_t* _put(uint8_t* at, const void* text, size_t length) noexcept nogil:
    memcpy(at, text, length)
    return at + length


cdef uint8_t* _write_line(
    const Rows* rows, Py_ssize_t row, uint8_t* at, const Span* key, const Span* value, const Span* header
) noexcept nogil:
    if rows.head_length:
        at = _put(at, rows.head, <size_t> rows.head_length)
    at = lines_number(at, rows.offsets[row])
    at = _put(at, b',"next_offset":', 15)
    at = lines_number(at, rows.next_offsets[row] if rows.next_offsets != NULL else rows.offsets[row] + 1)
    at = _put(at, b',"index":', 9)
    at = lines_number(at, rows.indexes[row] if rows.indexes != NULL else 0)
    at = _put(at, b',"timestamp":', 13)
    if rows.timestamps[row] == NO_TIMESTAMP:
        at = _put(at, b"null", 4)
    else:
        at = lines_number(at, rows.timestamps[row])
    at = _put(at, b',"headers":', 11)
    if rows.header_bounds == NULL:
        at = _put(at, b"[]", 2)
    elif header.end > header.start:
        at = _put(at, rows.headers + header.start, <size_t> (header.end - header.start))
    at = _put(at, b",", 1)
    at = lines_field(at, b"key", 3, rows.buffer, rows.limit, key.start, key.end, key.kind)
    at = _put(at, b",", 1)
    at = lines_field(at, b"value", 5, rows.buffer, rows.limit, value.start, value.end, value.kind)
    return _put(at, b"}\n", 2)
