// SPDX-License-Identifier: Apache-2.0
/* Fields of fixed size, and codecs, in messages and batches of all generations of Kafka. */
#ifndef CONSUMERD_FIELDS_H
#define CONSUMERD_FIELDS_H

#include <stdint.h>

#define LINE 64
#define AHEAD 2048 /* distance of prefetching, in bytes */

#if defined(__GNUC__)
#define FETCH_LINE(address) __builtin_prefetch(address)
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#else
#define FETCH_LINE(address) ((void)(address))
#define LIKELY(x) (x)
#define ALWAYS_INLINE static inline
#endif

#define CODEC_MASK 0x07
#define CODEC_NONE 0
#define CODEC_GZIP 1
#define CODEC_SNAPPY 2
#define CODEC_LZ4 3

ALWAYS_INLINE uint32_t load32(const uint8_t *data) {
    return (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 | data[3];
}

ALWAYS_INLINE int64_t load64(const uint8_t *data) {
    return (int64_t)((uint64_t)load32(data) << 32 | load32(data + 4));
}

ALWAYS_INLINE uint32_t load32_little(const uint8_t *data) {
    return (uint32_t)data[3] << 24 | (uint32_t)data[2] << 16 | (uint32_t)data[1] << 8 | data[0];
}

/* Prefetch the cache lines of [at, at + AHEAD), those before `asked` excepted; returns the new `asked`.
 *
 * For steps over messages by their sizes. The position of a size depends on the one before it, so each step would wait
 * for main memory. */
ALWAYS_INLINE int64_t fetch_lines(const uint8_t *data, int64_t asked, int64_t at, int64_t end) {
    for (asked = asked < at ? at : asked; asked < end && asked < at + AHEAD; asked += LINE)
        FETCH_LINE(data + asked);
    return asked;
}

#endif
