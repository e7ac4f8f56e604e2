// SPDX-License-Identifier: Apache-2.0
/* Decompression of snappy as Kafka's clients write it: a raw block (google/snappy, format_description.txt), or
 * blocks in the framing of xerial/snappy-java's SnappyOutputStream: 8 bytes of magic, two int32 versions, then an
 * int32 length before each block.
 *
 * For any input, only bytes in [in, in + in_size) are read, and only bytes in [out, out + room) are written. The
 * result is -1 for malformed input.
 */
#ifndef CONSUMERD_SNAPPY_H
#define CONSUMERD_SNAPPY_H

#include <stdint.h>
#include <string.h>

#define SNAPPY_DAMAGED -1
#define SNAPPY_MOST_BYTES 64 /* largest output of an element, which takes three bytes */
#define SNAPPY_HEADER_BYTES 16
#define SNAPPY_WIDE 16
#define SNAPPY_SLACK (SNAPPY_MOST_BYTES + SNAPPY_WIDE) /* bytes that a copy may overwrite after its end */

static const uint8_t snappy_magic[8] = {0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0};

static const uint32_t snappy_masks[4] = {0, 0xFF, 0xFFFF, 0xFFFFFFFF}; /* masks of a copy's offset, by kind */

static inline void snappy_copy_wide(uint8_t *to, const uint8_t *from) {
    uint8_t bytes[SNAPPY_WIDE];
    memcpy(bytes, from, SNAPPY_WIDE);
    memcpy(to, bytes, SNAPPY_WIDE);
}

/* Read the varint at the beginning of a block, its decompressed size; returns the varint's length, 0 if malformed. */
static inline int snappy_declared(const uint8_t *in, int64_t in_size, int64_t *declared) {
    uint64_t value = 0;
    for (int count = 0; count < 5 && count < in_size; count++) {
        value |= (uint64_t)(in[count] & 0x7F) << 7 * count;
        if (in[count] < 0x80) {
            *declared = (int64_t)value;
            return value <= UINT32_MAX ? count + 1 : 0;
        }
    }
    return 0;
}

/* Copy `length` bytes from `offset` before `to`; both may overlap. May overwrite SNAPPY_SLACK bytes after them. */
static inline void snappy_copy_back(uint8_t *to, int64_t offset, int64_t length) {
    if (offset >= SNAPPY_WIDE) {
        const uint8_t *from = to - offset;
        snappy_copy_wide(to, from);
        for (int64_t done = SNAPPY_WIDE; done < length; done += SNAPPY_WIDE)
            snappy_copy_wide(to + done, from + done);
        return;
    }
    uint8_t pattern[SNAPPY_WIDE];
    for (int64_t at = 0, from = 0; at < SNAPPY_WIDE; at++) {
        pattern[at] = to[from - offset];
        from = from + 1 == offset ? 0 : from + 1;
    }
    const int64_t step = SNAPPY_WIDE / offset * offset;
    for (int64_t done = 0; done < length; done += step)
        memcpy(to + done, pattern, SNAPPY_WIDE);
}

/* Decompress one block; returns its size, at most room, or SNAPPY_DAMAGED. */
static inline int64_t snappy_block(const uint8_t *in, int64_t in_size, uint8_t *out, int64_t room) {
    int64_t declared;
    const int prefix = snappy_declared(in, in_size, &declared);
    if (!prefix || declared > room || declared > in_size * SNAPPY_MOST_BYTES)
        return SNAPPY_DAMAGED;
    const uint8_t *end = in + in_size;
    in += prefix;
    int64_t at = 0;
    while (in < end) {
        const unsigned tag = *in++;
        int64_t length, offset;
        if ((tag & 3) == 0) {
            length = (tag >> 2) + 1;
            if (length <= SNAPPY_WIDE && end - in >= SNAPPY_WIDE && room - at >= SNAPPY_WIDE && length <= declared - at) {
                snappy_copy_wide(out + at, in);
                in += length;
                at += length;
                continue;
            }
            if (length > 60) {
                const int count = (int)length - 60;
                if (end - in < count)
                    return SNAPPY_DAMAGED;
                length = 0;
                for (int byte = 0; byte < count; byte++)
                    length |= (int64_t)in[byte] << 8 * byte;
                length += 1;
                in += count;
            }
            if (length > end - in || length > declared - at)
                return SNAPPY_DAMAGED;
            memcpy(out + at, in, (size_t)length);
            in += length;
            at += length;
            continue;
        }
        const int kind = tag & 3, behind = kind == 3 ? 4 : kind; /* bytes of the offset after the tag */
        uint32_t low = 0;
        if (end - in >= 4)
            low = (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
        else if (end - in >= behind)
            for (int byte = 0; byte < behind; byte++)
                low |= (uint32_t)in[byte] << 8 * byte;
        else
            return SNAPPY_DAMAGED;
        in += behind;
        /* without branches, since the kind of the next element cannot be predicted */
        offset = (low & snappy_masks[kind]) | (tag >> 5 << 8 & -(unsigned)(kind == 1));
        length = kind == 1 ? (tag >> 2 & 7) + 4 : (tag >> 2) + 1;
        if (offset == 0 || offset > at || length > declared - at)
            return SNAPPY_DAMAGED;
        if (room - at >= SNAPPY_SLACK)
            snappy_copy_back(out + at, offset, length);
        else
            for (int64_t byte = at; byte < at + length; byte++)
                out[byte] = out[byte - offset];
        at += length;
    }
    return at == declared ? at : SNAPPY_DAMAGED;
}

static inline int snappy_is_framed(const uint8_t *in, int64_t in_size) {
    return in_size >= 8 && memcmp(in, snappy_magic, 8) == 0;
}

/* Return the length of the framed block at `at`, or SNAPPY_DAMAGED if it is truncated. */
static inline int64_t snappy_block_length(const uint8_t *in, int64_t in_size, int64_t at) {
    if (in_size - at < 4)
        return SNAPPY_DAMAGED;
    const uint32_t length = (uint32_t)in[at] << 24 | (uint32_t)in[at + 1] << 16 | (uint32_t)in[at + 2] << 8 | in[at + 3];
    return length <= INT32_MAX && (int64_t)length <= in_size - at - 4 ? (int64_t)length : SNAPPY_DAMAGED;
}

/* Return the declared decompressed size, at most SNAPPY_MOST_BYTES per input byte; or SNAPPY_DAMAGED. */
static inline int64_t snappy_size(const uint8_t *in, int64_t in_size) {
    int64_t declared, length, size = 0;
    if (!snappy_is_framed(in, in_size))
        return snappy_declared(in, in_size, &declared) && declared <= in_size * SNAPPY_MOST_BYTES ? declared : SNAPPY_DAMAGED;
    if (in_size < SNAPPY_HEADER_BYTES)
        return SNAPPY_DAMAGED;
    for (int64_t at = SNAPPY_HEADER_BYTES; at < in_size; at += 4 + length) {
        length = snappy_block_length(in, in_size, at);
        if (length < 0 || !snappy_declared(in + at + 4, length, &declared) || declared > length * SNAPPY_MOST_BYTES)
            return SNAPPY_DAMAGED;
        size += declared;
    }
    return size;
}

/* Decompress a raw block or all framed blocks; returns the size, at most `room`, or SNAPPY_DAMAGED. */
static inline int64_t snappy_decompress(const uint8_t *in, int64_t in_size, uint8_t *out, int64_t room) {
    if (!snappy_is_framed(in, in_size))
        return snappy_block(in, in_size, out, room);
    if (in_size < SNAPPY_HEADER_BYTES)
        return SNAPPY_DAMAGED;
    int64_t size = 0, length;
    for (int64_t at = SNAPPY_HEADER_BYTES; at < in_size; at += 4 + length) {
        length = snappy_block_length(in, in_size, at);
        const int64_t given = length < 0 ? SNAPPY_DAMAGED : snappy_block(in + at + 4, length, out + size, room - size);
        if (given < 0)
            return SNAPPY_DAMAGED;
        size += given;
    }
    return size;
}

#endif
