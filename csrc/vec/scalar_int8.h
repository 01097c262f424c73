/* The vocabulary of integer products, in plain C. This is the definition: every other header
 * of integers gives the same sums. A quad is four codes, of as many rows of W in one column,
 * next to each other; vectors have those of LANES / DOTS columns. Codes of 4 bits are in
 * bytes, a quad in their lower halves and another in the upper ones. */
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

/* Those of 4 bits, less `zero`. */
static inline v_bytes v_lower_bytes(const char *p, int zero)
{
    return (v_bytes){{(int8_t)((p[0] & 15) - zero), (int8_t)((p[1] & 15) - zero),
                      (int8_t)((p[2] & 15) - zero), (int8_t)((p[3] & 15) - zero)}};
}

static inline v_bytes v_upper_bytes(const char *p, int zero)
{
    return (v_bytes){
        {(int8_t)((p[0] >> 4 & 15) - zero), (int8_t)((p[1] >> 4 & 15) - zero),
         (int8_t)((p[2] >> 4 & 15) - zero), (int8_t)((p[3] >> 4 & 15) - zero)}};
}

/* The same for products of integers. */
static inline v_quads v_load_quads(const char *p) { return v_load_bytes(p); }
static inline v_quads v_lower_quads(const char *p, int zero)
{
    return v_lower_bytes(p, zero);
}
static inline v_quads v_upper_quads(const char *p, int zero)
{
    return v_upper_bytes(p, zero);
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
