# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The null sink's checksum of records, without a Python object per record. Contract: ``consumerd.wire.kernel``.

Short fields are copied together first, since one CRC over many bytes is several times as fast as many over 100 bytes.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include "crc32.h"

    /* Continue a CRC-32, as zlib's crc32 does. */
    static inline uint32_t fold_crc32(uint32_t crc, const uint8_t *data, size_t size) {
    #ifdef CRC32_FOLDS
        if (crc32_folds && size >= 16)
            return ~crc32_fold_all(~crc, data, size);
    #endif
        return ~crc32_slice(~crc, data, size);
    }

    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define FOLD_LITTLE_ENDIAN 1
    #else
    #define FOLD_LITTLE_ENDIAN 0
    #endif
    """
    int crc32_setup() nogil
    uint32_t fold_crc32(uint32_t crc, const uint8_t* data, size_t size) nogil
    int FOLD_LITTLE_ENDIAN

cdef enum:
    GATHER_BYTES = 1 << 14  # buffer for short fields; fits into the first-level cache
    LONG_BYTES = 1 << 10  # fields from this size on are not copied
    LENGTHS = 512  # buffer for lengths, in entries

crc32_setup()


cdef bint fold_spans(
    const uint8_t* data, int64_t size, const int64_t* starts, const int64_t* ends, Py_ssize_t count, uint32_t* streams
) noexcept nogil:
    """Add lengths to the first stream and bytes to the second; False if a span lies outside of the buffer."""
    cdef uint8_t gathered[GATHER_BYTES]
    cdef int64_t lengths[LENGTHS]
    cdef uint32_t of_lengths = streams[0], of_bytes = streams[1]
    cdef int64_t start, end, length
    cdef Py_ssize_t row, filled = 0, known = 0
    for row in range(count):
        start = starts[row]
        end = ends[row]
        if start < 0:
            if end >= 0:
                return False
            length = -1
        else:
            if end < start or end > size:
                return False
            length = end - start
            if length >= LONG_BYTES:
                of_bytes = fold_crc32(of_bytes, gathered, <size_t>filled)
                filled = 0
                of_bytes = fold_crc32(of_bytes, data + start, <size_t>length)
            else:
                if length > GATHER_BYTES - filled:
                    of_bytes = fold_crc32(of_bytes, gathered, <size_t>filled)
                    filled = 0
                memcpy(gathered + filled, data + start, <size_t>length)
                filled += length
        lengths[known] = length
        known += 1
        if known == LENGTHS:
            of_lengths = fold_crc32(of_lengths, <const uint8_t*>lengths, sizeof(lengths))
            known = 0
    streams[0] = fold_crc32(of_lengths, <const uint8_t*>lengths, <size_t>known * sizeof(int64_t))
    streams[1] = fold_crc32(of_bytes, gathered, <size_t>filled)
    return True


def fold(
    const uint8_t[::1] buffer not None,
    const int64_t[::1] offsets not None,
    const int64_t[::1] key_starts not None,
    const int64_t[::1] key_ends not None,
    const int64_t[::1] value_starts not None,
    const int64_t[::1] value_ends not None,
    list streams not None,
    /,
):
    """Return the five streams with these records added, or None. See the contract."""
    cdef Py_ssize_t count = offsets.shape[0]
    cdef uint32_t crcs[5]
    cdef bint plain
    if not FOLD_LITTLE_ENDIAN or len(streams) != 5:
        return None
    if not key_starts.shape[0] == key_ends.shape[0] == value_starts.shape[0] == value_ends.shape[0] == count:
        return None
    for index in range(5):
        crcs[index] = streams[index]
    if count:
        with nogil:
            crcs[0] = fold_crc32(crcs[0], <const uint8_t*>&offsets[0], <size_t>count * sizeof(int64_t))
            plain = fold_spans(&buffer[0], buffer.shape[0], &key_starts[0], &key_ends[0], count, &crcs[1]) and fold_spans(
                &buffer[0], buffer.shape[0], &value_starts[0], &value_ends[0], count, &crcs[3]
            )
        if not plain:
            return None
    return [crcs[0], crcs[1], crcs[2], crcs[3], crcs[4]]
