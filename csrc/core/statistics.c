/* The driver of statistics: a task is a block of queries of one head. Its sums for each key are
 * kept until the caller adds them up in order. Tasks run in rounds, to bound that memory. */
#include "core/statistics.h"

#include "core/cpu.h"
#include "core/sequences.h"
#include "core/tiers.h"
#include "core/visibility.h"
#include "core/workspace.h"

#include <math.h>
#include <string.h>

enum { ROUND_BYTES = 16 << 20 /* of sums that wait, where threads do not take more */ };

/* A block of queries, and the keys that it has sums for. */
typedef struct {
    ptrdiff_t b, head, first;
    ptrdiff_t from, to;
} piece;

typedef struct {
    const attn_problem *p;
    const attn_attention_kernel *kernel;
    const attn_statistics *s;
    piece *pieces; /* of a round */
    char *sums;    /* (pieces, Lk) reals, rows of sums_size bytes; or NULL */
    size_t sums_size;
    double *totals;    /* (Lk) of the pieces' head so far; or NULL */
    ptrdiff_t b, head; /* which that is; b < 0: none */
} job;

double
attn_measure_work(const attn_problem *p)
{
    return 2 * attn_attention_work(p);
}

/* Moves on to the next block of queries; false if there is none. */
static bool
next_piece(const attn_problem *p, piece *at)
{
    at->first += ATTN_TASK_ROWS;
    while (at->b < p->batch.n && at->first >= attn_n_queries(p, at->b)) {
        at->first = 0;
        at->head++;
        if (at->head >= p->n_kv_heads * p->group) {
            at->head = 0;
            at->b++;
        }
    }
    return at->b < p->batch.n;
}

static ptrdiff_t
count_pieces(const attn_problem *p)
{
    ptrdiff_t n = 0;

    for (ptrdiff_t b = 0; b < p->batch.n; b++) {
        ptrdiff_t n_queries = attn_n_queries(p, b);
        n += attn_divide_up(n_queries, ATTN_TASK_ROWS);
    }
    return n * p->n_kv_heads * p->group;
}

static void
run_piece(const void *context, ptrdiff_t index, const attn_worker *worker)
{
    const job *j = context;
    const attn_problem *p = j->p;
    const attn_statistics *s = j->s;
    piece *at = &j->pieces[index];
    ptrdiff_t row = attn_first_query(p, at->b);
    ptrdiff_t kv_head = at->head / p->group,
              size = attn_storage_of(p->arithmetic)->bytes;
    attn_task task = {.n_queries = attn_n_queries(p, at->b)};

    task.first_row = at->head % p->group * task.n_queries + at->first;
    task.n_rows = task.n_queries - at->first;
    task.n_rows = task.n_rows < ATTN_TASK_ROWS ? task.n_rows : ATTN_TASK_ROWS;
    attn_set_up_task(p, at->b, kv_head, &task);
    ptrdiff_t head = kv_head * p->group;
    attn_task_statistics to = {
        .entropy = attn_address(&s->entropy, &p->batch, at->b, head, row),
        .distance = attn_address(&s->distance, &p->batch, at->b, head, row),
        .top_weights = attn_address(&s->top_weights, &p->batch, at->b, head, row),
        .top_keys = attn_address(&s->top_keys, &p->batch, at->b, head, row)};
    task.statistics = &to;
    attn_seen_keys(&task, &at->from, &at->to);
    if (j->sums != NULL) {
        char *sums = j->sums + (size_t)index * j->sums_size;
        to.received = sums;
        if (at->from < at->to) {
            memset(sums + at->from * size, 0, (size_t)((at->to - at->from) * size));
        }
    }
    j->kernel->run(p, &task, worker);
}

/* Writes what a head's keys received, once all of its queries are added up. */
static void
write_received(const job *j)
{
    const attn_problem *p = j->p;
    const attn_array *to = &j->s->received;

    if (j->b < 0) {
        return;
    }
    ptrdiff_t n_keys = attn_n_keys(p, j->b);
    char *at = attn_address(to, &p->batch, j->b, j->head, attn_first_key(p, j->b));
    for (ptrdiff_t k = 0; k < n_keys; k++, at += to->row_stride) {
        double total = j->totals[k] != j->totals[k] ? (double)NAN : j->totals[k];
        if (p->arithmetic == ATTN_F64) {
            *(double *)(void *)at = total;
        } else {
            *(float *)(void *)at = (float)total;
        }
    }
}

/* Adds a piece's sums to its head's. */
static void
add_piece(job *j, ptrdiff_t index)
{
    const piece *at = &j->pieces[index];
    const void *sums = j->sums + (size_t)index * j->sums_size;
    const double *wide = sums;
    const float *single = sums;

    if (at->b != j->b || at->head != j->head) {
        write_received(j);
        j->b = at->b;
        j->head = at->head;
        memset(j->totals, 0, (size_t)j->p->n_keys * sizeof *j->totals);
    }
    if (j->p->arithmetic == ATTN_F64) {
        for (ptrdiff_t k = at->from; k < at->to; k++) {
            j->totals[k] += wide[k];
        }
    } else {
        for (ptrdiff_t k = at->from; k < at->to; k++) {
            j->totals[k] += (double)single[k];
        }
    }
}

/* Runs all pieces, up to n_round at a time. */
static int
run_rounds(job *j, ptrdiff_t n_pieces, ptrdiff_t n_round, attn_call *call)
{
    const attn_worker caller = {
        .tier = call->tier, .control = &call->control, .is_caller = true};
    piece next = {.first = -ATTN_TASK_ROWS};
    attn_tasks tasks = {.workspace_size = j->kernel->workspace_size(j->p),
                        .clears = true,
                        .run = run_piece,
                        .context = j};

    for (ptrdiff_t done = 0; done < n_pieces; done += tasks.n) {
        for (tasks.n = 0; tasks.n < n_round && next_piece(j->p, &next); tasks.n++) {
            j->pieces[tasks.n] = next;
        }
        tasks.work = attn_measure_work(j->p) / (double)n_pieces * (double)tasks.n;
        if (attn_run_tasks(&tasks, call) < 0) {
            return -1;
        }
        if (attn_gives_up(&caller)) {
            return 0; /* the call has failed: nobody looks at the results */
        }
        for (ptrdiff_t i = 0; i < tasks.n && j->sums != NULL; i++) {
            add_piece(j, i);
        }
    }
    if (j->sums != NULL) {
        write_received(j);
    }
    return 0;
}

/* Bytes of a piece's sums: whole vectors of any kernel, each piece on lines of its own. */
static size_t
sums_size(const attn_problem *p, const attn_statistics *s)
{
    size_t size = (size_t)attn_storage_of(p->arithmetic)->bytes;
    size_t line = 2 * ATTN_ALIGNMENT;

    return s->received.data == NULL
               ? 0
               : ((size_t)p->n_keys * size + line - 1) / line * line;
}

int
attn_measure(const attn_problem *given, const attn_statistics *s, attn_call *call)
{
    attn_problem p = *given;
    job j = {.p = &p,
             .kernel = attn_attention_kernel_for(&p, call->tier),
             .s = s,
             .sums_size = sums_size(&p, s),
             .b = -1};
    ptrdiff_t n_pieces = count_pieces(&p);
    ptrdiff_t n_round = ROUND_BYTES / (ptrdiff_t)(j.sums_size + sizeof(piece));
    uint32_t control_word = attn_fp_control_reset();
    int status = -1;

    p.task_rows = ATTN_TASK_ROWS; /* the sums of a block are those of one task */
    p.statistics = s;
    n_round = n_round > 2 * call->n_threads ? n_round : 2 * (ptrdiff_t)call->n_threads;
    n_round = n_round < n_pieces ? n_round : n_pieces;
    j.pieces = attn_workspace_acquire((size_t)n_round * sizeof(piece));
    if (j.sums_size > 0 && n_pieces > 0) {
        j.sums = attn_workspace_acquire((size_t)n_round * j.sums_size);
        j.totals = attn_workspace_acquire((size_t)p.n_keys * sizeof *j.totals);
    }
    if (j.pieces != NULL &&
        (j.sums_size == 0 || n_pieces == 0 || (j.sums != NULL && j.totals != NULL))) {
        status = run_rounds(&j, n_pieces, n_round, call);
    }
    attn_workspace_release(j.totals);
    attn_workspace_release(j.sums);
    attn_workspace_release(j.pieces);
    attn_fp_control_restore(control_word);
    return status;
}
