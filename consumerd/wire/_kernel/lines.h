// SPDX-License-Identifier: Apache-2.0
/* Encoding of bytes as JSON strings (RFC 8259, section 7), or as base64 (RFC 4648, section 4) if they are not UTF-8.
 *
 * Escapes are those of Python's json.encoder.encode_basestring: quotation mark, backslash, and control characters.
 * UTF-8 is as strict as in Python's decoder (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
 *
 * Functions that write return the end of their output, but may overwrite up to LINES_SLACK bytes after it.
 */
#ifndef CONSUMERD_LINES_H
#define CONSUMERD_LINES_H

#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define LINES_SLACK 32
#define LINES_MOST_PER_BYTE 6 /* \u001f */

typedef struct {
    uint8_t text[7];
    uint8_t length;
} lines_escape;

#define U(low) {"\\u00" low, 6}
static const lines_escape lines_escapes[32] = {
    U("00"), U("01"), U("02"), U("03"), U("04"), U("05"), U("06"), U("07"),
    {"\\b", 2}, {"\\t", 2}, {"\\n", 2}, U("0b"), {"\\f", 2}, {"\\r", 2}, U("0e"), U("0f"),
    U("10"), U("11"), U("12"), U("13"), U("14"), U("15"), U("16"), U("17"),
    U("18"), U("19"), U("1a"), U("1b"), U("1c"), U("1d"), U("1e"), U("1f"),
};
#undef U

static inline int lines_is_plain(uint8_t byte) {
    return byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\';
}

/* Return the length of the UTF-8 sequence at `at`, whose first byte is 0x80 or more; 0 if it is invalid. */
static inline size_t lines_sequence(const uint8_t *at, const uint8_t *end) {
    uint8_t first = at[0];
    size_t left = (size_t)(end - at);
    if (first < 0xc2) return 0;
    if (first < 0xe0) return left >= 2 && (at[1] & 0xc0) == 0x80 ? 2 : 0;
    if (first < 0xf0) {
        if (left < 3 || (at[1] & 0xc0) != 0x80 || (at[2] & 0xc0) != 0x80) return 0;
        if ((first == 0xe0 && at[1] < 0xa0) || (first == 0xed && at[1] > 0x9f)) return 0;
        return 3;
    }
    if (first > 0xf4 || left < 4) return 0;
    if ((at[1] & 0xc0) != 0x80 || (at[2] & 0xc0) != 0x80 || (at[3] & 0xc0) != 0x80) return 0;
    if ((first == 0xf0 && at[1] < 0x90) || (first == 0xf4 && at[1] > 0x8f)) return 0;
    return 4;
}

#if defined(__SSE2__)
/* Return a mask of the bytes, out of 16, that are not plain. */
static inline unsigned lines_not_plain(__m128i block) {
    __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(block, _mm_set1_epi8(0x1f)), block);
    __m128i quote = _mm_cmpeq_epi8(block, _mm_set1_epi8('"'));
    __m128i backslash = _mm_cmpeq_epi8(block, _mm_set1_epi8('\\'));
    __m128i marked = _mm_or_si128(_mm_or_si128(control, block), _mm_or_si128(quote, backslash));
    return (unsigned)_mm_movemask_epi8(marked);
}
#endif

/* Copy plain bytes from `*at` up to `end`. Reads 16 bytes at a time, beyond `end` too, but only below `limit`. */
static inline uint8_t *lines_copy_plain(uint8_t *out, const uint8_t **at, const uint8_t *end, const uint8_t *limit) {
    const uint8_t *from = *at;
#if defined(__SSE2__)
    while (limit - from >= 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)from);
        unsigned marks = lines_not_plain(block);
        size_t left = (size_t)(end - from), count = marks ? (size_t)__builtin_ctz(marks) : 16;
        _mm_storeu_si128((__m128i *)out, block);
        if (count > left) count = left;
        out += count;
        from += count;
        if (count < 16) {
            *at = from;
            return out;
        }
    }
#endif
    while (from < end && lines_is_plain(*from)) *out++ = *from++;
    *at = from;
    return out;
}

/* Write a JSON string without quotation marks; returns NULL if the bytes are not UTF-8. */
static inline uint8_t *lines_text(uint8_t *out, const uint8_t *at, const uint8_t *end, const uint8_t *limit) {
    for (;;) {
        uint8_t byte;
        out = lines_copy_plain(out, &at, end, limit);
        if (at >= end) return out;
        byte = *at;
        if (byte >= 0x80) {
            do {
                size_t length = lines_sequence(at, end), i;
                if (!length) return NULL;
                for (i = 0; i < length; i++) *out++ = *at++;
            } while (at < end && *at >= 0x80);
        } else if (byte >= 0x20) {
            *out++ = '\\';
            *out++ = byte;
            at++;
        } else if (!lines_is_plain(byte)) {
            memcpy(out, lines_escapes[byte].text, 7);
            out += lines_escapes[byte].length;
            at++;
        }
    }
}

/* Return the size of what lines_text writes; -1 if the bytes are not UTF-8. */
static inline int64_t lines_text_size(const uint8_t *at, const uint8_t *end) {
    int64_t size = 0;
    while (at < end) {
        uint8_t byte = *at;
        if (byte >= 0x80) {
            size_t length = lines_sequence(at, end);
            if (!length) return -1;
            size += (int64_t)length;
            at += length;
        } else {
            size += byte < 0x20 ? lines_escapes[byte].length : lines_is_plain(byte) ? 1 : 2;
            at++;
        }
    }
    return size;
}

static inline int64_t lines_base64_size(int64_t size) {
    return (size / 3 + (size % 3 != 0)) * 4;
}

static inline uint8_t *lines_base64(uint8_t *out, const uint8_t *at, const uint8_t *end) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (; end - at >= 3; at += 3) {
        uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 8 | at[2];
        *out++ = (uint8_t)digits[bits >> 18];
        *out++ = (uint8_t)digits[bits >> 12 & 63];
        *out++ = (uint8_t)digits[bits >> 6 & 63];
        *out++ = (uint8_t)digits[bits & 63];
    }
    if (at < end) {
        uint32_t bits = (uint32_t)at[0] << 16 | (end - at == 2 ? (uint32_t)at[1] << 8 : 0);
        *out++ = (uint8_t)digits[bits >> 18];
        *out++ = (uint8_t)digits[bits >> 12 & 63];
        *out++ = end - at == 2 ? (uint8_t)digits[bits >> 6 & 63] : '=';
        *out++ = '=';
    }
    return out;
}

/* Write a decimal number of at most 20 characters. */
static inline uint8_t *lines_number(uint8_t *out, int64_t value) {
    static const char pairs[] =
        "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
        "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
    uint8_t digits[20], *at = digits + sizeof digits;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    size_t length;
    while (rest >= 100) {
        at -= 2;
        memcpy(at, pairs + 2 * (rest % 100), 2);
        rest /= 100;
    }
    if (rest >= 10) {
        at -= 2;
        memcpy(at, pairs + 2 * rest, 2);
    } else {
        *--at = (uint8_t)('0' + rest);
    }
    if (value < 0) *out++ = '-';
    length = (size_t)(digits + sizeof digits - at);
    memcpy(out, at, length);
    return out + length;
}

/* Kinds of a field's bytes. */
enum { LINES_UNKNOWN, LINES_TEXT, LINES_BINARY };

/* Write  "<name>":"<text>"  or  "<name>_base64":"<digits>"  or  "<name>":null  for a negative start. */
static inline uint8_t *lines_field(
    uint8_t *out, const char *name, size_t name_length, const uint8_t *buffer, int64_t limit, int64_t start, int64_t end, int kind
) {
    uint8_t *behind_name, *written = NULL;
    *out++ = '"';
    memcpy(out, name, name_length);
    out += name_length;
    if (start < 0) {
        memcpy(out, "\":null", 6);
        return out + 6;
    }
    behind_name = out;
    if (kind != LINES_BINARY) {
        memcpy(behind_name, "\":\"", 3);
        written = lines_text(behind_name + 3, buffer + start, buffer + end, buffer + limit);
    }
    if (written == NULL) {
        memcpy(behind_name, "_base64\":\"", 10);
        written = lines_base64(behind_name + 10, buffer + start, buffer + end);
    }
    *written++ = '"';
    return written;
}

#define LINES_FIELD_FRAME 32 /* name, quotation marks and colon, or null */

/* Return an upper bound of what lines_field writes, from the length alone. */
static inline int64_t lines_field_most(int64_t start, int64_t end) {
    return LINES_FIELD_FRAME + (start < 0 ? 0 : LINES_MOST_PER_BYTE * (end - start));
}

/* Return an upper bound of what lines_field writes, exact except for the frame; also sets the kind of the bytes. */
static inline int64_t lines_field_size(const uint8_t *buffer, int64_t start, int64_t end, int *kind) {
    int64_t size;
    if (start < 0) return LINES_FIELD_FRAME;
    size = lines_text_size(buffer + start, buffer + end);
    *kind = size < 0 ? LINES_BINARY : LINES_TEXT;
    return LINES_FIELD_FRAME + (size < 0 ? lines_base64_size(end - start) : size);
}

#endif
