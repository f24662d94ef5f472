/* Data-parallel linear regression in C, with MPI and Gangline's C interface: every rank draws samples of its own, all add up
 * their gradients, and all take the same step. Killed at any moment and started again, it ends with the same weights, bit by
 * bit: the random state of each rank and its count of samples are saved with the weights.
 *
 *   gangline run --ranks 4 -- regression [STEPS [EVERY [PAUSE_MS]]]        mpirun -n 4 regression
 *
 * EVERY: steps between checkpoints; 0: as often as is best. PAUSE_MS: what a real model would compute.
 */

#define _POSIX_C_SOURCE 200809L

#include <mpi.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "runner/worker/gangline.h"

enum { kFeatures = 8, kWeights = kFeatures + 1, kBatch = 16, kMostRanks = 4096 };

struct state {
    double weights[kWeights]; /* the same on every rank; the last is the constant */
    double velocity[kWeights];
    uint64_t random;  /* this rank's own */
    uint64_t samples; /* this rank's share of all that were drawn */
};

/* What goes from rank to rank at each step. */
struct sum {
    double gradient[kWeights];
    double loss;
};

static void must(gangline_code code) {
    if (code == GANGLINE_OK) return;
    fprintf(stderr, "regression: %s\n", gangline_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

/* Uniform in [-1, 1). Source: Vigna, splitmix64. */
static double draw(uint64_t* state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-52 - 1.0;
}

/* y = 1 x0 + 2 x1 + ... + 8 x7 + 0.5, which is what the weights are to become. */
static void add_batch(struct state* state, struct sum* sum) {
    for (int i = 0; i < kBatch; ++i, ++state->samples) {
        double x[kWeights], error = -0.5;
        for (int j = 0; j < kFeatures; ++j) {
            x[j] = draw(&state->random);
            error -= (j + 1) * x[j];
        }
        x[kFeatures] = 1;
        for (int j = 0; j < kWeights; ++j) error += state->weights[j] * x[j];
        for (int j = 0; j < kWeights; ++j) sum->gradient[j] += error * x[j];
        sum->loss += error * error;
    }
}

/* In the order of the ranks, so that the bits depend on nothing else. */
static void add_all_ranks(struct sum* sum, uint32_t size) {
    static struct sum all[kMostRanks];
    const int count = (int)(sizeof *sum / sizeof(double));
    MPI_Allgather(sum, count, MPI_DOUBLE, all, count, MPI_DOUBLE, MPI_COMM_WORLD);
    *sum = all[0];
    for (uint32_t rank = 1; rank < size; ++rank) {
        for (int j = 0; j < kWeights; ++j) sum->gradient[j] += all[rank].gradient[j];
        sum->loss += all[rank].loss;
    }
}

static void descend(struct state* state, const struct sum* sum, uint32_t size) {
    for (int j = 0; j < kWeights; ++j) {
        state->velocity[j] = 0.9 * state->velocity[j] - 0.02 * sum->gradient[j] / (double)(kBatch * size);
        state->weights[j] += state->velocity[j];
    }
}

/* Another number of ranks shares the count of samples anew. */
static int share_out(const gangline_old_rank* old, uint32_t old_size, uint32_t rank, uint32_t size, void* context) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < old_size; ++i) all += *(const uint64_t*)old[i].data;
    *(uint64_t*)context = all / size + (rank < all % size ? 1 : 0);
    return 0;
}

static void track(gangline_gang* gang, struct state* state) {
    const uint64_t weights = kWeights;
    must(gangline_track(gang, "model/weights", GANGLINE_FLOAT64, GANGLINE_REPLICATED, 1, &weights, NULL, NULL, state->weights));
    must(gangline_track(gang, "optimizer/velocity", GANGLINE_FLOAT64, GANGLINE_REPLICATED, 1, &weights, NULL, NULL, state->velocity));
    must(gangline_track(gang, "data/random", GANGLINE_UINT64, GANGLINE_PER_RANK, 0, NULL, NULL, NULL, &state->random));
    must(gangline_track_splittable(gang, "data/samples", GANGLINE_UINT64, 0, NULL, &state->samples, share_out, &state->samples));
}

static void train(gangline_gang* gang, struct state* state, uint32_t size, uint64_t step, uint64_t steps, uint64_t every, long pause_ms) {
    while (step < steps) {
        struct sum sum = {{0}, 0};
        must(gangline_fence_tensor(gang, "data/random")); /* the last save has copied what changes first ... */
        must(gangline_fence_tensor(gang, "data/samples"));
        add_batch(state, &sum);
        nanosleep(&(struct timespec){pause_ms / 1000, pause_ms % 1000 * 1000000}, NULL);
        must(gangline_communication_begin(gang));
        add_all_ranks(&sum, size);
        must(gangline_communication_end(gang));
        must(gangline_fence(gang)); /* ... and everything, before the weights change */
        descend(state, &sum, size);
        ++step;
        must(gangline_progress(gang, step, kBatch, kBatch * kWeights * 4.0, sum.loss / (double)(kBatch * size)));
        bool is_due = every > 0 && step % every == 0;
        if (every == 0) must(gangline_should_save(gang, step, &is_due));
        if (is_due) must(gangline_save(gang, step, GANGLINE_SAVE_FENCED, NULL)); /* the next batch is drawn while it is written */
    }
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    const uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    const uint64_t every = argc > 2 ? strtoull(argv[2], NULL, 10) : 100;
    const long pause_ms = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
    gangline_gang* gang = NULL;
    must(gangline_join(&gang));
    uint32_t rank = 0, size = 1;
    must(gangline_rank(gang, &rank));
    must(gangline_size(gang, &size));
    int mpi_size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
    if ((uint32_t)mpi_size != size || size > kMostRanks) {
        fprintf(stderr, "regression: MPI has %d ranks, the gang %u, at most %d are possible\n", mpi_size, size, kMostRanks);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }

    struct state state = {.random = rank + 1};
    track(gang, &state);
    bool is_restored = false;
    uint64_t step = 0;
    must(gangline_restore(gang, &is_restored, &step));
    if (rank == 0 && is_restored) printf("resumed at step %llu\n", (unsigned long long)step);
    must(gangline_total_steps(gang, steps));
    train(gang, &state, size, step, steps, every, pause_ms);

    uint64_t samples = 0;
    MPI_Reduce(&state.samples, &samples, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("samples %llu\nweights", (unsigned long long)samples);
        for (int j = 0; j < kWeights; ++j) printf(" %a", state.weights[j]);
        printf("\n");
        fflush(stdout);
    }
    must(gangline_finish(gang, 60000));
    must(gangline_leave(&gang));
    MPI_Finalize();
    return 0;
}
