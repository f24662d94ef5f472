/* start_stamp FOLDER [hold]: stamps when this process has started, by the rank that its launcher gave it. */
#include <string.h>

#include "stamp.h"

int main(int argc, char** argv) {
    const char* names[] = {"SLURM_PROCID", "RANK", "OMPI_COMM_WORLD_RANK"};
    const char* rank = NULL;
    if (argc < 2) return 2;
    for (unsigned i = 0; i < sizeof names / sizeof names[0] && rank == NULL; ++i) rank = getenv(names[i]);
    if (stamp(argv[1], rank != NULL ? rank : "0") != 0) return 3;
    if (argc > 2 && strcmp(argv[2], "hold") == 0) {
        for (;;) pause();
    }
    return 0;
}
