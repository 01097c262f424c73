/* Counts what the kernel would do, by the functions that it asks itself. */
#include "core/explain.h"

#include "core/tiers.h"
#include "core/visibility.h"

static int64_t
count_bits(const attn_key_bits keys, ptrdiff_t n_rows)
{
    int64_t n = 0;

    for (ptrdiff_t r = 0; r < n_rows; r++) {
        for (ptrdiff_t w = 0; w < ATTN_BLOCK_WORDS; w++) {
            n += __builtin_popcountll(keys[r][w]);
        }
    }
    return n;
}

static void
explain_block(const attn_problem *p, const attn_task *task, ptrdiff_t first_key,
              ptrdiff_t n_keys, attn_explanation *e)
{
    attn_key_bits keys;
    int64_t scores = task->n_rows * n_keys;

    switch (attn_see_block(p, task, first_key, n_keys, keys)) {
    case ATTN_SEE_NONE: e->blocks_skipped++; return;
    case ATTN_SEE_SOME:
        e->blocks_masked++;
        e->visible += count_bits(keys, task->n_rows);
        break;
    case ATTN_SEE_ALL: e->visible += scores; break;
    }
    e->scores += scores;
    e->keys_read += n_keys;
}

static void
explain_task(const attn_problem *p, const attn_task *task, attn_explanation *e)
{
    ptrdiff_t from, to, n_keys = (ptrdiff_t)task->kv_length;

    if (attn_takes_row_form(p, p->group * task->n_queries)) {
        e->row_tasks++;
    } else {
        e->tile_tasks++;
    }
    e->rows_read += task->n_rows;
    e->blocks += attn_divide_up(n_keys, ATTN_BLOCK);
    attn_seen_keys(task, &from, &to);
    for (ptrdiff_t first = 0; first < n_keys; first += ATTN_BLOCK) {
        ptrdiff_t end = first + ATTN_BLOCK;
        if (end <= from || first >= to) {
            e->blocks_skipped++;
        } else {
            end = end < to ? end : to;
            explain_block(p, task, first, end - first, e);
        }
    }
}

void
attn_explain(const attn_problem *p, const attn_call *call, attn_explanation *e)
{
    const attn_attention_kernel *kernel = attn_attention_kernel_for(p, call->tier);
    attn_task task;

    *e = (attn_explanation){.arrangement = attn_arrange(p, call)};
    e->bf16_products =
        call->tier->bf16 != NULL && kernel == &call->tier->bf16->attention;
    e->workspace = kernel->workspace_size(p);
    for (ptrdiff_t i = 0; i < e->arrangement.n_tasks; i++) {
        if (attn_nth_task(p, i, &task)) {
            explain_task(p, &task, e);
        }
    }
}
