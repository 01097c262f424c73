/* The vocabulary of products of 16-bit integers and bytes, in plain C. This is the definition:
 * every other header of shorts gives the same. A vector of shorts has LANES pairs. */
#include <stdint.h>
#include <string.h>

typedef struct {
    int16_t of[2];
} v_shorts;
typedef struct {
    int8_t of[2];
} v_narrow;             /* as many bytes */
typedef int32_t v_sums; /* LANES exact sums */

static inline v_sums v_zero_sums(void) { return 0; }

/* sum + the products of the first of each pair + those of the second; modulo 2^32, for codes of
 * rows without any may be anything. */
static inline v_sums v_add_pairs(v_sums sum, v_shorts a, v_shorts b)
{
    uint32_t low = (uint32_t)(a.of[0] * b.of[0]), high = (uint32_t)(a.of[1] * b.of[1]);
    return (int32_t)((uint32_t)sum + low + high);
}

static inline v_real v_float_sums(v_sums a) { return (float)a; }

/* Sums that wait where their floats will be. */
static inline void v_store_sums(float *p, v_sums a) { memcpy(p, &a, sizeof a); }

static inline v_sums v_load_sums(const float *p)
{
    v_sums a;
    memcpy(&a, p, sizeof a);
    return a;
}

/* v_join of LANES / FOLD vectors, of which each v_fold makes of FOLD, has the sum of all lanes of
 * each of these: vector i's in lane i. */
enum { FOLD = 1 };

static inline v_sums v_fold(const v_sums a[FOLD]) { return a[0]; }
static inline v_sums v_join(const v_sums a[LANES / FOLD]) { return a[0]; }

static inline v_shorts v_load_shorts(const void *p)
{
    v_shorts a;
    memcpy(&a, p, sizeof a);
    return a;
}

static inline void v_store_shorts(void *p, v_shorts a) { memcpy(p, &a, sizeof a); }

/* One pair in every lane. */
static inline v_shorts v_set1_shorts(const void *p) { return v_load_shorts(p); }

static inline v_narrow v_load_narrow(const int8_t *p)
{
    return (v_narrow){{p[0], p[1]}};
}

/* Only the first n bytes, 0 < n <= 2 * LANES, and zeros. */
static inline v_narrow v_load_some(const int8_t *p, ptrdiff_t n)
{
    return (v_narrow){{p[0], n > 1 ? p[1] : 0}};
}

static inline v_shorts v_widen(v_narrow a) { return (v_shorts){{a.of[0], a.of[1]}}; }

/* Lane i of x is a[i], b[i]; the second half of the bytes is in x[1]. */
static inline void v_zip(v_shorts x[2], v_narrow a, v_narrow b)
{
    x[0] = (v_shorts){{a.of[0], b.of[0]}};
    x[1] = (v_shorts){{a.of[1], b.of[1]}};
}

/* The same of shorts. */
static inline void v_zip_shorts(v_shorts x[2], v_shorts a, v_shorts b)
{
    x[0] = (v_shorts){{a.of[0], b.of[0]}};
    x[1] = (v_shorts){{a.of[1], b.of[1]}};
}

/* LANES floats, rounded to integers, ties to even; for NaN any. */
static inline void v_store_codes(void *p, v_real a)
{
    int16_t rounded = round_code(a);
    memcpy(p, &rounded, sizeof rounded);
}
