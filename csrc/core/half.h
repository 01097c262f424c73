/* float16, bfloat16 and int8 to float and back, one value at a time, exactly as the CPUs' own
 * instructions do it: round to nearest, ties to even; subnormals kept. */
#ifndef ATTN_HALF_H
#define ATTN_HALF_H

#include <stdint.h>
#include <string.h>

static inline float
attn_float_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t
attn_bits_from_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* From -127 to 127, so that a row has the same range on both sides; 0 for NaN. */
static inline int8_t
attn_to_i8(float x)
{
    x = x < -127 ? -127 : x > 127 ? 127 : x;
    return x != x ? 0 : (int8_t)((x + 0x1.8p23f) - 0x1.8p23f);
}

static inline float
attn_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t magnitude = h & 0x7fff;

    if (magnitude >= 0x7c00) { /* infinity; NaN, made quiet */
        uint32_t quiet = magnitude > 0x7c00 ? 0x00400000 : 0;
        return attn_float_from_bits(sign | 0x7f800000 | magnitude << 13 | quiet);
    }
    /* The bits as a float's are 2^-112 of the value, subnormal ones included. */
    float scaled = attn_float_from_bits(magnitude << 13) * 0x1p112f;
    return attn_float_from_bits(sign | attn_bits_from_float(scaled));
}

static inline uint16_t
attn_to_f16(float x)
{
    uint32_t bits = attn_bits_from_float(x);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7fffffff;

    if (magnitude > 0x7f800000) {
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    }
    if (magnitude >= 0x477ff000) { /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00);
    }
    if (magnitude < 0x38800000) { /* below 2^-14: adding 0.5 rounds to 2^-24 steps */
        float sum = attn_float_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (attn_bits_from_float(sum) - 0x3f000000));
    }
    magnitude += 0xfff + (magnitude >> 13 & 1); /* round to 10 bits, ties to even */
    return (uint16_t)(sign | ((magnitude - 0x38000000) >> 13));
}

static inline float
attn_from_bf16(uint16_t h)
{
    return attn_float_from_bits((uint32_t)h << 16);
}

static inline uint16_t
attn_to_bf16(float x)
{
    uint32_t bits = attn_bits_from_float(x);

    if ((bits & 0x7fffffff) > 0x7f800000) {
        return (uint16_t)(bits >> 16 | 0x0040);
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
