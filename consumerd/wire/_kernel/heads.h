// SPDX-License-Identifier: Apache-2.0
/* Headers of units of any magic: their sizes, and the decompressed sizes that they declare.
 *
 * Gives the same results as consumerd/wire/modern/slices.py. Malformed and unusual data is left to it.
 */
#ifndef CONSUMERD_HEADS_H
#define CONSUMERD_HEADS_H

#include "declared.h"
#include "records.h"

#define UNIT_PREFIX 12
#define UNIT_HEAD 26
#define LEAST_UNIT 14

/* Return the position of the compressed bytes of the unit in [at, end). */
static int64_t payload_at(const uint8_t *data, int64_t at, int64_t end) {
    int64_t key_at, key_length;
    if (data[at + 16] >= 2)
        return at + BATCH_HEAD;
    key_at = at + (data[at + 16] ? 26 : 18);
    key_length = key_at + 4 <= end ? (int32_t)load32(data + key_at) : 0;
    return key_at + 8 + (key_length > 0 ? key_length : 0);
}

/* Step over messages by their size fields, unchecked, while they begin at or before `until`. Sets the positions of
 * the next message, of the last one, and of the one before that. */
static void step_messages(const uint8_t *data, int64_t until, int64_t *at, int64_t *last, int64_t *before) {
    int64_t asked = *at;
    while (*at <= until) {
        asked = fetch_lines(data, asked, *at, until + 1);
        *before = *last;
        *last = *at;
        *at += UNIT_PREFIX + (int64_t)load32(data + *at + 8);
    }
}

/* Step over whole units until `*weight` reaches `most`. An uncompressed unit weighs its size. A compressed one weighs
 * `expansion` times its size, or its declared decompressed size divided by `doubt` if that is more. */
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
