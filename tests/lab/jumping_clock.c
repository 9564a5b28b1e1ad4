/* Clocks that jump: LD_PRELOAD of every process of a lab. $JUMPING_CLOCKS names a folder in which a file of a host's
   name holds, as a double, by how many seconds the time of day is wrong there; it may be written at any time. Clocks that
   only count on stay as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const double right = 0;

static const volatile double *find(void) {
    char host[64] = "", path[512];
    const char *folder = getenv("JUMPING_CLOCKS");
    void *found = MAP_FAILED;
    gethostname(host, sizeof host - 1);
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "", host);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        found = mmap(0, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    return found == MAP_FAILED ? &right : found;
}

static int shifted(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    static const volatile double *wrong;
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (!wrong)
        wrong = find();
    int result = real(clock, now);
    if (!result && now && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += (time_t)*wrong;
    return result;
}

int clock_gettime(clockid_t clock, struct timespec *now) { return shifted(clock, now); }

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (shifted(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec exact;
    if (shifted(CLOCK_REALTIME, &exact))
        return -1;
    if (seconds)
        *seconds = exact.tv_sec;
    return exact.tv_sec;
}
