/* A clock that jumps: shifts the time of day that a program gets from libc by the seconds in the file UDO_CLOCK. Preloaded; affects only
   programs whose command line has one of the words in UDO_CLOCK_OF: a program that waits in the kernel for a time of day would wait for
   another one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *ahead_s;
static long long nothing;

__attribute__((constructor)) static void begin(void) {
    char line[4096], words[256], *rest = words;
    const char *path = getenv("UDO_CLOCK"), *of = getenv("UDO_CLOCK_OF");
    ahead_s = &nothing;
    int named = open("/proc/self/cmdline", O_RDONLY), found = 0;
    if (!path || !of || named < 0) return;
    long size = read(named, line, sizeof line - 1);
    close(named);
    for (long i = 0; i < size; i++) if (!line[i]) line[i] = ' ';
    line[size > 0 ? size : 0] = 0;
    strncpy(words, of, sizeof words - 1);
    words[sizeof words - 1] = 0;
    for (char *word; (word = strtok_r(rest, ",", &rest));) found |= strstr(line, word) != NULL;
    int file = found ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *at = mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (at != MAP_FAILED) ahead_s = at;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*libc)(clockid_t, struct timespec *);
    if (!libc) libc = dlsym(RTLD_NEXT, "clock_gettime");
    int done = libc(clock, at);
    if (!done && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += ahead_s ? *ahead_s : 0;
    return done;
}

int gettimeofday(struct timeval *at, void *zone) {
    static int (*libc)(struct timeval *, void *);
    if (!libc) libc = dlsym(RTLD_NEXT, "gettimeofday");
    int done = libc(at, zone);
    if (!done && at) at->tv_sec += ahead_s ? *ahead_s : 0;
    return done;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
