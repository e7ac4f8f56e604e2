// SPDX-License-Identifier: Apache-2.0
/* Decoding of plain messages (magic 0 and 1) into columns. Sources: Kafka protocol guide, "Message sets"; KIP-32.
 *
 * offset int64, size int32, CRC-32 uint32 (of all that follows), magic int8, attributes int8,
 * [timestamp int64, magic 1 only], key length int32, key, value length int32, value
 *
 * For any input, only bytes in [data, data + end) are read, and only rows below the capacity are written.
 */
#ifndef CONSUMERD_MESSAGES_H
#define CONSUMERD_MESSAGES_H

#include <stdint.h>
#include <string.h>

#include "crc32.h"

#define MESSAGES_CHECKED_AT 16 /* first byte covered by the checksum: the magic */
#define MESSAGES_NULL -1

static inline uint32_t messages_uint32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline int32_t messages_int32(const uint8_t *at) {
    uint32_t value = messages_uint32(at);
    return value > INT32_MAX ? (int32_t)(value - 0x80000000u) + INT32_MIN : (int32_t)value;
}

static inline int64_t messages_int64(const uint8_t *at) {
    uint64_t value = (uint64_t)messages_uint32(at) << 32 | messages_uint32(at + 4);
    return value > INT64_MAX ? (int64_t)(value - 0x8000000000000000u) + INT64_MIN : (int64_t)value;
}

/* The columns and the finished segments [first, end) of offsets to fill, and the progress of the run. */
typedef struct {
    int64_t *timestamps, *key_starts, *key_ends, *value_starts, *value_ends;
    int64_t rows, room;
    int64_t *segments; /* two numbers for each */
    int64_t segment_count, segment_room;
    int64_t first;     /* first offset of the current segment */
    int64_t following; /* smallest acceptable offset of the next message */
    int full;          /* whether the run ended for lack of capacity for a row or a segment */
} messages_run;

/* Read messages with the magic and attributes of the one at `at`; returns the position after the last one.
 *
 * Reads nothing if they are compressed. Stops at the end of the capacity, and before a message that is truncated,
 * corrupt or inconsistent, that has other magic or attributes, or whose offset does not ascend.
 */
static int64_t messages_read(const uint8_t *data, int64_t at, int64_t end, int64_t shift, messages_run *run) {
    int64_t following = run->following, rows = run->rows;
    run->full = 0;
    if (end - at <= MESSAGES_CHECKED_AT + 1 || data[at + MESSAGES_CHECKED_AT] > 1 || data[at + MESSAGES_CHECKED_AT + 1] & 7)
        return at;
    const int magic = data[at + MESSAGES_CHECKED_AT], attributes = data[at + MESSAGES_CHECKED_AT + 1];
    const int64_t head = magic ? 34 : 26; /* size of a message without key and value */
    for (; end - at >= head; rows++) {
        const uint8_t *message = data + at;
        const int64_t offset = messages_int64(message), stop = at + 12 + messages_int32(message + 8);
        if (stop < at + head || stop > end || message[16] != magic || message[17] != attributes)
            break;
        if (offset < following || offset == INT64_MAX) /* the next offset must be an int64 too */
            break;
        const int64_t key_length = messages_int32(message + head - 8);
        int64_t value_at = at + head; /* after its length */
        if (key_length < MESSAGES_NULL || key_length > stop - value_at)
            break;
        if (key_length > 0)
            value_at += key_length;
        const int64_t value_length = messages_int32(data + value_at - 4);
        if (value_length < MESSAGES_NULL || value_at + (value_length < 0 ? 0 : value_length) != stop)
            break;
        const size_t checked = (size_t)(stop - at - MESSAGES_CHECKED_AT);
        if (crc32_of(message + MESSAGES_CHECKED_AT, checked) != messages_uint32(message + 12))
            break;
        if (rows == run->room || (offset != following && run->segment_count == run->segment_room)) {
            run->full = 1;
            break;
        }
        if (offset != following) {
            if (following > run->first) {
                int64_t *segment = run->segments + 2 * run->segment_count++;
                segment[0] = run->first;
                segment[1] = following;
            }
            run->first = offset;
        }
        run->timestamps[rows] = magic ? messages_int64(message + 18) : -1;
        run->key_starts[rows] = key_length < 0 ? MESSAGES_NULL : at + head - 4 + shift;
        run->key_ends[rows] = key_length < 0 ? MESSAGES_NULL : at + head - 4 + key_length + shift;
        run->value_starts[rows] = value_length < 0 ? MESSAGES_NULL : value_at + shift;
        run->value_ends[rows] = value_length < 0 ? MESSAGES_NULL : stop + shift;
        following = offset + 1;
        at = stop;
    }
    run->following = following;
    run->rows = rows;
    return at;
}

#endif
