// SPDX-License-Identifier: Apache-2.0
/* Decompressed sizes that compressed data declares.
 *
 * Gives the same results as expected_size of wire/compression.py. Malformed and unusual data is left to it.
 */
#ifndef CONSUMERD_DECLARED_H
#define CONSUMERD_DECLARED_H

#include "fields.h"
#include "lz4.h"
#include "snappy.h"

#define LEAST_GZIP 18
#define LZ4_DICTIONARY 0x01
#define UNKNOWN (-1)

/* Return the sum of the block sizes of a frame without content size. */
static int64_t expected_lz4(const uint8_t *data, int64_t size) {
    int64_t at, block, sum = 0;
    if (size < 11 || load32_little(data) != LZ4_MAGIC || data[4] & LZ4_SAYS_SIZE)
        return UNKNOWN;
    block = (int64_t)256 << 2 * (data[5] >> 4 & 7);
    at = 7 + (data[4] & LZ4_DICTIONARY ? 4 : 0);
    for (;;) {
        uint32_t word, length;
        if (size - at < 4)
            return UNKNOWN;
        word = load32_little(data + at);
        if (word == 0)
            return sum;
        length = word & 0x7FFFFFFF;
        sum += length == word ? block : length;
        at += 4 + (int64_t)length + (data[4] & LZ4_BLOCK_CHECKSUMS ? 4 : 0);
    }
}

static int64_t expected_size(int codec, const uint8_t *data, int64_t size) {
    if (codec == CODEC_GZIP)
        return size >= LEAST_GZIP ? load32_little(data + size - 4) : 0;
    if (codec == CODEC_SNAPPY) {
        const int64_t declared = snappy_size(data, size);
        return declared < 0 ? UNKNOWN : declared;
    }
    return codec == CODEC_LZ4 ? expected_lz4(data, size) : UNKNOWN;
}

#endif
