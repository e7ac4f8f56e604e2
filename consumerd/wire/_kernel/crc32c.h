// SPDX-License-Identifier: Apache-2.0
/* CRC-32C (Castagnoli; RFC 3720, B.4), reflected. The implementation is chosen once, at run time.
 *
 * - x86 with SSE 4.2 and PCLMULQDQ: the crc32 instruction accepts 8 bytes per cycle, but has a latency of three
 *   cycles. So three stretches are processed in parallel and then combined. A register followed by n more bytes has
 *   to be multiplied by x^(8n) modulo the polynomial. That is one carry-less multiplication by x^(8n-33), whose
 *   64-bit product is passed to the next crc32 instruction together with its data. (33, because that instruction
 *   multiplies by x^32, and a reflected product is shifted by one bit.)
 * - ARMv8 with CRC instructions: one stretch.
 * - Otherwise: eight tables.
 */
#ifndef CONSUMERD_CRC32C_H
#define CONSUMERD_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define CRC32C_X86 1
#include <immintrin.h>
#elif defined(__aarch64__) && !defined(__AARCH64EB__) && defined(__GNUC__) && defined(__linux__)
#define CRC32C_ARM 1  /* little-endian only: the instruction processes the lowest byte of a word first */
#include <sys/auxv.h>
#endif

#define CRC32C_POLYNOMIAL 0x82F63B78u

static uint32_t crc32c_tables[8][256];

static uint32_t crc32c_by_table(uint32_t crc, const uint8_t *data, size_t size) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (size >= 8) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + 4, 4);
        low ^= crc;
        crc = crc32c_tables[7][low & 0xFF] ^ crc32c_tables[6][low >> 8 & 0xFF] ^ crc32c_tables[5][low >> 16 & 0xFF] ^
              crc32c_tables[4][low >> 24] ^ crc32c_tables[3][high & 0xFF] ^ crc32c_tables[2][high >> 8 & 0xFF] ^
              crc32c_tables[1][high >> 16 & 0xFF] ^ crc32c_tables[0][high >> 24];
        data += 8;
        size -= 8;
    }
#endif
    while (size--)
        crc = crc >> 8 ^ crc32c_tables[0][(crc ^ *data++) & 0xFF];
    return crc;
}

#ifdef CRC32C_X86
#define CRC32C_LONG 1360  /* a third of a chunk of 4080 bytes: batches of 16 KiB are four of them */
#define CRC32C_SHORT 168  /* a third of 504 */

static uint64_t crc32c_long_once, crc32c_long_twice, crc32c_short_once, crc32c_short_twice;

/* Return x^bits modulo the polynomial, reflected. */
static uint64_t crc32c_power(size_t bits) {
    uint32_t power = 0x80000000u;
    while (bits--)
        power = power >> 1 ^ (power & 1 ? CRC32C_POLYNOMIAL : 0);
    return power;
}

static inline __attribute__((target("sse4.2"))) uint64_t crc32c_word(uint64_t crc, const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, 8);
    return _mm_crc32_u64(crc, word);
}

/* Process three stretches of `third` bytes; `once` and `twice` are x^(8n-33) for n = third and n = 2 * third. */
static inline __attribute__((target("sse4.2,pclmul"))) uint32_t crc32c_thirds(
    uint32_t crc, const uint8_t *data, size_t third, uint64_t once, uint64_t twice) {
    uint64_t one = crc, two = 0, three = 0, last;
    __m128i shifted;
    size_t at;
    for (at = 0; at < third - 8; at += 8) {
        one = crc32c_word(one, data + at);
        two = crc32c_word(two, data + third + at);
        three = crc32c_word(three, data + 2 * third + at);
    }
    one = crc32c_word(one, data + at);
    two = crc32c_word(two, data + third + at);
    memcpy(&last, data + 2 * third + at, 8);
    shifted = _mm_xor_si128(
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)one), _mm_cvtsi64_si128((long long)twice), 0),
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)two), _mm_cvtsi64_si128((long long)once), 0));
    return (uint32_t)_mm_crc32_u64(three, last ^ (uint64_t)_mm_cvtsi128_si64(shifted));
}

static __attribute__((target("sse4.2,pclmul"))) uint32_t crc32c_by_sse(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t rest;
    while (size >= 3 * CRC32C_LONG) {
        crc = crc32c_thirds(crc, data, CRC32C_LONG, crc32c_long_once, crc32c_long_twice);
        data += 3 * CRC32C_LONG;
        size -= 3 * CRC32C_LONG;
    }
    while (size >= 3 * CRC32C_SHORT) {
        crc = crc32c_thirds(crc, data, CRC32C_SHORT, crc32c_short_once, crc32c_short_twice);
        data += 3 * CRC32C_SHORT;
        size -= 3 * CRC32C_SHORT;
    }
    rest = crc;
    while (size >= 8) {
        rest = crc32c_word(rest, data);
        data += 8;
        size -= 8;
    }
    while (size--)
        rest = _mm_crc32_u8((uint32_t)rest, *data++);
    return (uint32_t)rest;
}
#endif

#ifdef CRC32C_ARM
static uint32_t crc32c_by_armv8(uint32_t crc, const uint8_t *data, size_t size) {
    while (size >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
        data += 8;
        size -= 8;
    }
    while (size--) {
        uint32_t byte = *data++;
        __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
    }
    return crc;
}
#endif

static uint32_t (*crc32c_chosen)(uint32_t, const uint8_t *, size_t) = crc32c_by_table;

/* Fill the tables and choose an implementation; returns its name. Must be called before anything else. */
static const char *crc32c_choose(void) {
    uint32_t byte, crc;
    int bit, table;
    for (byte = 0; byte < 256; byte++) {
        crc = byte;
        for (bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
        crc32c_tables[0][byte] = crc;
    }
    for (table = 1; table < 8; table++)
        for (byte = 0; byte < 256; byte++) {
            crc = crc32c_tables[table - 1][byte];
            crc32c_tables[table][byte] = crc >> 8 ^ crc32c_tables[0][crc & 0xFF];
        }
#ifdef CRC32C_X86
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        crc32c_long_once = crc32c_power(8 * CRC32C_LONG - 33);
        crc32c_long_twice = crc32c_power(16 * CRC32C_LONG - 33);
        crc32c_short_once = crc32c_power(8 * CRC32C_SHORT - 33);
        crc32c_short_twice = crc32c_power(16 * CRC32C_SHORT - 33);
        crc32c_chosen = crc32c_by_sse;
        return "sse4.2";
    }
#endif
#ifdef CRC32C_ARM
    if (getauxval(AT_HWCAP) & (1ul << 7)) {  /* HWCAP_CRC32 */
        crc32c_chosen = crc32c_by_armv8;
        return "armv8";
    }
#endif
    return "table";
}

static inline uint32_t crc32c_of(const uint8_t *data, size_t size) {
    return ~crc32c_chosen(0xFFFFFFFFu, data, size);
}

static inline uint32_t crc32c_of_by_table(const uint8_t *data, size_t size) {
    return ~crc32c_by_table(0xFFFFFFFFu, data, size);
}

#endif
