/* What every part of the core's test program uses: expectations, a generator of numbers,
 * and the list of tests. */
#ifndef ATTN_TESTS_CHECK_H
#define ATTN_TESTS_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Long and exhaustive variants of the tests are wanted. */
extern bool exhaustive;

/* Says what is wrong, and that the running test has failed, unless ok. From the main
 * thread only. */
void expect(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Runs a function in a child of fork; the running test fails if an expectation there
 * does, or the child dies. */
void expect_in_child(void (*run)(void *), void *context);

/* Prints a measured figure below the running test's name. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same sequence on any machine (splitmix64, by S. Vigna, public domain). */
uint64_t random_bits(uint64_t *state);
ptrdiff_t random_below(uint64_t *state, ptrdiff_t n); /* 0 .. n - 1 */
double random_unit(uint64_t *state);                  /* [-1, 1), 32 bits, exact */

/* core/array.c */
void test_dtypes_are_stored_as_their_table_says(void);
void test_addresses_are_sums_of_strides(void);

/* core/attention.c */
void test_every_tier_gives_the_same_bits(void);
void test_every_tier_gives_the_same_bits_with_scales(void);
void test_every_tier_gives_the_same_bits_with_codes(void);
void test_results_are_those_of_plain_loops(void);
void test_strides_change_no_bit(void);
void test_hidden_keys_change_no_bit(void);
void test_nothing_but_results_is_written(void);
void test_rows_alone_have_the_bits_they_have_together(void);
void test_rows_of_tasks_change_no_bit(void);
void test_rows_of_tasks_suit_the_threads(void);
void test_avx2_multiplies_steps_in_groups(void);
void test_avx2_converts_keys_once_for_a_head(void);
void test_avx2_transposes_bfloat16_in_pairs(void);
void test_few_rows_have_the_bits_they_have_alone(void);

/* core/backward.c */
void test_every_tier_gives_gradients_the_same_bits(void);
void test_every_tier_gives_gradients_of_bfloat16_its_bits(void);
void test_keys_in_pages_have_gradients_of_the_same_bits(void);
void test_failing_allocations_give_gradients_the_same_bits(void);
void test_workspaces_of_gradients_are_small(void);

/* core/pages.c */
void test_keys_in_pages_have_the_bits_of_one_piece(void);

/* core/packed.c */
void test_packed_sequences_have_the_bits_of_each_alone(void);

/* core/faults.c */
void test_failing_allocations_mean_fewer_threads_or_an_error(void);
void test_failing_threads_mean_fewer_threads(void);
void test_large_workspaces_are_freed_at_once(void);
void test_sizes_of_workspaces_do_not_wrap(void);

/* core/statistics.c */
void test_every_tier_gives_statistics_the_same_bits(void);

/* core/pool.c */
void test_parallel_for_takes_each_index_once(void);
void test_parallel_for_gives_each_thread_a_run(void);
void test_caller_polls_while_it_waits_for_workers(void);
void test_poll_ends_a_call_early(void);
void test_concurrent_callers_get_the_same_bits(void);
void test_a_child_of_fork_computes_with_its_own_pool(void);
void test_rounding_mode_of_the_caller_does_not_matter(void);

/* core/layer_corpus.c */
void test_every_tier_gives_layers_the_same_bits(void);
void test_every_tier_gives_later_activations_the_same_bits(void);
void test_every_tier_gives_swiglu_oai_the_same_bits(void);
void test_every_tier_gives_gradients_of_swiglu_oai_the_same_bits(void);
void test_products_of_many_rows_give_the_same_bits(void);
void test_avx2_multiplies_many_rows_in_their_form(void);

/* core/layer_vjp.c */
void test_every_tier_gives_gradients_of_layers_the_same_bits(void);

/* core/activate.c */
void test_tasks_of_activations_give_the_bits_of_one(void);

/* core/quantized.c */
void test_every_tier_gives_products_of_integers_the_same_bits(void);
void test_codes_of_fewer_bits_have_the_bits_of_8(void);
void test_sums_of_the_largest_codes_are_exact(void);
void test_tiles_give_products_of_integers_the_same_bits(void);
void test_tiles_give_attention_over_bytes_the_same_bits(void);
void test_short_vectors_give_products_of_integers_the_same_bits(void);
void test_avx2_multiplies_rounded_rows_in_tiles(void);
void test_avx2_splits_rows_into_bytes(void);
void test_rows_of_products_of_integers_have_the_bits_they_have_alone(void);

/* core/rotary.c */
void test_every_tier_gives_rotary_the_same_bits(void);
void test_every_tier_makes_the_same_integers_of_heads(void);
void test_rotary_results_are_those_of_plain_loops(void);

/* core/layer.c */
void test_layers_fill_the_cache_and_give_the_same_bits(void);

/* core/visibility.c */
void test_ranges_are_those_of_the_definition(void);
void test_queries_that_see_keys_are_those_of_the_definition(void);
void test_blocks_of_keys_are_those_of_the_definition(void);
void test_bits_are_transposed(void);

/* core/tiers.c */
void test_tiers_are_listed_best_first(void);

/* core/tasks.c */
void test_numbers_of_threads(void);
void test_threads_that_work_repays(void);

/* kernel/math/exp.c */
void test_exp_over_its_range(void);
void test_tanh_over_its_range(void);
void test_log_of_lanes_over_its_range(void);
void test_log_over_its_range(void);

/* kernel/operands/convert.c */
void test_rows_are_converted_as_elements_are(void);

/* vec/vocabulary.c */
void test_vocabulary_is_the_scalar_one(void);
void test_vectors_are_transposed(void);
void test_columns_of_bfloat16_are_transposed(void);
void test_pairs_of_bfloat16_are_split(void);
void test_masks_are_bits(void);

/* vec/pairs.c */
void test_pairs_are_loaded_and_stored(void);
void test_pairs_are_rounded_floats(void);
void test_dot_products_of_pairs_are_those_of_the_definition(void);

/* vec/unit.c */
void test_products_of_tiles_are_those_of_the_definition(void);
void test_what_tiles_take_is_put_in_order(void);
void test_weights_of_a_unit_are_exponentials(void);
void test_operands_of_a_unit_are_never_subnormal(void);

/* core/workspaces.c */
void test_workspaces_are_small_enough_to_keep(void);
void test_workspaces_do_not_grow_with_keys_or_tasks(void);

/* vec/halves.c */
void test_halves_are_those_of_the_definition(void);
void test_halves_are_loaded_as_half_h_does(void);
void test_halves_are_stored_as_half_h_does(void);

#endif
