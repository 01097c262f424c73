/* load_row and store_row for those who do not know what a real is. Included by kernel.inc.h
 * only. */

static void
load_any_row(void *to, const char *from, ptrdiff_t stride, ptrdiff_t n,
             attn_dtype dtype)
{
    load_row(to, from, stride, n, dtype);
}

static void
store_any_row(char *to, ptrdiff_t stride, const void *from, ptrdiff_t n,
              attn_dtype dtype)
{
    store_row(to, stride, from, n, dtype);
}
