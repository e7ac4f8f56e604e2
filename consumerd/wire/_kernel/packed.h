// SPDX-License-Identifier: Apache-2.0
/* Runs of batches that are plain but for being compressed, with what the kernel decompresses itself.
 *
 * Bounded as records.h is: what is decompressed stays within the room, and records within what was.
 */
#ifndef CONSUMERD_PACKED_H
#define CONSUMERD_PACKED_H

#include "lz4.h"
#include "records.h"
#include "snappy.h"

#define PACKED_CODECS (1 << CODEC_SNAPPY | 1 << CODEC_LZ4)

/* Return how many records the packed batches have, by their heads, that stand in a run at `at`: no more than fit into `room`
 * bytes. */
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

/* Decompress [at, end) of what has such a codec; returns the size of what it gives, which is negative where that is not done. */
static int64_t unpack(
    const uint8_t *data, int64_t at, int64_t end, int codec, int any_checksum, uint8_t *out, int64_t room) {
    if (codec == CODEC_LZ4)
        return lz4_decompress(data + at, end - at, any_checksum, out, room);
    return snappy_decompress(data + at, end - at, out, room);
}

/* Read the run of packed batches at `*at`, their records one behind the other into the room from `*used` on; both are moved on
 * with all else. Says why it ended. */
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
