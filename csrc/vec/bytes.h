/* 64 bytes of a boolean mask as the bits of a word, with what every CPU of its kind has:
 * SSE2, NEON or plain C. */
#ifndef ATTN_VEC_BYTES_H
#define ATTN_VEC_BYTES_H

#include <stdint.h>
#include <string.h>

/* Bit k is set where byte k of eight is not zero. */
static inline uint64_t test_eight_bytes(const char *bytes)
{
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
    uint64_t x;

    memcpy(&x, bytes, sizeof x);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    x = __builtin_bswap64(x);
#endif
    x = ((x | ((x & low) + low)) >> 7) & UINT64_C(0x0101010101010101);
    return (x * UINT64_C(0x0102040810204080)) >> 56;
}

#if defined(__x86_64__)
#include <emmintrin.h>

/* Bit k is set where byte k of 16 is zero. */
static inline uint64_t find_16_zeros(const char *bytes)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)bytes);
    return (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(x, _mm_setzero_si128()));
}

/* Bit k is set where byte k of 64 is not zero. */
static inline uint64_t test_64_bytes(const char *bytes)
{
    uint64_t low = find_16_zeros(bytes + 16) << 16 | find_16_zeros(bytes);
    uint64_t high = find_16_zeros(bytes + 48) << 16 | find_16_zeros(bytes + 32);
    return ~(high << 32 | low);
}

#elif defined(__aarch64__)
#include <arm_neon.h>

static inline uint64_t test_64_bytes(const char *bytes)
{
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                    1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t x[4];

    for (int i = 0; i < 4; i++) {
        uint8x16_t byte = vld1q_u8((const uint8_t *)bytes + 16 * i);
        x[i] = vandq_u8(vtstq_u8(byte, byte), vld1q_u8(bit));
    }
    /* Adding neighbours thrice makes a byte of eight. */
    uint8x16_t sum = vpaddq_u8(vpaddq_u8(x[0], x[1]), vpaddq_u8(x[2], x[3]));
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sum, sum)), 0);
}

#else

static inline uint64_t test_64_bytes(const char *bytes)
{
    uint64_t bits = 0;

    for (int k = 0; k < 64; k += 8) {
        bits |= test_eight_bytes(bytes + k) << k;
    }
    return bits;
}
#endif
#endif
