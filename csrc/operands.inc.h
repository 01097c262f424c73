/* What the products multiply. An operand is a real; or, where a kernel sets TERMS to 2, a
 * pair of bfloat16 numbers whose two products one instruction adds to a float. Rows of
 * keys are cut into operands along the dimensions, weights and values along the keys.
 * Included by kernel.inc.h only. */

/* How operands lie in memory: as such, or as elements that loading converts. */
typedef enum { AS_OPERANDS, AS_F16, AS_BF16, AS_TWO_ROWS } storage;

#if TERMS == 1

typedef real operand;
typedef v_real v_operand;
#define OPERAND_DTYPE REAL_DTYPE

static INLINE v_operand
v_load_operands(const operand *from)
{
    return v_load(from);
}

static INLINE v_operand
v_set1_operand(operand x)
{
    return v_set1(x);
}

static INLINE void
v_transpose_operands(v_operand a[LANES])
{
    v_transpose(a);
}

/* sum + a * b */
static INLINE v_real
v_dot(v_operand a, v_operand b, v_real sum)
{
    return v_fma(a, b, sum);
}

/* LANES operands of a row; `second` is the row behind it, for AS_TWO_ROWS. */
static INLINE v_operand
load_operands(const char *from, const char *second, const storage kind)
{
    (void)second;
    switch (kind) {
    case AS_F16: return v_load_f16((const uint16_t *)(const void *)from);
    case AS_BF16: return v_load_bf16((const uint16_t *)(const void *)from);
    default: return v_load((const real *)(const void *)from);
    }
}

/* One operand of a row. */
static INLINE operand
load_operand(const char *from, const storage kind)
{
    return load_element(from, kind == AS_F16    ? ATTN_F16
                              : kind == AS_BF16 ? ATTN_BF16
                                                : REAL_DTYPE);
}

/* How the rows of key and value are read where they lie, if their columns are adjacent. */
static storage
key_storage(attn_dtype dtype)
{
    return dtype == ATTN_F16 ? AS_F16 : dtype == ATTN_BF16 ? AS_BF16 : AS_OPERANDS;
}

static storage
value_storage(attn_dtype dtype)
{
    return key_storage(dtype);
}

/* Elements from .. from + n - 1 of a row, stride bytes apart, as operands. */
static void
stage_row(operand *to, const char *from, ptrdiff_t stride, ptrdiff_t n,
          attn_dtype dtype)
{
    load_row(to, from, stride, n, dtype);
}

/* TERMS rows, the second one NULL if there is none, as one row of operands. */
static void
stage_rows(operand *to, const char *first, const char *second, ptrdiff_t stride,
           ptrdiff_t n, attn_dtype dtype)
{
    (void)second;
    load_row(to, first, stride, n, dtype);
}

/* Weights, LANES of them for each of n keys, key_step reals apart: as operands, in place. */
static INLINE void
pack_weights(real *weights, ptrdiff_t n, ptrdiff_t key_step)
{
    (void)weights, (void)n, (void)key_step;
}

/* Likewise n weights of one row, from k on; n is rounded up to whole vectors. */
static INLINE void
pack_row_weights(real *weights, ptrdiff_t k, ptrdiff_t n)
{
    (void)weights, (void)k, (void)n;
}

/* The operand with 0 for the terms whose bit is not set. */
static INLINE operand
keep_terms(operand x, uint64_t bits)
{
    return bits & 1 ? x : 0;
}

/* What the products of queries with keys are yet to be multiplied by. */
static real
pending_scale(const attn_problem *p)
{
    (void)p;
    return 1;
}

/* Multiplies a query row by the rest of the scale. */
static void
scale_row(operand *row, ptrdiff_t n, const attn_problem *p)
{
    for (ptrdiff_t k = 0; k < n; k++) {
        row[k] *= (real)p->scale;
    }
}

#else

/* The term of the lower dimension or key is in the lower half. Operands are read where
 * 16-bit elements lie, and packed where floats lay. */
typedef uint32_t operand __attribute__((may_alias, aligned(2)));
typedef v_pairs v_operand;
#define OPERAND_DTYPE ATTN_BF16

static INLINE v_operand
v_load_operands(const operand *from)
{
    return v_load_pairs(from);
}

static INLINE v_operand
v_set1_operand(operand x)
{
    return v_set1_pair(x);
}

static INLINE void
v_transpose_operands(v_operand a[LANES])
{
    v_transpose_pairs(a);
}

/* sum + the two products of each lane */
static INLINE v_real
v_dot(v_operand a, v_operand b, v_real sum)
{
    return v_dot_pairs(a, b, sum);
}

static INLINE v_operand
load_operands(const char *from, const char *second, const storage kind)
{
    if (kind == AS_TWO_ROWS) {
        return v_zip_bf16((const uint16_t *)(const void *)from,
                          (const uint16_t *)(const void *)second);
    }
    return v_load_pairs((const operand *)(const void *)from);
}

static INLINE operand
load_operand(const char *from, const storage kind)
{
    operand x;

    (void)kind;
    memcpy(&x, from, sizeof x);
    return x;
}

static storage
key_storage(attn_dtype dtype)
{
    (void)dtype;
    return AS_OPERANDS;
}

static storage
value_storage(attn_dtype dtype)
{
    (void)dtype;
    return AS_TWO_ROWS;
}

static void
stage_row(operand *to, const char *from, ptrdiff_t stride, ptrdiff_t n,
          attn_dtype dtype)
{
    uint16_t *terms = (uint16_t *)(void *)to;

    (void)dtype;
    for (ptrdiff_t k = 0; k < n; k++) {
        memcpy(terms + k, from + k * stride, sizeof *terms);
    }
    if (n % TERMS != 0) {
        terms[n] = 0;
    }
}

static void
stage_rows(operand *to, const char *first, const char *second, ptrdiff_t stride,
           ptrdiff_t n, attn_dtype dtype)
{
    ptrdiff_t k = 0;

    (void)dtype;
    if (second != NULL && stride == sizeof(uint16_t)) {
        for (; k + LANES <= n; k += LANES) {
            v_operand zipped =
                load_operands(first + k * stride, second + k * stride, AS_TWO_ROWS);
            v_store_pairs(to + k, zipped);
        }
    }
    for (; k < n; k++) {
        uint16_t low, high = 0;
        memcpy(&low, first + k * stride, sizeof low);
        if (second != NULL) {
            memcpy(&high, second + k * stride, sizeof high);
        }
        to[k] = low | (operand)high << 16;
    }
}

static INLINE void
pack_weights(real *weights, ptrdiff_t n, ptrdiff_t key_step)
{
    operand *to = (operand *)(void *)weights;

    for (ptrdiff_t k = 0; k < n; k += TERMS) {
        const real *line = weights + k * key_step;
        v_real second = k + 1 < n ? v_load(line + key_step) : v_set1(0);
        v_store_pairs(to + k / TERMS * key_step, v_pair(v_load(line), second));
    }
}

static INLINE void
pack_row_weights(real *weights, ptrdiff_t k, ptrdiff_t n)
{
    uint16_t *to = (uint16_t *)(void *)weights;

    for (ptrdiff_t end = k + n; k < end; k += LANES) {
        v_store_bf16(to + k, v_load(weights + k));
    }
}

static INLINE operand
keep_terms(operand x, uint64_t bits)
{
    operand low = bits & 1 ? 0x0000ffff : 0, high = bits & 2 ? 0xffff0000 : 0;
    return x & (low | high);
}

static real
pending_scale(const attn_problem *p)
{
    return (real)p->scale;
}

static void
scale_row(operand *row, ptrdiff_t n, const attn_problem *p)
{
    (void)row, (void)n, (void)p;
}
#endif
