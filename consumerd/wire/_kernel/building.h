// SPDX-License-Identifier: Apache-2.0
/* Encoding of records of magic 2. Sources: KIP-98; Kafka's DefaultRecord.writeTo.
 *
 * Rows of columns are untrusted: spans are compared with the buffer before anything is copied. The encoder stops before a
 * row that it cannot encode. Such a row is left to Python. Headers are copied unread: callers check them before.
 */
#ifndef CONSUMERD_BUILDING_H
#define CONSUMERD_BUILDING_H

#include <stdint.h>
#include <string.h>

#include "fields.h"
#include "varints.h"

#define MOST_VARINT 5
#define MOST_VARLONG 10
/* A record without key, value and headers: attributes, timestamp and offset delta, two lengths; and before it its own. */
#define MOST_FRAME (1 + MOST_VARLONG + 4 * MOST_VARINT)

/* A record to encode. A size of -1 is null. Headers are their encoded list. */
typedef struct {
    const uint8_t *key, *value, *headers;
    int64_t key_size, value_size, headers_size, timestamp_delta, offset_delta;
} new_record_t;

static const uint8_t no_headers[1] = {0};

ALWAYS_INLINE uint64_t zigzag(int64_t value) {
    return (uint64_t)value << 1 ^ (0 - (uint64_t)(value < 0));
}

ALWAYS_INLINE int64_t number_size(int64_t value) {
    uint64_t rest = zigzag(value);
    int64_t size = 1;
    for (; rest > 0x7F; rest >>= 7)
        size++;
    return size;
}

ALWAYS_INLINE uint8_t *put_number(uint8_t *out, int64_t value) {
    uint64_t rest = zigzag(value);
    for (; rest > 0x7F; rest >>= 7)
        *out++ = (uint8_t)(rest | 0x80);
    *out++ = (uint8_t)rest;
    return out;
}

ALWAYS_INLINE int64_t content_size(int64_t size) {
    return size < 0 ? 0 : size;
}

/* Return the size of a record without the length before it. */
ALWAYS_INLINE int64_t body_size(const new_record_t *record) {
    return 1 + number_size(record->timestamp_delta) + number_size(record->offset_delta) + number_size(record->key_size) +
           content_size(record->key_size) + number_size(record->value_size) + content_size(record->value_size) +
           record->headers_size;
}

ALWAYS_INLINE uint8_t *put_content(uint8_t *out, const uint8_t *content, int64_t size) {
    out = put_number(out, size);
    if (size > 0) {
        memcpy(out, content, (size_t)size);
        out += size;
    }
    return out;
}

/* Write a record, whose body_size is `body`; returns the end of it. */
ALWAYS_INLINE uint8_t *put_record(uint8_t *out, const new_record_t *record, int64_t body) {
    out = put_number(out, body);
    *out++ = 0; /* attributes */
    out = put_number(out, record->timestamp_delta);
    out = put_number(out, record->offset_delta);
    out = put_content(out, record->key, record->key_size);
    out = put_content(out, record->value, record->value_size);
    memcpy(out, record->headers, (size_t)record->headers_size);
    return out + record->headers_size;
}

/* -- rows of columns */

/* Columns of a RecordBatch over a buffer of `size` bytes, and the batch that its rows go into.
 *
 * The header columns are NULL if no row has headers. `base_row` is the row that has, or would have, offset delta 0. It is
 * negative where the batch has more records than there are rows before these ones. */
typedef struct {
    const uint8_t *buffer;
    int64_t size;
    const int64_t *timestamps, *key_starts, *key_ends, *value_starts, *value_ends, *header_starts, *header_ends;
    int64_t base_row, base_timestamp;
} rows_t;

/* Set a key, value or header list, null for a negative start; returns whether it lies in the buffer. */
ALWAYS_INLINE int find_content(const rows_t *rows, int64_t start, int64_t end, const uint8_t **content, int64_t *size) {
    if (start < 0) {
        *content = NULL;
        *size = NULL_SPAN;
        return 1;
    }
    if (!LIKELY(start <= end && end <= rows->size && end - start <= INT32_MAX))
        return 0;
    *content = rows->buffer + start;
    *size = end - start;
    return 1;
}

/* Set the headers of a row, unread; returns whether they lie in the buffer. */
ALWAYS_INLINE int find_headers(const rows_t *rows, int64_t row, new_record_t *record) {
    if (rows->header_starts == NULL || rows->header_starts[row] < 0) {
        record->headers = no_headers;
        record->headers_size = 1;
        return 1;
    }
    return find_content(
        rows, rows->header_starts[row], rows->header_ends[row], &record->headers, &record->headers_size);
}

/* Return whether one - other overflows an int64. */
ALWAYS_INLINE int differs_too_much(int64_t one, int64_t other) {
    return other < 0 ? one > INT64_MAX + other : one < INT64_MIN + other;
}

/* Return whether the deltas of a row fit their fields: otherwise it belongs into another batch. */
ALWAYS_INLINE int is_near(const rows_t *rows, int64_t row) {
    return row - rows->base_row <= INT32_MAX && !differs_too_much(rows->timestamps[row], rows->base_timestamp);
}

/* Set the record of a row that is near; returns whether it can be encoded. */
ALWAYS_INLINE int find_record(const rows_t *rows, int64_t row, new_record_t *record) {
    record->timestamp_delta = rows->timestamps[row] - rows->base_timestamp;
    record->offset_delta = row - rows->base_row;
    return find_content(rows, rows->key_starts[row], rows->key_ends[row], &record->key, &record->key_size) &&
           find_content(rows, rows->value_starts[row], rows->value_ends[row], &record->value, &record->value_size) &&
           find_headers(rows, row, record);
}

#define UNENCODABLE (-1)

/* Sum the sizes of the records of rows [first, end), as long as they are `most` in total or less. `base_row` always fits.
 *
 * Returns the row after them, which is `first` if nothing fits, or UNENCODABLE if that row cannot be encoded. Sets their
 * size and their greatest timestamp. */
static int64_t measure_rows(
    const rows_t *rows, int64_t first, int64_t end, int64_t most, int64_t *size, int64_t *max_timestamp) {
    new_record_t record;
    int64_t row;
    *size = 0;
    *max_timestamp = INT64_MIN;
    for (row = first; row < end && LIKELY(is_near(rows, row)); row++) {
        const int found = find_record(rows, row, &record);
        const int64_t body = found ? body_size(&record) : 0, whole = number_size(body) + body;
        if (!LIKELY(found && body <= INT32_MAX))
            return row > first ? row : UNENCODABLE;
        if (row > rows->base_row && whole > most - *size)
            break;
        *size += whole;
        if (rows->timestamps[row] > *max_timestamp)
            *max_timestamp = rows->timestamps[row];
    }
    return row;
}

/* Write the records of rows [first, end) into `size` bytes; returns whether they fill them. They do, unless another
 * thread has modified the columns since they were measured. */
static int write_rows(const rows_t *rows, int64_t first, int64_t end, uint8_t *out, int64_t size) {
    const uint8_t *stop = out + size;
    new_record_t record;
    int64_t row;
    for (row = first; row < end; row++) {
        int64_t body;
        if (!is_near(rows, row) || !find_record(rows, row, &record))
            return 0;
        body = body_size(&record);
        if (number_size(body) + body > stop - out)
            return 0;
        out = put_record(out, &record, body);
    }
    return out == stop;
}

#endif
