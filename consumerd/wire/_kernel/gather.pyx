# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Copying of spans into Arrow arrays, and the range of a column. Contract: ``consumerd.wire.kernel``.

Layouts: Arrow columnar format, "Variable-size Binary Layout" and "Validity bitmaps".
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset


def gather(buffer, const int64_t[::1] starts not None, const int64_t[::1] ends not None, allocate, /):
    cdef Py_ssize_t count = starts.shape[0]
    cdef const int64_t* first = &starts[0] if count else NULL
    cdef const int64_t* last = &ends[0] if ends.shape[0] else NULL
    cdef Py_buffer source
    cdef int64_t total
    cdef Py_ssize_t nulls = 0
    if ends.shape[0] != count or count >= INT32_MAX // 4:
        return None
    PyObject_GetBuffer(buffer, &source, PyBUF_SIMPLE)
    try:
        with nogil:
            total = _measure(first, last, count, source.len, &nulls)
        if total < 0:
            return None
        offsets = allocate(4 * (count + 1))
        data = allocate(total)
        validity = allocate((count + 7) // 8) if nulls else None
        _fill(<const uint8_t*> source.buf, first, last, count, total, offsets, data, validity)
    finally:
        PyBuffer_Release(&source)
    return offsets, data, validity, nulls


cdef int64_t _measure(
    const int64_t* starts, const int64_t* ends, Py_ssize_t count, int64_t limit, Py_ssize_t* nulls
) noexcept nogil:
    """Return the total size of the spans; -1 if one is invalid, or if the total exceeds an int32."""
    cdef Py_ssize_t row
    cdef int64_t total = 0
    for row in range(count):
        if starts[row] < 0:
            nulls[0] += 1
        elif ends[row] < starts[row] or ends[row] > limit:
            return -1
        else:
            total += ends[row] - starts[row]
            if total > INT32_MAX:
                return -1
    return total


cdef int _fill(
    const uint8_t* source, const int64_t* starts, const int64_t* ends, Py_ssize_t count, int64_t total, offsets, data, validity
) except -1:
    """Fill the allocated memory."""
    cdef Py_buffer places, target, bits
    PyObject_GetBuffer(offsets, &places, PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(data, &target, PyBUF_WRITABLE)
        try:
            if places.len < 4 * (count + 1) or target.len < total:
                raise ValueError("got less memory than was asked for")
            with nogil:
                _copy(source, starts, ends, count, <uint8_t*> places.buf, <uint8_t*> target.buf)
        finally:
            PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&places)
    if validity is not None:
        PyObject_GetBuffer(validity, &bits, PyBUF_WRITABLE)
        try:
            if bits.len < (count + 7) // 8:
                raise ValueError("got less memory than was asked for")
            with nogil:
                _mark(starts, count, <uint8_t*> bits.buf)
        finally:
            PyBuffer_Release(&bits)
    return 0


cdef void _copy(
    const uint8_t* source, const int64_t* starts, const int64_t* ends, Py_ssize_t count, uint8_t* offsets, uint8_t* target
) noexcept nogil:
    cdef Py_ssize_t row
    cdef int32_t at = 0
    cdef int64_t size
    for row in range(count):
        memcpy(offsets + 4 * row, &at, 4)
        if starts[row] >= 0:
            size = ends[row] - starts[row]
            if size:
                memcpy(target + at, source + starts[row], size)
                at += <int32_t> size
    memcpy(offsets + 4 * count, &at, 4)


cdef void _mark(const int64_t* starts, Py_ssize_t count, uint8_t* bits) noexcept nogil:
    """Set the bit of each row that is not null."""
    cdef Py_ssize_t row
    memset(bits, 0, (count + 7) // 8)
    for row in range(count):
        if starts[row] >= 0:
            bits[row >> 3] |= <uint8_t> (1 << (row & 7))


def extent(const int64_t[::1] column not None, int64_t missing, /):
    cdef Py_ssize_t row, count = column.shape[0], found = 0
    cdef int64_t low = 0, high = 0, value
    cdef const int64_t* values = &column[0] if count else NULL
    with nogil:
        for row in range(count):
            value = values[row]
            if value != missing:
                if not found:
                    low = high = value
                    found = 1
                elif value < low:
                    low = value
                elif value > high:
                    high = value
    return (low, high) if found else None
