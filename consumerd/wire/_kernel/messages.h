// SPDX-License-Identifier: Apache-2.0
/* Runs of uncompressed messages of magic 0 and 1, read into columns (Kafka protocol guide, "Message sets"; KIP-32):
 *
 * offset int64, size int32, CRC-32 uint32 (of all that follows), magic int8, attributes int8, [timestamp int64, magic 1],
 * key length int32, key, value length int32, value
 *
 * No byte outside [data, data + end) is read, and no row beyond the room is written, whatever the bytes say.
 */
#ifndef CONSUMERD_MESSAGES_H
#define CONSUMERD_MESSAGES_H

#include <stdint.h>
#include <string.h>

#include "crc32.h"

#define MESSAGES_CHECKED_AT 16 /* where the magic is, too */
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

/* Where the columns' next rows and the offsets' next segments [first, end) go, and the run so far. */
typedef struct {
    int64_t *timestamps, *key_starts, *key_ends, *value_starts, *value_ends;
    int64_t rows, room;
    int64_t *segments; /* two numbers each */
    int64_t segment_count, segment_room;
    int64_t first;     /* of the segment that goes on */
    int64_t following; /* the least offset that may come next */
    int full;          /* whether there was no room for the next row or segment */
} messages_run;

/* Read messages of the kind (magic and attributes) of the one at `at`; returns where the next begins.
 *
 * Stops at once for one that is compressed, where the room is full, and in front of what is cut off, is damaged, contradicts itself, does not ascend or is of
 * another kind.
 */
static int64_t messages_read(const uint8_t *data, int64_t at, int64_t end, int64_t shift, messages_run *run) {
    int64_t following = run->following, rows = run->rows;
    run->full = 0;
    if (end - at <= MESSAGES_CHECKED_AT + 1 || data[at + MESSAGES_CHECKED_AT] > 1 || data[at + MESSAGES_CHECKED_AT + 1] & 7)
        return at;
    const int magic = data[at + MESSAGES_CHECKED_AT], attributes = data[at + MESSAGES_CHECKED_AT + 1];
    const int64_t head = magic ? 34 : 26; /* of a message without key and value */
    for (; end - at >= head; rows++) {
        const uint8_t *message = data + at;
        const int64_t offset = messages_int64(message), stop = at + 12 + messages_int32(message + 8);
        if (stop < at + head || stop > end || message[16] != magic || message[17] != attributes)
            break;
        if (offset < following || offset == INT64_MAX) /* nothing could follow the greatest */
            break;
        const int64_t key_length = messages_int32(message + head - 8);
        int64_t value_at = at + head; /* behind its length */
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
