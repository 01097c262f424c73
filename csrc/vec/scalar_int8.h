/* The vocabulary of integer products, in plain C. This is the definition: every other header
 * of integers gives the same sums. A quad is four codes, of as many rows of W in one column,
 * next to each other; vectors have those of LANES / DOTS columns. */
#include <stdint.h>

typedef int8_t term; /* a number of a row of x, as it waits for products */
typedef int32_t v_dots;
typedef struct {
    int8_t of[4];
} v_quads;
typedef v_quads v_four;

enum { DOTS = 1 };

/* Sums to begin with. `total` is that of the row's numbers which will be multiplied. */
static inline v_dots v_begin_dots(int32_t total)
{
    (void)total;
    return 0;
}

static inline v_quads v_load_quads(const int8_t *p)
{
    return (v_quads){{p[0], p[1], p[2], p[3]}};
}

/* Four numbers of a row, for every column. */
static inline v_four v_load_four(const term *p) { return v_load_quads(p); }

/* Adds the products of a column's four codes with these numbers. */
static inline v_dots v_add_dots(v_dots sum, v_quads w, v_four x)
{
    return sum + w.of[0] * x.of[0] + w.of[1] * x.of[1] + w.of[2] * x.of[2] +
           w.of[3] * x.of[3];
}

/* LANES columns' sums as floats, rounded to nearest. */
static inline v_real v_float_dots(const v_dots sums[DOTS]) { return (float)sums[0]; }

/* Code number t of LANES columns' quads, as floats. */
static inline v_real v_float_codes(const int8_t *p, int t) { return p[t]; }
