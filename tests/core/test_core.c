/* The core's own test program, without Python.
 *
 *     test_core [--exhaustive] [word ...]
 *
 * runs the tests whose names contain one of the words, or all of them. */
#define _POSIX_C_SOURCE 200809L /* fork, alarm */
#include "core/stop.h"
#include "core/workspace.h"
#include "support/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

#define TIME_LIMIT 3600 /* seconds until SIGALRM ends a program that hangs */
#define CHILD_TIME_LIMIT 120
#define MAX_MESSAGES 10 /* of one test */

#ifdef _WIN32 /* which has no buffers of lines */
#define IN_LINES _IONBF
#else
#define IN_LINES _IOLBF
#endif

typedef struct {
    const char *name;
    void (*run)(void);
} test;

static const test tests[] = {
    {"tiers are listed best first", test_tiers_are_listed_best_first},
    {"numbers of threads", test_numbers_of_threads},
    {"threads that work repays", test_threads_that_work_repays},
    {"dtypes are stored as their table says",
     test_dtypes_are_stored_as_their_table_says},
    {"addresses are sums of strides", test_addresses_are_sums_of_strides},
    {"ranges are those of the definition", test_ranges_are_those_of_the_definition},
    {"queries that see keys are those of the definition",
     test_queries_that_see_keys_are_those_of_the_definition},
    {"blocks of keys are those of the definition",
     test_blocks_of_keys_are_those_of_the_definition},
    {"bits are transposed", test_bits_are_transposed},
    {"halves are those of the definition", test_halves_are_those_of_the_definition},
    {"halves are loaded as half.h does", test_halves_are_loaded_as_half_h_does},
    {"halves are stored as half.h does", test_halves_are_stored_as_half_h_does},
    {"vocabulary is the scalar one", test_vocabulary_is_the_scalar_one},
    {"vectors are transposed", test_vectors_are_transposed},
    {"vectors of columns of bfloat16", test_columns_of_bfloat16_are_transposed},
    {"vectors of pairs of bfloat16", test_pairs_of_bfloat16_are_split},
    {"masks are bits", test_masks_are_bits},
    {"vectors of pairs are loaded and stored", test_pairs_are_loaded_and_stored},
    {"vectors of pairs are rounded floats", test_pairs_are_rounded_floats},
    {"dot products of vectors of pairs are those of the definition",
     test_dot_products_of_pairs_are_those_of_the_definition},
    {"products of tiles are those of the definition",
     test_products_of_tiles_are_those_of_the_definition},
    {"what tiles take is put in order", test_what_tiles_take_is_put_in_order},
    {"weights of a unit are exponentials", test_weights_of_a_unit_are_exponentials},
    {"operands of a unit are never subnormal",
     test_operands_of_a_unit_are_never_subnormal},
    {"rows are converted as elements are", test_rows_are_converted_as_elements_are},
    {"exp over its range", test_exp_over_its_range},
    {"tanh over its range", test_tanh_over_its_range},
    {"log over its range", test_log_over_its_range},
    {"log of lanes over its range", test_log_of_lanes_over_its_range},
    {"every tier gives the same bits", test_every_tier_gives_the_same_bits},
    {"every tier gives the same bits with scales",
     test_every_tier_gives_the_same_bits_with_scales},
    {"every tier gives the same bits with codes",
     test_every_tier_gives_the_same_bits_with_codes},
    {"results are those of plain loops", test_results_are_those_of_plain_loops},
    {"strides change no bit", test_strides_change_no_bit},
    {"hidden keys change no bit", test_hidden_keys_change_no_bit},
    {"nothing but results is written", test_nothing_but_results_is_written},
    {"rows alone have the bits they have together",
     test_rows_alone_have_the_bits_they_have_together},
    {"rows of tasks change no bit", test_rows_of_tasks_change_no_bit},
    {"rows of tasks suit the threads", test_rows_of_tasks_suit_the_threads},
    {"AVX2 multiplies steps in groups", test_avx2_multiplies_steps_in_groups},
    {"AVX2 converts keys once for a head", test_avx2_converts_keys_once_for_a_head},
    {"AVX2 transposes bfloat16 in pairs", test_avx2_transposes_bfloat16_in_pairs},
    {"few rows have the bits they have alone",
     test_few_rows_have_the_bits_they_have_alone},
    {"packed sequences have the bits of each alone, on every tier",
     test_packed_sequences_have_the_bits_of_each_alone},
    {"every tier gives statistics the same bits",
     test_every_tier_gives_statistics_the_same_bits},
    {"every tier gives gradients the same bits",
     test_every_tier_gives_gradients_the_same_bits},
    {"every tier gives gradients of bfloat16 its bits",
     test_every_tier_gives_gradients_of_bfloat16_its_bits},
    {"failing allocations give gradients the same bits",
     test_failing_allocations_give_gradients_the_same_bits},
    {"workspaces of gradients are small", test_workspaces_of_gradients_are_small},
    {"every tier gives layers the same bits",
     test_every_tier_gives_layers_the_same_bits},
    {"every tier gives later activations the same bits",
     test_every_tier_gives_later_activations_the_same_bits},
    {"every tier gives swiglu_oai the same bits",
     test_every_tier_gives_swiglu_oai_the_same_bits},
    {"products of many rows give the same bits",
     test_products_of_many_rows_give_the_same_bits},
    {"AVX2 multiplies many rows in their form",
     test_avx2_multiplies_many_rows_in_their_form},
    {"every tier gives products of integers the same bits",
     test_every_tier_gives_products_of_integers_the_same_bits},
    {"codes of fewer bits have the bits of 8",
     test_codes_of_fewer_bits_have_the_bits_of_8},
    {"sums of the largest codes are exact", test_sums_of_the_largest_codes_are_exact},
    {"tiles give products of integers the same bits",
     test_tiles_give_products_of_integers_the_same_bits},
    {"tiles give attention over bytes the same bits",
     test_tiles_give_attention_over_bytes_the_same_bits},
    {"short vectors give products of integers the same bits",
     test_short_vectors_give_products_of_integers_the_same_bits},
    {"AVX2 multiplies rounded rows in tiles",
     test_avx2_multiplies_rounded_rows_in_tiles},
    {"AVX2 splits rows into bytes", test_avx2_splits_rows_into_bytes},
    {"rows of products of integers have the bits they have alone",
     test_rows_of_products_of_integers_have_the_bits_they_have_alone},
    {"every tier gives gradients of layers the same bits",
     test_every_tier_gives_gradients_of_layers_the_same_bits},
    {"every tier gives gradients of swiglu_oai the same bits",
     test_every_tier_gives_gradients_of_swiglu_oai_the_same_bits},
    {"tasks of activations give the bits of one",
     test_tasks_of_activations_give_the_bits_of_one},
    {"every tier gives rotary the same bits",
     test_every_tier_gives_rotary_the_same_bits},
    {"every tier makes the same integers of heads",
     test_every_tier_makes_the_same_integers_of_heads},
    {"rotary results are those of plain loops",
     test_rotary_results_are_those_of_plain_loops},
    {"layers fill the cache and give the same bits",
     test_layers_fill_the_cache_and_give_the_same_bits},
    {"keys in pages have the bits of one piece, on every tier",
     test_keys_in_pages_have_the_bits_of_one_piece},
    {"keys in pages have gradients of the same bits, on every tier",
     test_keys_in_pages_have_gradients_of_the_same_bits},
    {"workspaces are small enough to keep", test_workspaces_are_small_enough_to_keep},
    {"workspaces do not grow with keys or tasks",
     test_workspaces_do_not_grow_with_keys_or_tasks},
    {"failing allocations mean fewer threads or an error",
     test_failing_allocations_mean_fewer_threads_or_an_error},
    {"failing threads mean fewer threads", test_failing_threads_mean_fewer_threads},
    {"large workspaces are freed at once", test_large_workspaces_are_freed_at_once},
    {"sizes of workspaces do not wrap", test_sizes_of_workspaces_do_not_wrap},
    {"parallel_for takes each index once", test_parallel_for_takes_each_index_once},
    {"parallel_for gives each thread a run", test_parallel_for_gives_each_thread_a_run},
    {"caller polls while it waits for workers",
     test_caller_polls_while_it_waits_for_workers},
    {"poll ends a call early", test_poll_ends_a_call_early},
    {"concurrent callers get the same bits", test_concurrent_callers_get_the_same_bits},
    {"a child of fork computes with its own pool",
     test_a_child_of_fork_computes_with_its_own_pool},
    {"rounding mode of the caller does not matter",
     test_rounding_mode_of_the_caller_does_not_matter},
};

bool exhaustive = false;

static int n_messages; /* of the running test */

void
expect(bool ok, const char *format, ...)
{
    va_list arguments;

    if (ok || n_messages++ >= MAX_MESSAGES) {
        return;
    }
    printf("    FAILED: ");
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

#ifdef _WIN32
void
expect_in_child(void (*run)(void *), void *context)
{
    (void)run, (void)context;
    note("skipped: no fork");
}
#else
void
expect_in_child(void (*run)(void *), void *context)
{
    int status;

    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(CHILD_TIME_LIMIT);
        n_messages = 0;
        run(context);
        fflush(stdout);
        _exit(n_messages > 0);
    }
    bool ended = child > 0 && waitpid(child, &status, 0) == child;
    expect(ended && WIFEXITED(status) && WEXITSTATUS(status) == 0, "child failed");
}
#endif

void
note(const char *format, ...)
{
    va_list arguments;

    printf("    ");
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

uint64_t
random_bits(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

ptrdiff_t
random_below(uint64_t *state, ptrdiff_t n)
{
    return (ptrdiff_t)(random_bits(state) % (uint64_t)n);
}

double
random_unit(uint64_t *state)
{
    return (double)(random_bits(state) >> 32) * 0x1p-31 - 1;
}

static bool
is_wanted(const char *name, int n_words, char **words)
{
    bool wanted = n_words == 0;

    for (int i = 0; i < n_words; i++) {
        wanted = wanted || strstr(name, words[i]) != NULL;
    }
    return wanted;
}

/* Runs one test; returns whether it passed. */
static bool
run_test(const test *t)
{
    int64_t start = attn_monotonic_time();

    n_messages = 0;
    printf("%s\n", t->name);
    t->run();
    if (n_messages > 0) {
        printf("    %d expectations failed\n", n_messages);
    }
    printf("    %.1f s\n", (double)(attn_monotonic_time() - start) * 1e-9);
    return n_messages == 0;
}

int
main(int argc, char **argv)
{
    int n_passed = 0, n_failed = 0, first_word = 1;

    setvbuf(stdout, NULL, IN_LINES, BUFSIZ);
    if (argc > 1 && strcmp(argv[1], "--exhaustive") == 0) {
        exhaustive = true;
        first_word = 2;
    }
#ifndef _WIN32
    alarm(exhaustive ? 4 * TIME_LIMIT : TIME_LIMIT);
#endif
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (!is_wanted(tests[i].name, argc - first_word, argv + first_word)) {
            continue;
        }
        bool passed = run_test(&tests[i]);
        n_passed += passed;
        n_failed += !passed;
    }
    attn_workspace_free_all();
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0 || n_passed == 0;
}
