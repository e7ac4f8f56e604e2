// SPDX-License-Identifier: Apache-2.0
/* Decoding of compressed, otherwise plain batches (magic 2) with the kernel's own codecs; see records.h.
 *
 * Decompression stays inside of the room, and records inside of the decompressed data.
 */
#ifndef CONSUMERD_PACKED_H
#define CONSUMERD_PACKED_H

#include "lz4.h"
#include "records.h"
#include "snappy.h"

#define PACKED_CODECS (1 << CODEC_SNAPPY | 1 << CODEC_LZ4)

/* Return the number of records in the run of compressed batches at `at`, according to their headers: at most as many as
 * fit into `room` bytes. */
static int64_t count_packed(const uint8_t *data, int64_t at, int64_t size, int64_t room, place_t place) {
    int64_t count = 0;
    head_t head;
    while (read_head(data, at, size, PACKED_CODECS, room, &place, &head) && count + head.count <= room / LEAST_RECORD) {
        count += head.count;
        pass_unit(&place, head.base_offset + head.count);
        at = head.stop;
    }
    return count;
}

/* Decompress [at, end); returns the decompressed size, or a negative number if it is malformed or does not fit. */
static int64_t unpack(
    const uint8_t *data, int64_t at, int64_t end, int codec, int any_checksum, uint8_t *out, int64_t room) {
    if (codec == CODEC_LZ4)
        return lz4_decompress(data + at, end - at, any_checksum, out, room);
    return snappy_decompress(data + at, end - at, out, room);
}

/* Read the run of compressed batches at `*at`, decompressing one after the other into the room from `*used` on. Both
 * are advanced. Returns the reason why it ended. */
static int read_packed_run(
    const uint8_t *data, int64_t *at, int64_t size, uint8_t *out, int64_t room, int64_t *used, int64_t shift,
    place_t *place, columns_t *to) {
    head_t head;
    while (read_head(data, *at, size, PACKED_CODECS, room - *used, place, &head)) {
        int64_t given;
        int how;
        if (!is_intact(data, *at, &head))
            return READ_STOPPED;
        given = unpack(data, *at + BATCH_HEAD, head.stop, head.codec, 0, out + *used, room - *used);
        if (given < 0)
            return READ_STOPPED;
        how = read_block(out, *used, *used + given, &head, shift, place, to);
        if (how != READ_ON)
            return how;
        *used += given;
        *at = head.stop;
    }
    return READ_STOPPED;
}

#endif
