// SPDX-License-Identifier: Apache-2.0
/* Decoding of record batches (magic 2) into columns. Sources: KIP-98; Kafka's DefaultRecordBatch and DefaultRecord.
 *
 * No errors are reported. Reading stops before the first batch that is not plain, and the Python reader continues
 * there. Both give the same result for a plain batch.
 *
 * Every read stays inside of the buffer, and header fields are checked before use. If another thread modifies the
 * buffer meanwhile, rows may be wrong, but no memory is overwritten: the capacity of the columns is checked last.
 */
#ifndef CONSUMERD_RECORDS_H
#define CONSUMERD_RECORDS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "crc32c.h"
#include "fields.h"
#include "varints.h"

#define BATCH_HEAD 61
#define CHECKED_FROM 21
#define LEAST_LENGTH 49
#define LEAST_RECORD 7
#define LOG_APPEND_TIME 0x08
#define TRANSACTIONAL 0x10
#define CONTROL 0x20
#define TYPE_NONE 0 /* values of the type column */
#define TYPE_CREATE_TIME 1
#define TYPE_LOG_APPEND_TIME 2

/* The columns to fill. Those of headers end with the last row that has headers, and are NULL before the first one. */
typedef struct {
    int64_t *offsets, *timestamps, *key_starts, *key_ends, *value_starts, *value_ends;
    int64_t *header_starts, *header_ends;
    uint8_t *types;
    int64_t rows, capacity, header_rows;
} columns_t;

typedef struct {
    int64_t timestamp_delta, key_start, key_end, value_start, value_end, headers_at;
    int32_t delta;
} record_t;

enum { READ_ON = 0, READ_STOPPED = 1, READ_NEEDS_HEADERS = 2, READ_NEEDS_SEGMENTS = 3, READ_NEEDS_ROWS = 4 };

/* Read the record at `at`; returns its end, or NULL if it is malformed. `headers_at` is -1 if it has no headers. */
ALWAYS_INLINE const uint8_t *read_record(
    const uint8_t *data, const uint8_t *at, const uint8_t *end, record_t *record) {
    const uint8_t *stop;
    uint64_t number;
    int32_t length;
    at = read_varint(at, end, &length);
    if (!LIKELY(at != NULL && length > 0 && length <= end - at))
        return NULL;
    stop = at + length;
    at = read_number(at + 1, stop, 10, 64, &number);
    if (!LIKELY(at != NULL))
        return NULL;
    record->timestamp_delta = unzigzag(number);
    at = read_varint(at, stop, &record->delta);
    if (!LIKELY(at != NULL && record->delta >= 0))
        return NULL;
    at = read_span(data, at, stop, &record->key_start, &record->key_end);
    if (!LIKELY(at != NULL))
        return NULL;
    at = read_span(data, at, stop, &record->value_start, &record->value_end);
    if (!LIKELY(at != NULL))
        return NULL;
    record->headers_at = -1;
    if (!LIKELY(at + 1 == stop && *at == 0)) {
        if (!are_headers(data, at, stop))
            return NULL;
        record->headers_at = at - data;
    }
    return stop;
}

ALWAYS_INLINE int64_t shifted(int64_t place, int64_t shift) {
    return place < 0 ? NULL_SPAN : place + shift;
}

/* Return whether one + other overflows an int64. */
ALWAYS_INLINE int overflows(int64_t one, int64_t other) {
    return other >= 0 ? one > INT64_MAX - other : one < INT64_MIN - other;
}

/* Write a record, except for offset and type, into the next row, which must exist. */
ALWAYS_INLINE void put_record(columns_t *to, const record_t *record, int64_t timestamp, int64_t shift) {
    int64_t row = to->rows;
    to->timestamps[row] = timestamp;
    to->key_starts[row] = shifted(record->key_start, shift);
    to->key_ends[row] = shifted(record->key_end, shift);
    to->value_starts[row] = shifted(record->value_start, shift);
    to->value_ends[row] = shifted(record->value_end, shift);
}

static void put_headers(columns_t *to, int64_t start, int64_t end) {
    for (; to->header_rows < to->rows; to->header_rows++)
        to->header_starts[to->header_rows] = to->header_ends[to->header_rows] = NULL_SPAN;
    to->header_starts[to->header_rows] = start;
    to->header_ends[to->header_rows++] = end;
}

/* -- batches */

typedef struct {
    int64_t base_offset, base_timestamp, max_timestamp, stop;
    int32_t count;
    uint32_t checksum;
    int log_append_time, codec;
} head_t;

/* Progress in offsets: the next expected offset, the offset after the last unit, and the offset that was asked for. See
 * `position`, `end` and `start` of ColumnBuilder. */
typedef struct {
    int64_t position, end, start;
    int transactional, left_out;
} place_t;

/* Return whether `count` records from offset `first` on continue without a gap. */
static int is_due(int64_t first, int64_t count, const place_t *place) {
    return first >= place->end && first <= place->position && !overflows(first, count);
}

/* Update the progress after a unit whose next offset is `end`. */
static void pass_unit(place_t *place, int64_t end) {
    place->end = end;
    if (end > place->position)
        place->position = end;
}

/* Return whether a batch continues without a gap, has none at its end, and is large enough for its record count. */
static int follows(const head_t *head, int32_t last_delta, int64_t size, const place_t *place) {
    return head->count > 0 && last_delta == head->count - 1 && is_due(head->base_offset, head->count, place) &&
           head->count <= size / LEAST_RECORD;
}

/* Read the header of the batch at `at`; returns whether the batch has one of the codecs (a bit mask), is plain
 * otherwise, and continues without a gap. `most` is the largest decompressed size of its records. */
static int read_head(
    const uint8_t *data, int64_t at, int64_t size, int codecs, int64_t most, const place_t *place, head_t *head) {
    const uint8_t *from = data + at;
    int32_t length, last_delta;
    uint16_t attributes;
    if (size - at < BATCH_HEAD || from[16] != 2)
        return 0;
    length = (int32_t)load32(from + 8);
    if (length < LEAST_LENGTH || length > size - at - 12)
        return 0;
    attributes = (uint16_t)(from[21] << 8 | from[22]);
    head->codec = attributes & CODEC_MASK;
    if (!(codecs >> head->codec & 1) || attributes & CONTROL || (attributes & TRANSACTIONAL && !place->transactional))
        return 0;
    head->base_offset = load64(from);
    head->stop = at + 12 + length;
    head->checksum = load32(from + 17);
    last_delta = (int32_t)load32(from + 23);
    head->base_timestamp = load64(from + 27);
    head->max_timestamp = load64(from + 35);
    head->count = (int32_t)load32(from + 57);
    head->log_append_time = attributes & LOG_APPEND_TIME;
    return follows(head, last_delta, head->codec ? most : head->stop - at - BATCH_HEAD, place);
}

static int read_plain_head(const uint8_t *data, int64_t at, int64_t size, const place_t *place, head_t *head) {
    return read_head(data, at, size, 1 << CODEC_NONE, 0, place, head);
}

/* Return the number of records in the run of plain batches at `at`, according to their headers. */
static int64_t count_records(const uint8_t *data, int64_t at, int64_t size, place_t place) {
    int64_t count = 0;
    head_t head;
    while (read_plain_head(data, at, size, &place, &head)) {
        count += head.count;
        pass_unit(&place, head.base_offset + head.count);
        at = head.stop;
    }
    return count;
}

/* Read the records in [at, end). They must fill it and agree with the header, without gaps. */
static int read_body(
    const uint8_t *data, const uint8_t *at, const uint8_t *end, const head_t *head, int64_t shift, const place_t *place,
    columns_t *to) {
    int64_t offset = head->base_offset, rows = to->rows;
    int32_t delta;
    record_t record;
    if (to->capacity - to->rows < head->count)
        return READ_STOPPED;
    for (delta = 0; delta < head->count; delta++, offset++) {
        at = read_record(data, at, end, &record);
        if (!LIKELY(at != NULL && record.delta == delta && !overflows(head->base_timestamp, record.timestamp_delta)))
            return READ_STOPPED;
        put_record(
            to, &record, head->log_append_time ? head->max_timestamp : head->base_timestamp + record.timestamp_delta,
            shift);
        to->offsets[to->rows] = offset;
        if (!LIKELY(offset >= place->start))
            continue;
        if (!LIKELY(record.headers_at < 0)) {
            if (to->header_starts == NULL)
                return READ_NEEDS_HEADERS;
            put_headers(to, record.headers_at + shift, at - data + shift);
        }
        to->rows++;
    }
    if (at != end)
        return READ_STOPPED;
    memset(to->types + rows, head->log_append_time ? TYPE_LOG_APPEND_TIME : TYPE_CREATE_TIME, (size_t)(to->rows - rows));
    return READ_ON;
}

/* Read the records of a batch in [at, end). On failure, all of its rows are removed again. */
static int read_block(
    const uint8_t *data, int64_t at, int64_t end, const head_t *head, int64_t shift, place_t *place, columns_t *to) {
    int64_t rows = to->rows, header_rows = to->header_rows;
    int how = read_body(data, data + at, data + end, head, shift, place, to);
    if (how != READ_ON) {
        to->rows = rows;
        to->header_rows = header_rows;
        return how;
    }
    if (head->base_offset < place->start)
        place->left_out = 1;
    pass_unit(place, head->base_offset + head->count);
    return READ_ON;
}

/* Return whether the batch in [at, head->stop) matches its checksum. */
static int is_intact(const uint8_t *data, int64_t at, const head_t *head) {
    const uint8_t *checked = data + at + CHECKED_FROM;
    return crc32c_of(checked, (size_t)(data + head->stop - checked)) == head->checksum;
}

/* Read the run of plain batches at `*at`, which is advanced; returns the reason why it ended. */
static int read_run(
    const uint8_t *data, int64_t *at, int64_t size, int64_t shift, place_t *place, columns_t *to) {
    head_t head;
    while (read_plain_head(data, *at, size, place, &head)) {
        int how;
        if (!is_intact(data, *at, &head))
            return READ_STOPPED;
        how = read_block(data, *at + BATCH_HEAD, head.stop, &head, shift, place, to);
        if (how != READ_ON)
            return how;
        *at = head.stop;
    }
    return READ_STOPPED;
}

/* -- records */

#define MOST_SEGMENTS 512

/* Segments of consecutive offset deltas: [first, delta) is the current one, `over` are the finished ones. */
typedef struct {
    int64_t first, delta;
    int64_t over[MOST_SEGMENTS][2];
    int count;
} segments_t;

/* Read up to `count` records at `*at`, which is advanced; returns the reason why reading ended. */
static int read_records(
    const uint8_t *data, int64_t *at, int64_t size, int64_t count, int64_t shift, int64_t base_timestamp,
    columns_t *to, segments_t *segments) {
    const uint8_t *from = data + *at, *end = data + size, *stop;
    record_t record;
    if (count > to->capacity - to->rows)
        count = to->capacity - to->rows;
    for (; count > 0; count--) {
        stop = read_record(data, from, end, &record);
        if (!LIKELY(stop != NULL && !overflows(base_timestamp, record.timestamp_delta)))
            return READ_STOPPED;
        if (!LIKELY(record.headers_at < 0) && to->header_starts == NULL)
            return READ_NEEDS_HEADERS;
        if (!LIKELY(record.delta == segments->delta)) {
            if (segments->delta > segments->first) {
                if (segments->count == MOST_SEGMENTS)
                    return READ_NEEDS_SEGMENTS;
                segments->over[segments->count][0] = segments->first;
                segments->over[segments->count++][1] = segments->delta;
            }
            segments->first = record.delta;
        }
        if (!LIKELY(record.headers_at < 0))
            put_headers(to, record.headers_at + shift, stop - data + shift);
        put_record(to, &record, base_timestamp + record.timestamp_delta, shift);
        to->rows++;
        segments->delta = (int64_t)record.delta + 1;
        from = stop;
        *at = from - data;
    }
    return READ_STOPPED;
}

#endif
