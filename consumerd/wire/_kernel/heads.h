// SPDX-License-Identifier: Apache-2.0
/* The heads of units of any magic: where they end, and what is compressed in them says that it gives.
 *
 * The same as consumerd/fetch/slices.py and wire/compression.py (expected_size) say; what is not sound, or odd, is left to them.
 */
#ifndef CONSUMERD_HEADS_H
#define CONSUMERD_HEADS_H

#include "lz4.h"
#include "records.h"
#include "snappy.h"

#define UNIT_PREFIX 12
#define UNIT_HEAD 26
#define LEAST_UNIT 14
#define LEAST_GZIP 18
#define LZ4_DICTIONARY 0x01
#define UNKNOWN (-1)
#define LINE 64
#define AHEAD 2048 /* bytes that are on their way from memory while sizes are read */

#if defined(__GNUC__)
#define FETCH_LINE(address) __builtin_prefetch(address)
#else
#define FETCH_LINE(address) ((void)(address))
#endif

ALWAYS_INLINE uint32_t load32_little(const uint8_t *data) {
    return (uint32_t)data[3] << 24 | (uint32_t)data[2] << 16 | (uint32_t)data[1] << 8 | data[0];
}

/* Add up the blocks of a frame that says no size of its own. */
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

/* Return where the compressed bytes begin of the unit in [at, end). */
static int64_t payload_at(const uint8_t *data, int64_t at, int64_t end) {
    int64_t key_at, key_length;
    if (data[at + 16] >= 2)
        return at + BATCH_HEAD;
    key_at = at + (data[at + 16] ? 26 : 18);
    key_length = key_at + 4 <= end ? (int32_t)load32(data + key_at) : 0;
    return key_at + 8 + (key_length > 0 ? key_length : 0);
}

/* Step over messages by their sizes, which may be absurd, while they begin at or before `until`. Tells where the next
 * one begins, and before it the last and the one before that.
 *
 * Where a size stands is known by the one before it only, so that each would be waited for as long as memory takes: what
 * is ahead is asked for meanwhile. */
static void step_messages(const uint8_t *data, int64_t until, int64_t *at, int64_t *last, int64_t *before) {
    int64_t asked = *at;
    while (*at <= until) {
        for (asked = asked < *at ? *at : asked; asked <= until && asked < *at + AHEAD; asked += LINE)
            FETCH_LINE(data + asked);
        *before = *last;
        *last = *at;
        *at += UNIT_PREFIX + (int64_t)load32(data + *at + 8);
    }
}

/* Step over whole units until `*weight` is `most`. A compressed one weighs `expansion` times its size, or the part `doubt`
 * of what it says that it gives. */
static void step_units(
    const uint8_t *data, int64_t size, double most, double expansion, double doubt, int64_t *at, int64_t *last,
    double *weight, int64_t *expanded) {
    while (*at <= size - UNIT_HEAD && *weight < most) {
        const uint8_t *from = data + *at;
        const int64_t length = load32(from + 8), stop = *at + UNIT_PREFIX + length;
        const int codec = from[from[16] >= 2 ? 22 : 17] & CODEC_MASK;
        if (length < LEAST_UNIT || stop > size)
            return;
        if (codec) {
            const int64_t begin = payload_at(data, *at, stop);
            const int64_t said = begin <= stop ? expected_size(codec, data + begin, stop - begin) : UNKNOWN;
            double one, other;
            if (said == UNKNOWN)
                return;
            one = (double)length * expansion;
            other = (double)said / doubt;
            *weight += one >= other ? one : other;
            *expanded += said;
        } else {
            *weight += (double)length;
        }
        *last = *at;
        *at = stop;
    }
}

#endif
