// SPDX-License-Identifier: Apache-2.0
/* CRC-32 (IEEE 802.3, reflected, polynomial 0xEDB88320), also fast for short input.
 *
 * With carry-less multiplication (PCLMULQDQ), 16 bytes at a time are folded; source of method and constants: Gopal
 * et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009. Otherwise sixteen
 * tables process 16 bytes at a time (slicing). crc32_setup chooses when the module is loaded; it must be called
 * before anything else.
 */
#ifndef CONSUMERD_CRC32_H
#define CONSUMERD_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define CRC32_FOLDS 1
#include <immintrin.h>
#endif

static uint32_t crc32_tables[16][256];
static int crc32_folds;

/* Fill the tables; returns whether the processor supports folding. */
static int crc32_setup(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
        crc32_tables[0][byte] = value;
    }
    for (int table = 1; table < 16; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t value = crc32_tables[table - 1][byte];
            crc32_tables[table][byte] = value >> 8 ^ crc32_tables[0][value & 0xFF];
        }
#ifdef CRC32_FOLDS
    __builtin_cpu_init();
    crc32_folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
    return crc32_folds;
}

/* Advance a CRC register over size bytes with the tables. The caller inverts the register before and after. */
static uint32_t crc32_slice(uint32_t state, const uint8_t *data, size_t size) {
    for (; size >= 16; data += 16, size -= 16) {
        state ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        uint32_t next = crc32_tables[15][state & 0xFF] ^ crc32_tables[14][state >> 8 & 0xFF] ^
                        crc32_tables[13][state >> 16 & 0xFF] ^ crc32_tables[12][state >> 24];
        for (int at = 4; at < 16; at++)
            next ^= crc32_tables[15 - at][data[at]];
        state = next;
    }
    if (size >= 8) {
        state ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        state = crc32_tables[7][state & 0xFF] ^ crc32_tables[6][state >> 8 & 0xFF] ^
                crc32_tables[5][state >> 16 & 0xFF] ^ crc32_tables[4][state >> 24] ^ crc32_tables[3][data[4]] ^
                crc32_tables[2][data[5]] ^ crc32_tables[1][data[6]] ^ crc32_tables[0][data[7]];
        data += 8;
        size -= 8;
    }
    for (; size; data++, size--)
        state = state >> 8 ^ crc32_tables[0][(state ^ *data) & 0xFF];
    return state;
}

#ifdef CRC32_FOLDS

/* Shuffle masks that move a register's bytes up by 16 - n places (from index n), or down by n places (from n + 16). */
static const uint8_t crc32_moves[48] = {
    0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
    0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15,
    0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
};

#define CRC32_TARGET __attribute__((target("pclmul,sse4.1")))

CRC32_TARGET static inline __m128i crc32_load(const uint8_t *data) {
    return _mm_loadu_si128((const __m128i *)data);
}

/* Advance x by the distance of the multipliers, and add the data there. */
CRC32_TARGET static inline __m128i crc32_fold(__m128i x, __m128i multipliers, __m128i data) {
    __m128i low = _mm_clmulepi64_si128(x, multipliers, 0x00);
    __m128i high = _mm_clmulepi64_si128(x, multipliers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

/* The same as crc32_slice for at least 16 bytes. */
CRC32_TARGET static uint32_t crc32_fold_all(uint32_t state, const uint8_t *data, size_t size) {
    const __m128i by_4 = _mm_set_epi64x(0x01C6E41596, 0x0154442BD4);
    const __m128i by_1 = _mm_set_epi64x(0x00CCAA009E, 0x01751997D0);
    __m128i x = _mm_xor_si128(crc32_load(data), _mm_cvtsi32_si128((int)state));
    const uint8_t *end = data + size;
    data += 16;
    if (size >= 128) {
        __m128i x1 = crc32_load(data), x2 = crc32_load(data + 16), x3 = crc32_load(data + 32);
        for (data += 48; end - data >= 64; data += 64) {
            x = crc32_fold(x, by_4, crc32_load(data));
            x1 = crc32_fold(x1, by_4, crc32_load(data + 16));
            x2 = crc32_fold(x2, by_4, crc32_load(data + 32));
            x3 = crc32_fold(x3, by_4, crc32_load(data + 48));
        }
        x = crc32_fold(x, by_1, x1);
        x = crc32_fold(x, by_1, x2);
        x = crc32_fold(x, by_1, x3);
    }
    for (; end - data >= 16; data += 16)
        x = crc32_fold(x, by_1, crc32_load(data));
    if (data < end) {
        /* n bytes are left: the first n bytes of x are advanced by 16, and added to the rest of x with the n bytes. */
        size_t left = (size_t)(end - data);
        __m128i up = crc32_load(crc32_moves + left), down = crc32_load(crc32_moves + left + 16);
        __m128i last = _mm_blendv_epi8(_mm_shuffle_epi8(x, down), crc32_load(end - 16), down);
        x = crc32_fold(_mm_shuffle_epi8(x, up), by_1, last);
    }
    /* from 128 bits to 64, to 32, as in the paper */
    const __m128i words = _mm_setr_epi32(-1, 0, -1, 0);
    x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, by_1, 0x10));
    __m128i rest = _mm_srli_si128(x, 4);
    x = _mm_clmulepi64_si128(_mm_and_si128(x, words), _mm_set_epi64x(0, 0x0163CD6124), 0x00);
    x = _mm_xor_si128(x, rest);
    const __m128i barrett = _mm_set_epi64x(0x01F7011641, 0x01DB710641);
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(x, words), barrett, 0x10);
    quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, words), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x, quotient), 1);
}

#endif

/* The CRC-32 of size bytes. */
static inline uint32_t crc32_of(const uint8_t *data, size_t size) {
#ifdef CRC32_FOLDS
    if (crc32_folds && size >= 16)
        return ~crc32_fold_all(0xFFFFFFFFu, data, size);
#endif
    return ~crc32_slice(0xFFFFFFFFu, data, size);
}

#endif
