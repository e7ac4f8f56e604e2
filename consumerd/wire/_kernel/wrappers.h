// SPDX-License-Identifier: Apache-2.0
/* Runs of compressed wrappers of magic 0 and 1, with what the kernel decompresses itself (Kafka protocol guide,
 * "Compression"; KIP-31, KIP-32).
 *
 * A wrapper's value is a set of messages. Its offset is that of the last; in magic 0 inner offsets say the same, in magic 1
 * they count from anywhere. As in records.h nothing here finds fault, and what has no hole is booked as Python books it.
 * What is decompressed stays within the room, and messages within what was.
 */
#ifndef CONSUMERD_WRAPPERS_H
#define CONSUMERD_WRAPPERS_H

#include "heads.h"
#include "messages.h"
#include "packed.h"

/* What a wrapper says of itself; its value stands in [value_at, stop). */
typedef struct {
    int64_t offset, timestamp, value_at, stop;
    int magic, codec, log_append_time;
} wrapper_t;

/* A run: where it stands in the data and in the room. What the wrapper there gave, behind what is used, and how many messages
 * that has, if it was decompressed already (else 0); for how many rows there should be room then. */
typedef struct {
    int64_t at, used, given, count, wanted;
} wrapper_run_t;

/* Read the head of the wrapper at `at` of `size` bytes; tells whether it is a whole one, of a codec that is read here. */
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

/* Return how many messages fill [at, end) by their sizes; 0 where they do not. */
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

/* Verify and decompress the wrapper where the run stands; tells whether it gave what may be messages. */
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

/* Return for how many rows there should be room if what follows in the data is like this wrapper: no more than there can be. */
static int64_t expect_rows(const wrapper_t *wrapper, const wrapper_run_t *run, int64_t size, int64_t room) {
    const double times = (double)(size - wrapper->stop) / (double)(wrapper->stop - run->at);
    const double more = (double)run->count * times * 1.125; /* a little too much rather than once more for a little */
    const int64_t most = (room - run->used - run->given) / UNIT_HEAD;
    return run->count + (more < (double)most ? (int64_t)more : most);
}

/* Read the messages that fill [at, end), whatever kinds they are of, into rows behind the last; returns the row behind them,
 * 0 where there are not only such messages, with consecutive offsets. */
static int64_t read_inner(const uint8_t *block, int64_t at, int64_t end, int64_t shift, const columns_t *to) {
    messages_run rows = {
        .timestamps = to->timestamps, .key_starts = to->key_starts, .key_ends = to->key_ends,
        .value_starts = to->value_starts, .value_ends = to->value_ends, .rows = to->rows, .room = to->capacity};
    rows.first = rows.following = load64(block + at);
    while (at < end) {
        const uint8_t *message = block + at;
        const int64_t row = rows.rows, stop = messages_read(block, at, end, shift, &rows); /* no room for segments: no holes */
        if (stop == at)
            return 0;
        const int type = message[17] & LOG_APPEND_TIME ? TYPE_LOG_APPEND_TIME : TYPE_CREATE_TIME;
        memset(to->types + row, message[16] ? type : TYPE_NONE, (size_t)(rows.rows - row));
        at = stop;
    }
    return rows.rows;
}

/* Read what the wrapper where the run stands gave; tells whether its messages are such as follow without a hole. Of others
 * nothing stays. */
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

/* Read a run of wrappers, their messages one behind the other into the room; says why it ended. */
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
