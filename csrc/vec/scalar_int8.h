/* The vocabulary of integer products, in plain C. This is the definition: every other header
 * of integers gives the same sums. A quad is four codes, of as many rows of W in one column,
 * next to each other; vectors have those of LANES / DOTS columns. */
#include <stdint.h>

typedef int8_t term; /* a number of a row of x, as it waits for products */
typedef int8_t code; /* of W, the same */
typedef int32_t v_dots;
typedef struct {
    int8_t of[4];
} v_quads;
typedef v_quads v_four;
typedef v_quads v_bytes; /* quads of LANES columns, that become floats */

/* So many vectors of sums are LANES columns'; so much is added to codes as products take them.
 * What that adds to a sum is taken away where it begins. */
enum { DOTS = 1, OFFSET = 0 };

static inline v_dots v_begin_dots(int32_t begin) { return begin; }

static inline v_bytes v_load_bytes(const char *p)
{
    return (v_bytes){{(int8_t)p[0], (int8_t)p[1], (int8_t)p[2], (int8_t)p[3]}};
}

/* Codes of fewer bits, less `zero`: quads number i of a unit of rows. Four bits are halves of
 * the bytes at p, upper ones where i is odd; n more are in those at `above`, from bit n i on. */
static inline v_bytes v_narrow_bytes(const char *p, const char *above, const int i,
                                     const int n, int zero)
{
    v_bytes codes;

    for (int t = 0; t < 4; t++) {
        int high = n == 0 ? 0 : above[t] >> n * i & ((1 << n) - 1);
        codes.of[t] = (int8_t)((high << 4 | (p[t] >> i % 2 * 4 & 15)) - zero);
    }
    return codes;
}

/* The same for products of integers. */
static inline v_quads v_load_quads(const char *p) { return v_load_bytes(p); }
static inline v_quads v_narrow_quads(const char *p, const char *above, const int i,
                                     const int n, int zero)
{
    return v_narrow_bytes(p, above, i, n, zero);
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

/* Stores LANES integers from -127 to 127, which are floats, as numbers of a row; for NaN any. */
static inline void v_store_terms(term *p, v_real a) { *p = a != a ? 0 : (term)a; }

/* Four numbers of a row, for every column. */
static inline v_four v_load_four(const term *p) { return v_load_ready(p); }

/* Adds the products of a column's four codes with these numbers. */
static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    return sum + w.of[0] * x.of[0] + w.of[1] * x.of[1] + w.of[2] * x.of[2] +
           w.of[3] * x.of[3];
}

/* LANES columns' sums as floats, rounded to nearest. */
static inline v_real v_float_dots(const v_dots sums[DOTS]) { return (float)sums[0]; }

/* Code number t of LANES columns' quads, as floats. */
static inline v_real v_float_codes(v_bytes quads, int t) { return quads.of[t]; }

/* LANES bytes as floats. */
static inline v_real v_float_bytes(const int8_t *p) { return *p; }
