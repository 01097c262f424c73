/* How many CPUs affinity and cgroup quota allow this process. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "core/quota.h"

#include "core/limits.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#if defined(_WIN32)
#include <windows.h>
#else
#include <unistd.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

#if defined(_WIN32)
static int
affinity_count(void)
{
    DWORD_PTR own, all;

    if (!GetProcessAffinityMask(GetCurrentProcess(), &own, &all)) {
        return 1;
    }
    int count = __builtin_popcountll(own); /* of at most 64 CPUs, a processor group */
    return count > 0 ? count : 1;
}

static double
cgroup_quota(void)
{
    return 0;
}
#else
static int
affinity_count(void)
{
#if defined(__linux__)
    /* Larger than the kernel's own set, whatever its CONFIG_NR_CPUS is. */
    const size_t max_cpus = 1 << 16;
    size_t size = CPU_ALLOC_SIZE(max_cpus);
    cpu_set_t *set = CPU_ALLOC(max_cpus);
    int count = 0;

    if (set != NULL && sched_getaffinity(0, size, set) == 0) {
        count = CPU_COUNT_S(size, set);
    }
    if (set != NULL) {
        CPU_FREE(set);
    }
    if (count > 0) {
        return count;
    }
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < ATTN_MAX_THREADS ? (int)online : 1;
}

/* Reads two numbers, the first of them "max" for none, from a file of a cgroup folder;
 * returns how many it got. */
static int
read_numbers(const char *folder, const char *file, double *first, double *second)
{
    char path[4200];
    int n = snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", folder, file);
    FILE *stream = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;

    if (stream == NULL) {
        return 0;
    }
    n = fscanf(stream, "%lf %lf", first, second);
    fclose(stream);
    return n;
}

/* CPUs that the quota of this cgroup folder allows; 0 without a quota. */
static double
folder_quota(const char *folder, bool version_2)
{
    double quota, period, unused;

    if (version_2) {
        return read_numbers(folder, "cpu.max", &quota, &period) == 2 ? quota / period
                                                                     : 0;
    }
    if (read_numbers(folder, "cpu.cfs_quota_us", &quota, &unused) < 1 || quota <= 0 ||
        read_numbers(folder, "cpu.cfs_period_us", &period, &unused) < 1) {
        return 0;
    }
    return quota / period;
}

/* The smallest quota on the way from this process's cgroup to the root. In a container
 * the path may be the host's, of which only the root exists. */
static double
walk_quota(char *folder, size_t root_length, bool version_2)
{
    double least = 0;

    for (;;) {
        double quota = folder_quota(folder, version_2);
        least = quota > 0 && (least == 0 || quota < least) ? quota : least;
        char *slash = strrchr(folder + root_length, '/');
        if (slash == NULL) {
            return least;
        }
        *slash = '\0';
    }
}

/* Source: Linux documentation, cgroup-v2.rst, "CPU Interface Files", and for version 1
 * sched-bwc.rst; /proc/self/cgroup has lines "number:controllers:path". */
static double
cgroup_quota(void)
{
    char line[4096 + 256];
    double least = 0;
    FILE *stream = fopen("/proc/self/cgroup", "re");

    while (stream != NULL && fgets(line, sizeof line, stream) != NULL) {
        char *controllers = strchr(line, ':');
        char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (path == NULL) {
            continue;
        }
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        bool version_2 = controllers[1] == '\0';
        if (!version_2 && strstr(controllers, "cpu") == NULL) {
            continue;
        }
        char folder[4096 + 256 + 8];
        const char *root = version_2 ? "" : "/cpu";
        snprintf(folder, sizeof folder, "%s%s", root, path);
        double quota = walk_quota(folder, strlen(root), version_2);
        least = quota > 0 && (least == 0 || quota < least) ? quota : least;
    }
    if (stream != NULL) {
        fclose(stream);
    }
    return least;
}

#endif

int
attn_cpu_limit(void)
{
    int cpus = affinity_count();
    double quota = cgroup_quota();

    if (quota > 0 && quota < cpus) {
        cpus = quota > 1 ? (int)(quota + 0.999) : 1;
    }
    return cpus < ATTN_MAX_THREADS ? cpus : ATTN_MAX_THREADS;
}
