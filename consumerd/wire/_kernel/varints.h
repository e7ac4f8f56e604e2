// SPDX-License-Identifier: Apache-2.0
/* Varints of records of magic 2, and what they delimit: keys, values and headers.
 *
 * Numbers are zigzag encoded, 7 bits a byte, lowest bits first. Source: Kafka's ByteUtils and DefaultRecord (KIP-98).
 */
#ifndef CONSUMERD_VARINTS_H
#define CONSUMERD_VARINTS_H

#include <stddef.h>
#include <stdint.h>

#include "fields.h"

#define NULL_SPAN (-1)

/* Read a varint of at most `most` bytes and `bits` bits; returns the position after it, or NULL if it is malformed. */
static const uint8_t *read_long_number(const uint8_t *at, const uint8_t *end, int most, int bits, uint64_t *number) {
    uint64_t value = 0;
    int shift = 0;
    if (end - at > most)
        end = at + most;
    while (at < end) {
        uint8_t byte = *at++;
        if (shift == 63 && byte > 1)
            return NULL;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            if (bits < 64 && value >> bits)
                return NULL;
            *number = value;
            return at;
        }
        shift += 7;
    }
    return NULL;
}

/* The same, optimized for varints of one or two bytes. */
ALWAYS_INLINE const uint8_t *read_number(const uint8_t *at, const uint8_t *end, int most, int bits, uint64_t *number) {
    if (LIKELY(end - at >= 2)) {
        uint32_t low = at[0], high = at[1];
        if (low < 0x80) {
            *number = low;
            return at + 1;
        }
        if (LIKELY(high < 0x80)) {
            *number = (low & 0x7F) | high << 7;
            return at + 2;
        }
    }
    return read_long_number(at, end, most, bits, number);
}

ALWAYS_INLINE int64_t unzigzag(uint64_t number) {
    return (int64_t)(number >> 1 ^ (0 - (number & 1)));
}

ALWAYS_INLINE const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, int32_t *value) {
    uint64_t number;
    at = read_number(at, end, 5, 32, &number);
    if (LIKELY(at != NULL))
        *value = (int32_t)unzigzag(number);
    return at;
}

/* Read a key or value: its span in the data; length -1 is null. */
ALWAYS_INLINE const uint8_t *read_span(
    const uint8_t *data, const uint8_t *at, const uint8_t *end, int64_t *span_start, int64_t *span_end) {
    int32_t length;
    at = read_varint(at, end, &length);
    if (!LIKELY(at != NULL))
        return NULL;
    if (length < 0) {
        *span_start = *span_end = NULL_SPAN;
        return length == NULL_SPAN ? at : NULL;
    }
    if (!LIKELY(length <= end - at))
        return NULL;
    *span_start = at - data;
    at += length;
    *span_end = at - data;
    return at;
}

/* Return whether [at, end) is exactly one header list: a count, then for each header a non-null key and a value. */
static inline int are_headers(const uint8_t *data, const uint8_t *at, const uint8_t *end) {
    int32_t count;
    at = read_varint(at, end, &count);
    if (at == NULL || count < 0 || count > (end - at) / 2)
        return 0;
    while (count--) {
        int64_t start, stop;
        at = read_span(data, at, end, &start, &stop);
        if (at == NULL || start < 0)
            return 0;
        at = read_span(data, at, end, &start, &stop);
        if (at == NULL)
            return 0;
    }
    return at == end;
}

#endif
