// SPDX-License-Identifier: Apache-2.0
/* xxHash-32 with seed 0 (xxHash specification 0.1.1): the checksum of headers, blocks and content of LZ4 frames. */
#ifndef CONSUMERD_XXH32_H
#define CONSUMERD_XXH32_H

#include <stdint.h>

#define XXH32_PRIME_1 2654435761u
#define XXH32_PRIME_2 2246822519u
#define XXH32_PRIME_3 3266489917u
#define XXH32_PRIME_4 668265263u
#define XXH32_PRIME_5 374761393u
#define XXH32_STRIPE 16

static inline uint32_t xxh32_rotated(uint32_t value, int bits) {
    return value << bits | value >> (32 - bits);
}

static inline uint32_t xxh32_word(const uint8_t *at) {
    return (uint32_t)at[3] << 24 | (uint32_t)at[2] << 16 | (uint32_t)at[1] << 8 | at[0];
}

static inline uint32_t xxh32_lane(uint32_t lane, const uint8_t *at) {
    return xxh32_rotated(lane + xxh32_word(at) * XXH32_PRIME_2, 13) * XXH32_PRIME_1;
}

static inline uint32_t xxh32_of(const uint8_t *data, int64_t size) {
    const uint8_t *end = data + size;
    uint32_t value = XXH32_PRIME_5;
    if (size >= XXH32_STRIPE) {
        uint32_t first = XXH32_PRIME_1 + XXH32_PRIME_2, second = XXH32_PRIME_2, third = 0, fourth = 0 - XXH32_PRIME_1;
        for (; end - data >= XXH32_STRIPE; data += XXH32_STRIPE) {
            first = xxh32_lane(first, data);
            second = xxh32_lane(second, data + 4);
            third = xxh32_lane(third, data + 8);
            fourth = xxh32_lane(fourth, data + 12);
        }
        value = xxh32_rotated(first, 1) + xxh32_rotated(second, 7) + xxh32_rotated(third, 12) + xxh32_rotated(fourth, 18);
    }
    value += (uint32_t)size;
    for (; end - data >= 4; data += 4)
        value = xxh32_rotated(value + xxh32_word(data) * XXH32_PRIME_3, 17) * XXH32_PRIME_4;
    for (; data < end; data++)
        value = xxh32_rotated(value + *data * XXH32_PRIME_5, 11) * XXH32_PRIME_1;
    value = (value ^ value >> 15) * XXH32_PRIME_2;
    value = (value ^ value >> 13) * XXH32_PRIME_3;
    return value ^ value >> 16;
}

#endif
