// SPDX-License-Identifier: Apache-2.0
/* LZ4 frames (LZ4 frame format 1.6.1, block format 2018) as Kafka's clients write them, and as others do: blocks of any
 * legal size, packed or not, linked or independent, with or without their checksums, the content's, and its size.
 *
 * No byte outside [in, in + in_size) is read and none outside [out, out + room) written, whatever the bytes say. What is
 * not sound to the last byte gives -1; so do dictionaries, and whatever the format advises against but libraries may read:
 * empty blocks, matches too near to a block's end. What follows the frame is not looked at.
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
#define LZ4_MOST_RATIO 255 /* more than that no block gives for each of its bytes */
#define LZ4_LEAST_MATCH 4
#define LZ4_LAST_LITERALS 5 /* that a block ends with at least, behind a match */
#define LZ4_LAST_MATCH 12   /* bytes before a block's end that its last match begins at least */
#define LZ4_WIDE 16
/* What a sequence that is read fast takes at most (a token, a byte more for each length, literals, an offset), and 11 bytes
 * behind it: a last sequence of so many is one that the format allows; and what it gives, with what is written behind. */
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

/* Repeat what stands at most LZ4_WIDE - 1 bytes before `to`, where LZ4_WIDE bytes may be written behind. */
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

/* Copy from offset before `to`, which may overlap, where 2 * LZ4_WIDE bytes may be written behind. */
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

/* Add to a length of 15 the bytes that follow it; returns the place behind them, NULL where the block ends before. */
static inline const uint8_t *lz4_read_length(const uint8_t *in, const uint8_t *end, int64_t *length) {
    while (in < end) {
        *length += *in;
        if (*in++ != 255)
            return in;
    }
    return NULL;
}

/* Decompress a block to `out`, whose matches reach back to `base`; returns its size, at most `room`, or LZ4_DECLINED. */
static inline int64_t lz4_block(const uint8_t *in, int64_t in_size, const uint8_t *base, uint8_t *out, int64_t room) {
    const uint8_t *end = in + in_size, *match_at = NULL;
    uint8_t *to = out, *to_end = out + room;
    for (;;) {
        /* most sequences are short, and neither end is near: nothing is checked but what that does not say */
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

/* What a frame's header says. */
typedef struct {
    int64_t begin, block_bytes, content_size; /* where its blocks begin; most that one gives; -1 where it is not said */
    int flags;
} lz4_frame;

/* Read the header of a frame; tells whether it is sound, or else only `any_checksum` would be wrong with it. */
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

/* Read the head of the block at `at`, which is moved behind it; tells its length, 0 at the frame's end, and whether it is
 * packed. LZ4_DECLINED unless it is there as a whole with its checksum, is not empty, and not larger than blocks may be. */
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

/* Return the most that a frame gives by its own account, and no more than its blocks can give; or LZ4_DECLINED. */
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
