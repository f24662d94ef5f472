/* Hello from every rank of a gang, and one all-reduce. Any MPI program runs like this one, unchanged:
 *   gangline run --ranks 4 -- hello_mpi
 */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char** argv) {
    int rank, size, sum, length;
    char host[MPI_MAX_PROCESSOR_NAME];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("hello from rank %d of %d on %s; the ranks add up to %d\n", rank, size, host, sum);
    MPI_Finalize();
    return 0;
}
