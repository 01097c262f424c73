/* Between arrays of any dtype and stride and contiguous rows of reals, and between rows
 * and lanes. Never reads or writes outside the elements it is given. Included by
 * kernel.inc.h only. */

/* One element of any dtype as a real. Only a bias comes in the other precision. */
static real
load_element(const char *from, attn_dtype dtype)
{
    uint16_t half;
    float single;
    double wide;

    switch (dtype) {
    case ATTN_F16: memcpy(&half, from, sizeof half); return attn_from_f16(half);
    case ATTN_BF16: memcpy(&half, from, sizeof half); return attn_from_bf16(half);
    case ATTN_F32: memcpy(&single, from, sizeof single); return (real)single;
    default: memcpy(&wide, from, sizeof wide); return (real)wide;
    }
}

/* to[k] = element k of n at from, stride bytes apart */
static void
load_row(real *to, const char *from, ptrdiff_t stride, ptrdiff_t n, attn_dtype dtype)
{
    ptrdiff_t k = 0;

    if (dtype == REAL_DTYPE && stride == sizeof(real)) {
        memcpy(to, from, (size_t)n * sizeof(real));
        return;
    }
    if (dtype <= ATTN_BF16 && stride == sizeof(uint16_t)) {
        const uint16_t *half = (const uint16_t *)(const void *)from;
        for (; k + LANES <= n; k += LANES) {
            bool f16 = dtype == ATTN_F16;
            v_store(to + k, f16 ? v_load_f16(half + k) : v_load_bf16(half + k));
        }
    }
    for (; k < n; k++) {
        to[k] = load_element(from + k * stride, dtype);
    }
}

static void
store_element(char *to, real x, attn_dtype dtype)
{
    uint16_t half = dtype == ATTN_F16 ? attn_to_f16((float)x) : attn_to_bf16((float)x);

    if (dtype == REAL_DTYPE) {
        memcpy(to, &x, sizeof x);
    } else {
        memcpy(to, &half, sizeof half);
    }
}

/* The reverse of load_row, for the dtypes of an output: real's own, or a 16-bit one. */
static void
store_row(char *to, ptrdiff_t stride, const real *from, ptrdiff_t n, attn_dtype dtype)
{
    ptrdiff_t k = 0;

    if (dtype == REAL_DTYPE && stride == sizeof(real)) {
        memcpy(to, from, (size_t)n * sizeof(real));
        return;
    }
#if REAL_BITS == 32
    if (dtype <= ATTN_BF16 && stride == sizeof(uint16_t)) {
        uint16_t *half = (uint16_t *)(void *)to;
        for (; k + LANES <= n; k += LANES) {
            if (dtype == ATTN_F16) {
                v_store_f16(half + k, v_load(from + k));
            } else {
                v_store_bf16(half + k, v_load(from + k));
            }
        }
    }
#endif
    for (; k < n; k++) {
        store_element(to + k * stride, from[k], dtype);
    }
}

/* to[k * to_line + i] = rows[i][k], times *scale unless that is NULL, for k < n and
 * i < n_rows; lanes from n_rows to LANES are 0. */
static INLINE void
transpose_in(real *to, ptrdiff_t to_line, const real *const rows[LANES],
             ptrdiff_t n_rows, ptrdiff_t n, const real *scale)
{
    ptrdiff_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        v_real a[LANES];
        for (int i = 0; i < LANES; i++) {
            a[i] = i < n_rows ? v_load(rows[i] + k) : v_set1(0);
        }
        v_transpose(a);
        for (int i = 0; i < LANES; i++) {
            v_real x = scale == NULL ? a[i] : v_mul(a[i], v_set1(*scale));
            v_store(to + (k + i) * to_line, x);
        }
    }
    for (; k < n; k++) {
        real *line = to + k * to_line;
        for (int i = 0; i < LANES; i++) {
            real x = i < n_rows ? rows[i][k] : 0;
            line[i] = scale == NULL ? x : x * *scale;
        }
    }
}

/* rows[i][k] = from[k * from_line + i] for k < n and i < n_rows <= LANES */
static void
transpose_out(real *const rows[LANES], ptrdiff_t n_rows, const real *from,
              ptrdiff_t from_line, ptrdiff_t n)
{
    ptrdiff_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        v_real a[LANES];
        for (int i = 0; i < LANES; i++) {
            a[i] = v_load(from + (k + i) * from_line);
        }
        v_transpose(a);
        for (int i = 0; i < LANES && i < n_rows; i++) {
            v_store(rows[i] + k, a[i]);
        }
    }
    for (; k < n; k++) {
        for (ptrdiff_t i = 0; i < n_rows; i++) {
            rows[i][k] = from[k * from_line + i];
        }
    }
}
