# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Decompression of LZ4, one whole frame at a time. Contract: ``consumerd.wire.kernel``."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t

cdef extern from "lz4.h" nogil:
    int64_t lz4_most(const uint8_t *data, int64_t size, int any_checksum)
    int64_t lz4_decompress(const uint8_t *data, int64_t size, int any_checksum, uint8_t *out, int64_t room)
    uint32_t xxh32_of(const uint8_t *data, int64_t size)

cdef enum:
    # Output size below which releasing the interpreter lock costs more than it saves.
    UNLOCKED_BYTES = 16384


def xxh32(data, /):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return xxh32_of(<const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def decompress(data, Py_ssize_t limit, bint any_checksum, /):
    cdef Py_buffer view
    cdef bytes out
    cdef int64_t size
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        size = min(lz4_most(<const uint8_t *>view.buf, view.len, any_checksum), limit)
        if size < 0:
            return None
        out = PyBytes_FromStringAndSize(NULL, size)
        size = fill(&view, any_checksum, <uint8_t *>PyBytes_AS_STRING(out), size)
        if size < 0:
            return None
        return out if size == len(out) else out[:size]
    finally:
        PyBuffer_Release(&view)


def decompress_into(data, room, bint any_checksum, /):
    cdef Py_buffer view, target
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(room, &target, PyBUF_WRITABLE)
        try:
            return fill(&view, any_checksum, <uint8_t *>target.buf, target.len)
        finally:
            PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&view)


cdef int64_t fill(Py_buffer *data, bint any_checksum, uint8_t *out, int64_t room):
    cdef int64_t size
    if room < UNLOCKED_BYTES:
        return lz4_decompress(<const uint8_t *>data.buf, data.len, any_checksum, out, room)
    with nogil:
        size = lz4_decompress(<const uint8_t *>data.buf, data.len, any_checksum, out, room)
    return size
