/* A slow disk for one host: LD_PRELOAD of every process there. SLOW_DISK_HOST names the host, SLOW_DISK_S how long
   fsync takes at least. The C library and the disk do the rest as ever. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int fsync(int descriptor) {
    static int (*real)(int);
    char host[64] = "";
    const char *slow = getenv("SLOW_DISK_HOST"), *seconds = getenv("SLOW_DISK_S");
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    gethostname(host, sizeof host - 1);
    if (slow && seconds && !strcmp(host, slow)) {
        double wait = atof(seconds);
        struct timespec left = {(time_t)wait, (long)((wait - (time_t)wait) * 1e9)};
        while (nanosleep(&left, &left)) {
        }
    }
    return real(descriptor);
}
