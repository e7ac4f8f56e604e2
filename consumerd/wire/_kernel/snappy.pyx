# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Decompression of snappy, one whole message at a time. Contract: ``consumerd.wire.kernel``."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t

cdef extern from "snappy.h" nogil:
    int64_t snappy_size(const uint8_t *data, int64_t size)
    int64_t snappy_decompress(const uint8_t *data, int64_t size, uint8_t *out, int64_t room)

cdef enum:
    # Output size below which releasing the interpreter lock costs more than it saves.
    UNLOCKED_BYTES = 16384


def size(data, /):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return snappy_size(<const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def decompress(data, Py_ssize_t limit, /):
    cdef Py_buffer view
    cdef bytes out
    cdef int64_t size
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        size = snappy_size(<const uint8_t *>view.buf, view.len)
        if size < 0 or size > limit:
            return None
        out = PyBytes_FromStringAndSize(NULL, size)
        size = fill(&view, <uint8_t *>PyBytes_AS_STRING(out), size)
        return out if size == len(out) else None
    finally:
        PyBuffer_Release(&view)


def decompress_into(data, room, /):
    cdef Py_buffer view, target
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(room, &target, PyBUF_WRITABLE)
        try:
            return fill(&view, <uint8_t *>target.buf, target.len)
        finally:
            PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&view)


cdef int64_t fill(Py_buffer *data, uint8_t *out, int64_t room):
    cdef int64_t size
    if room < UNLOCKED_BYTES:
        return snappy_decompress(<const uint8_t *>data.buf, data.len, out, room)
    with nogil:
        size = snappy_decompress(<const uint8_t *>data.buf, data.len, out, room)
    return size
