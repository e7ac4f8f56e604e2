// SPDX-License-Identifier: Apache-2.0
/* Decoding of compressed wrapper messages (magic 0 and 1) with the kernel's own codecs.
 *
 * The value of a wrapper is a message set, and its offset that of the last message. Inner offsets are absolute in
 * magic 0 and relative in magic 1. As in records.h, no errors are reported, and wrappers without gaps give the same
 * result as in Python. Decompression stays inside of the room, and messages inside of the decompressed data.
 * Sources: Kafka protocol guide, "Compression"; KIP-31, KIP-32.
 */
#ifndef CONSUMERD_WRAPPERS_H
#define CONSUMERD_WRAPPERS_H

#include "heads.h"
#include "messages.h"
#include "packed.h"

/* The header of a wrapper; its value is in [value_at, stop). */
typedef struct {
    int64_t offset, timestamp, value_at, stop;
    int magic, codec, log_append_time;
} wrapper_t;

/* Progress of a run: position in the data, and bytes of the room in use. If the wrapper at `at` is decompressed
 * already, its `given` bytes lie after those, and have `count` messages; otherwise `count` is 0. `wanted` is the
 * number of rows to allocate after READ_NEEDS_ROWS. */
typedef struct {
    int64_t at, used, given, count, wanted;
} wrapper_run_t;

/* Read the header of the wrapper at `at`; returns whether it is complete, and has one of the kernel's codecs. */
static int read_wrapper_head(const uint8_t *data, int64_t at, int64_t size, wrapper_t *wrapper) {
    const uint8_t *from = data + at;
    int64_t head;
    int32_t length;
    if (size - at < UNIT_HEAD || from[16] > 1)
        return 0;
    wrapper->magic = from[16];
    wrapper->codec = from[17] & CODEC_MASK;
    head = wrapper->magic ? UNIT_HEAD + 8 : UNIT_HEAD;
    length = (int32_t)load32(from + 8);
    if (!(PACKED_CODECS >> wrapper->codec & 1) || length < head - UNIT_PREFIX || length > size - at - UNIT_PREFIX)
        return 0;
    wrapper->offset = load64(from);
    wrapper->stop = at + UNIT_PREFIX + length;
    wrapper->timestamp = wrapper->magic ? load64(from + 18) : -1;
    wrapper->log_append_time = wrapper->magic && from[17] & LOG_APPEND_TIME;
    wrapper->value_at = payload_at(data, at, wrapper->stop);
    return wrapper->offset >= 0 && (int32_t)load32(from + head - 8) >= NULL_SPAN && wrapper->value_at <= wrapper->stop &&
           (int32_t)load32(data + wrapper->value_at - 4) == wrapper->stop - wrapper->value_at;
}

/* Return the number of messages in [at, end) according to their sizes; 0 if they do not fill it exactly. */
static int64_t count_messages(const uint8_t *data, int64_t at, int64_t end) {
    int64_t count = 0;
    for (; end - at >= UNIT_HEAD; count++) {
        const int64_t length = (int32_t)load32(data + at + 8);
        if (length < LEAST_UNIT || length > end - at - UNIT_PREFIX)
            return 0;
        at += UNIT_PREFIX + length;
    }
    return at == end ? count : 0;
}

/* Verify and decompress the wrapper at `run->at`; returns whether the result can be a message set. */
static int open_wrapper(const uint8_t *data, const wrapper_t *wrapper, uint8_t *out, int64_t room, wrapper_run_t *run) {
    const uint8_t *from = data + run->at, *checked = from + MESSAGES_CHECKED_AT;
    if (crc32_of(checked, (size_t)(data + wrapper->stop - checked)) != load32(from + 12))
        return 0;
    run->given = unpack(
        data, wrapper->value_at, wrapper->stop, wrapper->codec, wrapper->magic == 0, out + run->used, room - run->used);
    if (run->given < 0)
        return 0;
    run->count = count_messages(out, run->used, run->used + run->given);
    return run->count > 0;
}

/* Return how many rows to allocate, assuming that the rest of the data resembles this wrapper; limited by the room. */
static int64_t expect_rows(const wrapper_t *wrapper, const wrapper_run_t *run, int64_t size, int64_t room) {
    const double times = (double)(size - wrapper->stop) / (double)(wrapper->stop - run->at);
    const double more = (double)run->count * times * 1.125; /* a reserve, to avoid another allocation for a few rows */
    const int64_t most = (room - run->used - run->given) / UNIT_HEAD;
    return run->count + (more < (double)most ? (int64_t)more : most);
}

/* Read the inner messages in [at, end) into new rows; returns the row after them.
 *
 * Returns 0 unless they are plain messages of any attributes, with consecutive offsets. */
static int64_t read_inner(const uint8_t *block, int64_t at, int64_t end, int64_t shift, const columns_t *to) {
    messages_run rows = {
        .timestamps = to->timestamps, .key_starts = to->key_starts, .key_ends = to->key_ends,
        .value_starts = to->value_starts, .value_ends = to->value_ends, .rows = to->rows, .room = to->capacity};
    rows.first = rows.following = load64(block + at);
    while (at < end) {
        const uint8_t *message = block + at;
        /* there is no capacity for segments, so that it stops at a gap */
        const int64_t row = rows.rows, stop = messages_read(block, at, end, shift, &rows);
        if (stop == at)
            return 0;
        const int type = message[17] & LOG_APPEND_TIME ? TYPE_LOG_APPEND_TIME : TYPE_CREATE_TIME;
        memset(to->types + row, message[16] ? type : TYPE_NONE, (size_t)(rows.rows - row));
        at = stop;
    }
    return rows.rows;
}

/* Read the messages of the decompressed wrapper at `run->at`; returns whether they continue without a gap. Otherwise no
 * row is added. */
static int read_opened(
    const uint8_t *out, const wrapper_t *wrapper, const wrapper_run_t *run, int64_t shift, place_t *place, columns_t *to) {
    const int64_t first = wrapper->offset - (run->count - 1);
    int64_t row = to->rows, rows;
    if (!is_due(first, run->count, place) || (wrapper->magic == 0 && load64(out + run->used) != first))
        return 0;
    rows = read_inner(out, run->used, run->used + run->given, shift, to);
    if (rows != row + run->count)
        return 0;
    for (int64_t offset = first; row < rows; row++) {
        to->offsets[row] = offset++;
        if (wrapper->log_append_time) {
            to->timestamps[row] = wrapper->timestamp;
            to->types[row] = TYPE_LOG_APPEND_TIME;
        }
    }
    to->rows = rows;
    pass_unit(place, wrapper->offset + 1);
    return 1;
}

/* Read a run of wrappers, decompressing one after the other into the room; returns the reason why it ended. */
static int read_wrapper_run(
    const uint8_t *data, int64_t size, uint8_t *out, int64_t room, int64_t shift, wrapper_run_t *run, place_t *place,
    columns_t *to) {
    wrapper_t wrapper;
    while (read_wrapper_head(data, run->at, size, &wrapper)) {
        if (run->count == 0 && !open_wrapper(data, &wrapper, out, room, run))
            return READ_STOPPED;
        if (run->count > to->capacity - to->rows) {
            run->wanted = expect_rows(&wrapper, run, size, room);
            return READ_NEEDS_ROWS;
        }
        if (!read_opened(out, &wrapper, run, shift, place, to))
            return READ_STOPPED;
        run->used += run->given;
        run->at = wrapper.stop;
        run->count = 0;
    }
    return READ_STOPPED;
}

#endif
