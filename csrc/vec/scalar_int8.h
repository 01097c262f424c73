/* The vocabulary of integer products, in plain C. This is the definition: every other header
 * of integers gives the same sums. A quad is four codes, of as many rows of W in one column,
 * next to each other; vectors have those of LANES columns. */
#include "core/quantized.h"

#include <stdint.h>

typedef int8_t term; /* a number of a row of x, as it waits for products */
typedef int8_t code; /* of W, the same */
typedef int32_t v_dots;
typedef struct {
    int8_t of[4];
} v_codes; /* quads as they lie in memory, or narrow ones as bytes, which are not negative */
typedef v_codes v_quads; /* as products take them */
typedef v_codes v_four;

typedef const int8_t *v_table; /* values of 16 codes */

/* So much is added to codes of 8 bits, and to values, as products take them. What that adds to a sum is taken
 * away where it begins. */
enum { OFFSET = 0 };

static inline v_codes v_load_codes(const char *p)
{
    return (v_codes){{(int8_t)p[0], (int8_t)p[1], (int8_t)p[2], (int8_t)p[3]}};
}

/* Do loads stay before this, in order? Then their vectors occupy registers, and some CPUs have too
 * few. */
static inline bool v_keep_loads(void) { return false; }

/* Codes of fewer bits: quads number i of a unit of rows. Four bits are halves of
 * bytes, upper ones where i is odd; n more are in those above, from bit n i on. */
static inline v_codes v_narrow_codes(v_codes codes, v_codes above, const int i,
                                     const int n)
{
    for (int t = 0; t < 4; t++) {
        int high = n == 0 ? 0 : (uint8_t)above.of[t] >> n * i & ((1 << n) - 1);
        codes.of[t] = (int8_t)(high << 4 | (codes.of[t] >> i % 2 * 4 & 15));
    }
    return codes;
}

static inline v_dots v_begin_dots(int32_t begin) { return begin; }

/* Quads for products of integers. `wide` are those of 8 bits. */
static inline v_quads v_quads_of(v_codes codes, const bool wide)
{
    (void)wide;
    return codes;
}

/* Quads of the values of codes of 4 bits, for products. */
static inline v_table v_load_table(const int8_t *p) { return p; }

static inline v_quads v_look_up(v_table table, v_codes codes)
{
    for (int t = 0; t < 4; t++) {
        codes.of[t] = table[codes.of[t]];
    }
    return codes;
}

/* Quads that were made ready. */
static inline void v_store_ready(code *p, v_quads quads)
{
    for (int t = 0; t < 4; t++) {
        p[t] = quads.of[t];
    }
}

static inline v_quads v_load_ready(const code *p)
{
    return (v_quads){{p[0], p[1], p[2], p[3]}};
}

/* Stores LANES integers that terms can be, which are floats, as numbers of a row; for NaN any. */
static inline void v_store_terms(term *p, v_real a) { *p = a != a ? 0 : (term)a; }

/* The larger one of |a| and b, which is not below 0; of NaN one of both. */
static inline v_real v_max_size(v_real a, v_real b)
{
    a = a < 0 ? -a : a;
    return a > b ? a : b;
}

/* Four numbers of a row, for every column. */
static inline v_four v_load_four(const term *p) { return v_load_ready(p); }

/* Adds the products of a column's four codes with these numbers. */
static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    return sum + w.of[0] * x.of[0] + w.of[1] * x.of[1] + w.of[2] * x.of[2] +
           w.of[3] * x.of[3];
}

/* Scales of LANES columns that are bytes, from their exponents. */
static inline v_real v_load_powers(const uint8_t *p) { return attn_power_of(*p); }

/* LANES columns' sums as floats, rounded to nearest. */
static inline v_real v_float_dots(v_dots sum) { return (float)sum; }
