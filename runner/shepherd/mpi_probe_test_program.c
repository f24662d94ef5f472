/* A rank for the tests: an ordinary Open MPI program that knows nothing of Gangline.
 *
 *   mpi_probe_test_program allreduce         prints "rank R of N sum S node M", S = 0 + 1 + ... + N-1, M = ranks on its node
 *   ... loop                                 reduces for ever, says "looping" once
 *   ... abort CODE                           rank 1 calls MPI_Abort, the others wait for it
 *   ... leave                                rank 1 exits with 0 and without MPI_Finalize, the others wait for it
 *   ... sendring BYTES                       each rank sends BYTES to the next and checks what it gets
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int ring(int rank, int size, int bytes) {
    char* out = malloc((size_t)bytes);
    char* in = malloc((size_t)bytes);
    memset(out, rank + 1, (size_t)bytes);
    const int to = (rank + 1) % size;
    const int from = (rank + size - 1) % size;
    MPI_Sendrecv(out, bytes, MPI_CHAR, to, 0, in, bytes, MPI_CHAR, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    int wrong = 0;
    for (int i = 0; i < bytes; ++i) wrong += in[i] != (char)(from + 1);
    free(out);
    free(in);
    return wrong;
}

int main(int argc, char** argv) {
    const char* what = argc > 1 ? argv[1] : "allreduce";
    MPI_Init(&argc, &argv);
    int rank = 0, size = 0, mine = 0, sum = 0, node_size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("initialised %d %.3f\n", rank, now_ms());
    fflush(stdout);
    if (strcmp(what, "abort") == 0 && rank == 1) MPI_Abort(MPI_COMM_WORLD, argc > 2 ? atoi(argv[2]) : 1);
    if (strcmp(what, "leave") == 0 && rank == 1) _Exit(0);
    if (strcmp(what, "abort") == 0 || strcmp(what, "leave") == 0) MPI_Barrier(MPI_COMM_WORLD);
    if (strcmp(what, "sendring") == 0) {
        const int wrong = ring(rank, size, argc > 2 ? atoi(argv[2]) : 1);
        printf("rank %d ring wrong %d\n", rank, wrong);
    }
    MPI_Comm node;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &node_size);
    mine = rank;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d sum %d node %d\n", rank, size, sum, node_size);
    fflush(stdout);
    if (strcmp(what, "loop") == 0) {
        printf("looping\n");
        fflush(stdout);
        for (;;) MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
