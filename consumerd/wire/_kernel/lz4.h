// SPDX-License-Identifier: Apache-2.0
/* Decompression of LZ4 frames (LZ4 frame format 1.6.1, block format 2018), from Kafka's clients and others: blocks
 * of any valid size, compressed or not, linked or independent, with or without checksums and content size.
 *
 * For any input, only bytes in [in, in + in_size) are read, and only bytes in [out, out + room) are written. The
 * result is -1 for malformed frames, for dictionaries, and for what the format discourages but some libraries read:
 * empty blocks, and matches too near to a block's end. Bytes after the frame are ignored.
 */
#ifndef CONSUMERD_LZ4_H
#define CONSUMERD_LZ4_H

#include <stdint.h>
#include <string.h>

#include "xxh32.h"

#define LZ4_DECLINED -1
#define LZ4_MAGIC 0x184D2204u
#define LZ4_LEAST_HEADER 7
#define LZ4_VERSION_BITS 0xC0
#define LZ4_VERSION 0x40
#define LZ4_INDEPENDENT 0x20
#define LZ4_BLOCK_CHECKSUMS 0x10
#define LZ4_SAYS_SIZE 0x08
#define LZ4_CONTENT_CHECKSUM 0x04
#define LZ4_RESERVED_OR_DICTIONARY 0x03
#define LZ4_NOT_PACKED 0x80000000u
#define LZ4_MOST_RATIO 255 /* upper bound of a block's compression ratio */
#define LZ4_LEAST_MATCH 4
#define LZ4_LAST_LITERALS 5 /* least number of literals after a block's last match */
#define LZ4_LAST_MATCH 12   /* least distance of the last match's start from the block's end */
#define LZ4_WIDE 16
/* Limits of the fast path. Input: the longest sequence that it reads (a token, one further byte for each length,
 * literals, an offset), and 11 bytes after it, which make sure that the end-of-block rules hold. Output: the longest
 * output of such a sequence, and the bytes that may be overwritten after it. */
#define LZ4_FAST_LITERALS 32
#define LZ4_FAST_IN 48
#define LZ4_FAST_OUT (LZ4_FAST_LITERALS + LZ4_LEAST_MATCH + 15 + 254 + 2 * LZ4_WIDE)

#if defined(__GNUC__)
#define LZ4_LIKELY(x) __builtin_expect(!!(x), 1)
#else
#define LZ4_LIKELY(x) (x)
#endif

static inline void lz4_copy_wide(uint8_t *to, const uint8_t *from) {
    uint8_t bytes[LZ4_WIDE];
    memcpy(bytes, from, LZ4_WIDE);
    memcpy(to, bytes, LZ4_WIDE);
}

/* Copy an overlapping match with an offset below LZ4_WIDE. May overwrite LZ4_WIDE bytes after it. */
static inline void lz4_repeat(uint8_t *to, int64_t offset, int64_t length) {
    uint8_t pattern[LZ4_WIDE];
    for (int64_t at = 0, from = 0; at < LZ4_WIDE; at++) {
        pattern[at] = to[from - offset];
        from = from + 1 == offset ? 0 : from + 1;
    }
    const int64_t step = LZ4_WIDE / offset * offset;
    for (int64_t done = 0; done < length; done += step)
        memcpy(to + done, pattern, LZ4_WIDE);
}

/* Copy a match, which may overlap with `to`. May overwrite 2 * LZ4_WIDE bytes after it. */
static inline void lz4_copy_back(uint8_t *to, int64_t offset, int64_t length) {
    if (!LZ4_LIKELY(offset >= LZ4_WIDE)) {
        lz4_repeat(to, offset, length);
        return;
    }
    const uint8_t *from = to - offset;
    lz4_copy_wide(to, from);
    lz4_copy_wide(to + LZ4_WIDE, from + LZ4_WIDE);
    for (int64_t done = 2 * LZ4_WIDE; done < length; done += LZ4_WIDE)
        lz4_copy_wide(to + done, from + done);
}

/* Add the length bytes that follow a length of 15; returns the position after them, or NULL if the block ends
 * before. */
static inline const uint8_t *lz4_read_length(const uint8_t *in, const uint8_t *end, int64_t *length) {
    while (in < end) {
        *length += *in;
        if (*in++ != 255)
            return in;
    }
    return NULL;
}

/* Decompress a block, whose matches may reach back to `base`; returns its size, at most `room`, or LZ4_DECLINED. */
static inline int64_t lz4_block(const uint8_t *in, int64_t in_size, const uint8_t *base, uint8_t *out, int64_t room) {
    const uint8_t *end = in + in_size, *match_at = NULL;
    uint8_t *to = out, *to_end = out + room;
    for (;;) {
        /* fast path: far enough from both ends, so that only the rules that do not follow from that are checked */
        while (end - in >= LZ4_FAST_IN && to_end - to >= LZ4_FAST_OUT) {
            const unsigned token = *in;
            const uint8_t *from = in + 1;
            int64_t literals = token >> 4, length = token & 15;
            lz4_copy_wide(to, from);
            if (!LZ4_LIKELY(literals != 15)) {
                literals += *from++;
                if (literals > LZ4_FAST_LITERALS)
                    break;
                lz4_copy_wide(to, from);
                lz4_copy_wide(to + LZ4_WIDE, from + LZ4_WIDE);
            }
            from += literals;
            const int64_t offset = from[0] | from[1] << 8;
            from += 2;
            if (!LZ4_LIKELY(length != 15)) {
                if (*from == 255)
                    break;
                length += *from++;
            }
            if (!LZ4_LIKELY(offset != 0 && offset <= to + literals - base))
                break;
            in = from;
            to += literals;
            length += LZ4_LEAST_MATCH;
            lz4_copy_back(to, offset, length);
            to += length;
        }
        if (in == end)
            return LZ4_DECLINED;
        const unsigned token = *in++;
        int64_t literals = token >> 4, length = token & 15;
        if (literals == 15 && (in = lz4_read_length(in, end, &literals)) == NULL)
            return LZ4_DECLINED;
        if (literals > end - in || literals > to_end - to)
            return LZ4_DECLINED;
        memcpy(to, in, (size_t)literals);
        in += literals;
        to += literals;
        if (in == end) {
            const int is_sound = match_at == NULL || (literals >= LZ4_LAST_LITERALS && to - match_at >= LZ4_LAST_MATCH);
            return is_sound ? to - out : LZ4_DECLINED;
        }
        if (end - in < 2)
            return LZ4_DECLINED;
        const int64_t offset = in[0] | in[1] << 8;
        in += 2;
        if (length == 15 && (in = lz4_read_length(in, end, &length)) == NULL)
            return LZ4_DECLINED;
        length += LZ4_LEAST_MATCH;
        if (offset == 0 || offset > to - base || length > to_end - to)
            return LZ4_DECLINED;
        match_at = to;
        if (to_end - to - length >= 2 * LZ4_WIDE)
            lz4_copy_back(to, offset, length);
        else
            for (int64_t byte = 0; byte < length; byte++)
                to[byte] = to[byte - offset];
        to += length;
    }
}

/* The header of a frame. */
typedef struct {
    int64_t begin, block_bytes, content_size; /* position of the first block; maximum block size; -1 if not declared */
    int flags;
} lz4_frame;

/* Read the header of a frame; returns whether it is valid. With `any_checksum` its checksum is not verified. */
static inline int lz4_read_header(const uint8_t *in, int64_t in_size, int any_checksum, lz4_frame *frame) {
    if (in_size < LZ4_LEAST_HEADER || xxh32_word(in) != LZ4_MAGIC)
        return 0;
    const int flags = in[4], step = in[5] >> 4;
    if ((flags & LZ4_VERSION_BITS) != LZ4_VERSION || flags & LZ4_RESERVED_OR_DICTIONARY || in[5] & 0x0F || step < 4 || step > 7)
        return 0;
    const int64_t checksum_at = flags & LZ4_SAYS_SIZE ? 14 : 6;
    if (in_size <= checksum_at)
        return 0;
    if (!any_checksum && (xxh32_of(in + 4, checksum_at - 4) >> 8 & 0xFF) != in[checksum_at])
        return 0;
    frame->flags = flags;
    frame->begin = checksum_at + 1;
    frame->block_bytes = (int64_t)256 << 2 * step;
    frame->content_size = -1;
    if (flags & LZ4_SAYS_SIZE) {
        const uint64_t size = (uint64_t)xxh32_word(in + 10) << 32 | xxh32_word(in + 6);
        if (size > INT64_MAX)
            return 0;
        frame->content_size = (int64_t)size;
    }
    return 1;
}

/* Read the header of the block at `*at`, which is advanced; returns its length, 0 at the end of the frame, and sets
 * `*is_packed` to whether it is compressed. Returns LZ4_DECLINED for a block that is truncated, empty or too large. */
static inline int64_t lz4_block_length(
    const uint8_t *in, int64_t in_size, const lz4_frame *frame, int64_t *at, int *is_packed) {
    if (in_size - *at < 4)
        return LZ4_DECLINED;
    const uint32_t word = xxh32_word(in + *at);
    *at += 4;
    if (word == 0)
        return 0;
    const int64_t length = word & ~LZ4_NOT_PACKED;
    *is_packed = length == word;
    if (length == 0 || length > frame->block_bytes)
        return LZ4_DECLINED;
    return in_size - *at >= length + (frame->flags & LZ4_BLOCK_CHECKSUMS ? 4 : 0) ? length : LZ4_DECLINED;
}

/* Return an upper bound of a frame's decompressed size: the declared one, or what its blocks can hold; or
 * LZ4_DECLINED. */
static inline int64_t lz4_most(const uint8_t *in, int64_t in_size, int any_checksum) {
    lz4_frame frame;
    int64_t most = 0, length, at;
    int is_packed = 0;
    if (!lz4_read_header(in, in_size, any_checksum, &frame))
        return LZ4_DECLINED;
    for (at = frame.begin; (length = lz4_block_length(in, in_size, &frame, &at, &is_packed)) > 0;) {
        const int64_t packed_most = length * LZ4_MOST_RATIO < frame.block_bytes ? length * LZ4_MOST_RATIO : frame.block_bytes;
        most += is_packed ? packed_most : length;
        at += length + (frame.flags & LZ4_BLOCK_CHECKSUMS ? 4 : 0);
    }
    if (length < 0 || frame.content_size > most)
        return LZ4_DECLINED;
    return frame.content_size < 0 ? most : frame.content_size;
}

/* Decompress a frame; returns its size, at most room, or LZ4_DECLINED. */
static inline int64_t lz4_decompress(const uint8_t *in, int64_t in_size, int any_checksum, uint8_t *out, int64_t room) {
    lz4_frame frame;
    int64_t size = 0, length, at;
    int is_packed = 0;
    if (!lz4_read_header(in, in_size, any_checksum, &frame))
        return LZ4_DECLINED;
    for (at = frame.begin; (length = lz4_block_length(in, in_size, &frame, &at, &is_packed)) > 0; at += length) {
        int64_t given = length;
        if (is_packed)
            given = lz4_block(in + at, length, frame.flags & LZ4_INDEPENDENT ? out + size : out, out + size, room - size);
        else if (length <= room - size)
            memcpy(out + size, in + at, (size_t)length);
        else
            return LZ4_DECLINED;
        if (given <= 0 || given > frame.block_bytes)
            return LZ4_DECLINED;
        size += given;
        if (frame.flags & LZ4_BLOCK_CHECKSUMS) {
            if (xxh32_of(in + at, length) != xxh32_word(in + at + length))
                return LZ4_DECLINED;
            at += 4;
        }
    }
    if (length < 0 || (frame.content_size >= 0 && frame.content_size != size))
        return LZ4_DECLINED;
    if (frame.flags & LZ4_CONTENT_CHECKSUM && (in_size - at < 4 || xxh32_of(out, size) != xxh32_word(in + at)))
        return LZ4_DECLINED;
    return size;
}

#endif
