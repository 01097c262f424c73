/* The keys and values of a problem once more, in pages that lie in any order. */
#ifndef ATTN_TESTS_PAGES_H
#define ATTN_TESTS_PAGES_H

#include "core/extras.h"
#include "support/problem.h"

typedef struct {
    attn_pages pages;
    int64_t *table;       /* their numbers */
    problem pools[4];     /* all pages of all batches; what is in none is NaN */
    attn_array inputs[4]; /* of the problem as it was: keys, values and their scales */
} paged;

/* Puts the problem's keys and values into pages, until put_back. */
void put_in_pages(attn_problem *, uint64_t *state, paged *);
void put_back(attn_problem *, paged *);

#endif
