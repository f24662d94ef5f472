/* Writes the monotonic clock (seconds) and the pid into FOLDER/<rank>.<pid>: when this rank got that far. The file is
   renamed into place, so that a reader never sees half a number. */
#ifndef GANGLINE_BENCH_STAMP_H
#define GANGLINE_BENCH_STAMP_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int stamp(const char* folder, const char* rank) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    char hidden[4096];
    char path[4096];
    snprintf(hidden, sizeof hidden, "%s/.%s.%d", folder, rank, (int)getpid());
    snprintf(path, sizeof path, "%s/%s.%d", folder, rank, (int)getpid());
    FILE* file = fopen(hidden, "w");
    if (file == NULL) return 1;
    fprintf(file, "%lld.%09ld %d\n", (long long)now.tv_sec, now.tv_nsec, (int)getpid());
    if (fclose(file) != 0) return 1;
    return rename(hidden, path) == 0 ? 0 : 1;
}

#endif
