/* mpi_stamp FOLDER [hold]: stamps when this rank has left MPI_Init; with "hold" it then waits for a signal. */
#include <mpi.h>
#include <string.h>

#include "stamp.h"

int main(int argc, char** argv) {
    int rank = 0;
    char text[16];
    if (argc < 2) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(text, sizeof text, "%d", rank);
    if (stamp(argv[1], text) != 0) MPI_Abort(MPI_COMM_WORLD, 3);
    if (argc > 2 && strcmp(argv[2], "hold") == 0) {
        for (;;) pause();
    }
    MPI_Finalize();
    return 0;
}
