/* How many threads a call may have. */
#include "core/tasks.h"

#include "core/limits.h"
#include "core/quota.h"
#include "support/check.h"

void
test_numbers_of_threads(void)
{
    int limit = attn_cpu_limit();
    int before = attn_get_num_threads();

    expect(limit >= 1 && limit <= ATTN_MAX_THREADS, "CPU limit is %d", limit);
    attn_set_num_threads(5);
    expect(attn_get_num_threads() == 5, "default of threads is not what was set");
    attn_set_num_threads(before);
    note("%d CPUs may be used", limit);
}
