// SPDX-License-Identifier: Apache-2.0
/* Decoding of messages of Kafka 0.6 and 0.7 into columns. Source: "Writing a Driver for Kafka".
 *
 * length int32 (of all that follows), magic int8, [attributes int8, magic 1 only], CRC-32 uint32 (of the payload),
 * payload
 *
 * The offset of a message is its position in the log. As in records.h, no errors are reported: a message that is cut
 * off, impossible or damaged ends the run before it, and Python decides about it. For any input, only bytes in
 * [data, data + end) are read, decompression stays inside of the room, and only rows below the capacity are written.
 */
#ifndef CONSUMERD_LEGACY_H
#define CONSUMERD_LEGACY_H

#include "crc32.h"
#include "declared.h"

#define STORED_PREFIX 4 /* size of the length field, which the length does not count */
#define STORED_LEAST 9  /* size of a message of magic 0 without payload; one of magic 1 has the attributes, too */
#define STORED_MAGIC_AT 4
#define STORED_CODEC_MASK 3
#define STORED_CODECS 3 /* none, gzip, snappy */

/* The header of a message; its payload is in [payload_at, stop), and follows the checksum. */
typedef struct {
    int64_t payload_at, stop;
    int codec;
} stored_t;

/* The columns to fill. Without `offsets`, only the positions of values are written. */
typedef struct {
    int64_t *offsets, *next_offsets, *indexes, *value_starts, *value_ends;
    int64_t rows, room;
    int full; /* whether the run ended for lack of capacity */
} stored_columns;

/* Read the header of the message at `at`; returns whether it is possible, and the message whole. */
static inline int stored_head(const uint8_t *data, int64_t at, int64_t end, stored_t *message) {
    const uint8_t *from = data + at;
    if (end - at < STORED_LEAST || from[STORED_MAGIC_AT] > 1)
        return 0;
    const int magic = from[STORED_MAGIC_AT];
    const int64_t length = (int32_t)load32(from);
    message->payload_at = at + STORED_LEAST + magic;
    message->stop = at + STORED_PREFIX + length;
    message->codec = magic ? from[STORED_MAGIC_AT + 1] & STORED_CODEC_MASK : 0;
    return message->stop >= message->payload_at && message->stop <= end && message->codec < STORED_CODECS;
}

/* Return whether the payload has the checksum that the header says. */
static inline int stored_is_intact(const uint8_t *data, const stored_t *message) {
    const uint8_t *payload = data + message->payload_at;
    return crc32_of(payload, (size_t)(message->stop - message->payload_at)) == load32(payload - 4);
}

/* Read uncompressed messages; returns the position after the last one.
 *
 * `start` is the offset of data[0]. Stops at the end of the capacity, and before a message that is compressed, cut off
 * or damaged. */
static int64_t stored_read(
    const uint8_t *data, int64_t at, int64_t end, int64_t shift, int64_t start, stored_columns *to) {
    int64_t row = to->rows;
    stored_t message;
    to->full = 0;
    for (; stored_head(data, at, end, &message) && message.codec == 0; row++) {
        if (row == to->room) {
            to->full = 1;
            break;
        }
        if (!stored_is_intact(data, &message))
            break;
        to->value_starts[row] = message.payload_at + shift;
        to->value_ends[row] = message.stop + shift;
        if (to->offsets) {
            to->offsets[row] = at + start;
            to->next_offsets[row] = message.stop + start;
        }
        at = message.stop;
    }
    to->rows = row;
    return at;
}

/* Return the number of messages in [at, end) according to their sizes; 0 if they do not fill it exactly. */
static int64_t stored_count(const uint8_t *data, int64_t at, int64_t end) {
    int64_t count = 0;
    stored_t message;
    for (; stored_head(data, at, end, &message); count++)
        at = message.stop;
    return at == end ? count : 0;
}

/* Progress of a run of compressed messages: position in the data, and bytes of the room in use. If the message at `at`
 * is decompressed already, its `given` bytes lie after those, and have `count` messages; otherwise `count` is 0.
 * `shares` is whether records share an offset. */
typedef struct {
    int64_t at, used, given, count;
    int shares;
} stored_run;

/* Verify and decompress a message into the room; returns whether the result can be a message set. */
static int stored_open(const uint8_t *data, const stored_t *message, uint8_t *out, int64_t room, stored_run *run) {
    if (!stored_is_intact(data, message))
        return 0;
    run->given = snappy_decompress(
        data + message->payload_at, message->stop - message->payload_at, out + run->used, room - run->used);
    if (run->given < 0)
        return 0;
    run->count = stored_count(out, run->used, run->used + run->given);
    return run->count > 0;
}

/* Read a run of messages compressed with snappy, one after the other. All records of one have its offset.
 *
 * Stops with `to->full` at the end of the capacity, and before a message that has none or other than uncompressed,
 * valid messages inside. */
static void stored_read_packed(
    const uint8_t *data, int64_t end, uint8_t *out, int64_t room, int64_t shift, int64_t start, stored_run *run,
    stored_columns *to) {
    stored_columns values = {.value_starts = to->value_starts, .value_ends = to->value_ends, .room = to->room};
    stored_t message;
    to->full = 0;
    while (stored_head(data, run->at, end, &message) && message.codec == CODEC_SNAPPY) {
        if (run->count == 0 && !stored_open(data, &message, out, room, run))
            return;
        if (run->count > to->room - to->rows) {
            to->full = 1;
            return;
        }
        values.rows = to->rows;
        if (stored_read(out, run->used, run->used + run->given, shift, 0, &values) != run->used + run->given)
            return;
        for (int64_t index = 0; index < run->count; index++, to->rows++) {
            to->offsets[to->rows] = run->at + start;
            to->next_offsets[to->rows] = message.stop + start;
            to->indexes[to->rows] = index;
        }
        run->shares |= run->count > 1;
        run->used += run->given;
        run->at = message.stop;
        run->count = 0;
    }
}

/* Step over whole messages by their headers until `*weight` reaches `most`. Weights, and `*expanded`, are those of
 * step_units in heads.h. Returns whether a message was compressed.
 *
 * Stops before a header that is impossible, and before a compressed message that declares no usable size. */
static int stored_step(
    const uint8_t *data, int64_t end, double most, double expansion, double doubt, int64_t *at, double *weight,
    int64_t *expanded) {
    stored_t message;
    int64_t asked = *at;
    int packed = 0;
    while (*weight < most && stored_head(data, *at, end, &message)) {
        asked = fetch_lines(data, asked, message.stop, end);
        const double size = (double)(message.stop - *at);
        if (message.codec) {
            const int64_t said =
                expected_size(message.codec, data + message.payload_at, message.stop - message.payload_at);
            if (said == UNKNOWN)
                break;
            *weight += size * expansion >= (double)said / doubt ? size * expansion : (double)said / doubt;
            *expanded += said;
            packed = 1;
        } else {
            *weight += size;
        }
        *at = message.stop;
    }
    return packed;
}

#endif
