/* How many CPUs this process may use. */
#ifndef ATTN_CORE_QUOTA_H
#define ATTN_CORE_QUOTA_H

/* The number of CPUs that affinity and cgroup quota allow, 1 to ATTN_MAX_THREADS. */
int attn_cpu_limit(void);

#endif
