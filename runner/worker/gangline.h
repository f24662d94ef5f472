#ifndef GANGLINE_H
#define GANGLINE_H
/* The worker library for C, and for every language that can call C. Plain C11; C++ programs use runner/worker/gang.h.
 *
 *   gangline_gang* gang = NULL;
 *   if (gangline_join(&gang) != GANGLINE_OK) die(gangline_last_error());      after MPI_Init, if the program uses MPI
 *   const uint64_t shape[2] = {784, 128};
 *   gangline_track(gang, "model/weights", GANGLINE_FLOAT32, GANGLINE_REPLICATED, 2, shape, NULL, NULL, weights);
 *   bool is_restored; uint64_t step;
 *   if (gangline_restore(gang, &is_restored, &step) != GANGLINE_OK) die(gangline_last_error());    a fresh start: step 0
 *   while (step < 1000) {
 *       ... one training step ...
 *       gangline_progress(gang, ++step, samples, flops, loss);
 *       if (step % 100 == 0) gangline_save(gang, step, GANGLINE_SAVE_NOW, NULL);
 *   }
 *   gangline_finish(gang, 60000);
 *   gangline_leave(&gang);
 *
 * Every function but gangline_last_error, gangline_code_name and gangline_api_version returns a gangline_code; after any other
 * than GANGLINE_OK gangline_last_error says what was wrong, and what is written through pointers is untouched unless stated.
 * `dtype`, `policy` and `mode` are numbers of the enumerations below. No C++ exception leaves a function. A null pointer where
 * none is allowed is GANGLINE_INVALID_ARGUMENT.
 *
 * Thread rule: one thread calls (the training loop's). From any thread: gangline_should_stop, gangline_seconds_left and the
 * functions of a gangline_save_handle (each handle by one thread at a time). gangline_last_error is the calling thread's own.
 *
 * Within one API version functions, constants and structures are only added. Link with libgangline_worker and its C++ runtime.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GANGLINE_API_VERSION 1

/* That of the library which is linked; a program refuses one that is lower than the GANGLINE_API_VERSION it was compiled with. */
uint32_t gangline_api_version(void);

typedef enum gangline_code {
    GANGLINE_OK = 0,
    GANGLINE_INVALID_ARGUMENT = 1, /* the caller's input is wrong: correct it */
    GANGLINE_REFUSED = 2,          /* by design, with the reason and a remedy */
    GANGLINE_UNAVAILABLE = 3,      /* not reachable now */
    GANGLINE_NOT_FOUND = 4,
    GANGLINE_NO_SPACE = 5,         /* disk, quota or memory is full: nothing was written that counts */
    GANGLINE_DAMAGED = 6,          /* stored bytes are not what was written; the runner is told and takes an older checkpoint */
    GANGLINE_DEADLINE = 7,         /* the wait ended before the answer came */
    GANGLINE_INTERNAL = 8          /* a system call failed in a way nobody planned for */
} gangline_code;

/* What the last failed call of this thread says: one sentence, never null; valid until the thread's next failed call. */
const char* gangline_last_error(void);
/* "invalid argument"; "unknown code" for any other number. */
const char* gangline_code_name(int code);

typedef enum gangline_dtype {
    GANGLINE_FLOAT64 = 1,
    GANGLINE_FLOAT32 = 2,
    GANGLINE_FLOAT16 = 3,
    GANGLINE_BFLOAT16 = 4,
    GANGLINE_FLOAT8_E4M3FN = 5,
    GANGLINE_FLOAT8_E5M2 = 6,
    GANGLINE_INT64 = 7,
    GANGLINE_INT32 = 8,
    GANGLINE_INT16 = 9,
    GANGLINE_INT8 = 10,
    GANGLINE_UINT64 = 11,
    GANGLINE_UINT32 = 12,
    GANGLINE_UINT16 = 13,
    GANGLINE_UINT8 = 14,
    GANGLINE_BOOL = 15 /* one byte, 0 or 1 */
} gangline_dtype;

/* Whose a tensor is, and so what another number of ranks makes of it (docs/checkpoints.md). */
typedef enum gangline_policy {
    GANGLINE_REPLICATED = 1, /* every rank holds the same values */
    GANGLINE_SLICED = 2,     /* the ranks' boxes tile the global shape */
    GANGLINE_PER_RANK = 3,   /* each rank's own: another number of ranks is refused */
    GANGLINE_SPLITTABLE = 4, /* each rank's own: dealt out anew by gangline_track_splittable's callback */
    GANGLINE_DROP = 5        /* each rank's own: another number of ranks leaves it as it is, and that is said */
} gangline_policy;

typedef enum gangline_save_mode {
    GANGLINE_SAVE_NOW = 0,   /* the state may be changed when gangline_save returns */
    GANGLINE_SAVE_FENCED = 1 /* ... when gangline_fence returns; gangline_save returns before the copy */
} gangline_save_mode;

typedef enum gangline_tier {
    GANGLINE_TIER_MEMORY = 0, /* in the keeper's memory alone: only where gangline_should_save has decided so */
    GANGLINE_TIER_DISK = 1
} gangline_tier;

typedef struct gangline_gang gangline_gang;
typedef struct gangline_save_handle gangline_save_handle;

/* ---- the gang */

/* *gang is null after a failure. Errors: INVALID_ARGUMENT (a variable of the environment makes no sense), UNAVAILABLE. */
gangline_code gangline_join(gangline_gang** gang);
/* Waits for the disk operation under way, not for commits: call gangline_finish for those. Sets *gang to null; null already: fine. */
gangline_code gangline_leave(gangline_gang** gang);
/* Waits until every save has its answer, then tells the runner that this rank has ended well. Errors: DEADLINE. */
gangline_code gangline_finish(gangline_gang* gang, uint64_t limit_ms);

gangline_code gangline_rank(const gangline_gang* gang, uint32_t* rank);
gangline_code gangline_size(const gangline_gang* gang, uint32_t* size);
gangline_code gangline_attempt(const gangline_gang* gang, uint32_t* attempt); /* rises with every restart of the job */
gangline_code gangline_restarts(const gangline_gang* gang, uint32_t* restarts);
gangline_code gangline_is_alone(const gangline_gang* gang, bool* is_alone); /* not started by Gangline */

/* ---- what the training does */

/* `step` steps are done. Samples and FLOPs of this rank since the last call are summed. */
gangline_code gangline_progress(gangline_gang* gang, uint64_t step, double samples, double flops, double loss);
gangline_code gangline_total_steps(gangline_gang* gang, uint64_t count);
/* The gang's page shows the phase until its end, then the one before it. Phases nest. */
gangline_code gangline_phase_begin(gangline_gang* gang, const char* name);
gangline_code gangline_phase_end(gangline_gang* gang);
/* The time between counts as waiting for data, or as communication. Each ends before it begins again. */
gangline_code gangline_data_wait_begin(gangline_gang* gang);
gangline_code gangline_data_wait_end(gangline_gang* gang);
gangline_code gangline_communication_begin(gangline_gang* gang);
gangline_code gangline_communication_end(gangline_gang* gang);

/* Whether the runner has announced that it will stop this rank. Ranks hear of it at different times: agree before the loop is left. */
gangline_code gangline_should_stop(const gangline_gang* gang, bool* should_stop);
gangline_code gangline_seconds_left(const gangline_gang* gang, double* seconds); /* until then; infinite while no stop is announced */

/* ---- state that is saved and restored; the memory must stay where it is until gangline_leave */

/* This rank holds `extent` elements at `offset` of `global_shape` (each `ndim` numbers, outermost first), row-major at `data`. offset and
 * extent both null: all of it. ndim 0, global_shape null: one number. `data` may be null only where there is no element. */
gangline_code gangline_track(gangline_gang* gang, const char* name, int dtype, int policy, uint32_t ndim, const uint64_t* global_shape, const uint64_t* offset,
                             const uint64_t* extent, void* data);

/* What one rank of the gang that saved had. */
typedef struct gangline_old_rank {
    uint32_t rank;
    uint32_t ndim;
    const uint64_t* shape;
    const void* data;
    uint64_t bytes;
} gangline_old_rank;
/* Fills this rank's state out of what all `old_size` ranks had, ascending; everything is valid during the call only. Other than 0 refuses the restore. */
typedef int (*gangline_split)(const gangline_old_rank* old, uint32_t old_size, uint32_t rank, uint32_t size, void* context);
/* GANGLINE_SPLITTABLE state of this rank; `split` is called by gangline_restore when another number of ranks has saved it. */
gangline_code gangline_track_splittable(gangline_gang* gang, const char* name, int dtype, uint32_t ndim, const uint64_t* shape, void* data, gangline_split split,
                                        void* context);

/* Every rank calls gangline_save and gangline_restore, in the same order and with the same steps, which rise. A failure on the way stops nothing: the
 * job's page tells it, and so does gangline_save_wait. `save` may be null; what it is set to (null after a failure) is to be released.
 * Errors: INVALID_ARGUMENT (steps do not rise, no such mode): nothing is saved. */
gangline_code gangline_save(gangline_gang* gang, uint64_t step, int mode, gangline_save_handle** save);
/* The same, with how good this state is (a validation loss), for --keep-best: rank 0's counts. One that is not finite is never the best. */
gangline_code gangline_save_measured(gangline_gang* gang, uint64_t step, int mode, double metric, gangline_save_handle** save);
/* Until it is known whether the checkpoint counts; of a save in memory, whether this rank's snapshot is whole there.
 * Errors: why it does not or is not (NO_SPACE, REFUSED, UNAVAILABLE, ...), or DEADLINE: not known yet. */
gangline_code gangline_save_wait(const gangline_save_handle* save, uint64_t limit_ms);
gangline_code gangline_save_is_done(const gangline_save_handle* save, bool* is_done);
gangline_code gangline_save_step(const gangline_save_handle* save, uint64_t* step);
/* A gangline_tier. */
gangline_code gangline_save_tier(const gangline_save_handle* save, int* tier);
/* The save goes on. Sets *save to null; null already: fine. */
gangline_code gangline_save_release(gangline_save_handle** save);
/* Before the state is changed after a fenced save: until it is copied, all of it or this tensor, which is copied ahead of the others. */
gangline_code gangline_fence(gangline_gang* gang);
gangline_code gangline_fence_tensor(gangline_gang* gang, const char* name);
/* Whether to save at this step: as often as lost work and the cost of saves are least together, and before a stop. Every rank calls it at every step. It decides
 * whether the save goes to disk or to memory alone, too (docs/checkpoints.md); gangline_save of any other step goes to disk. */
gangline_code gangline_should_save(gangline_gang* gang, uint64_t step, bool* should_save);
/* Fills the tracked state; *step is that of the checkpoint. Not restored: a fresh start, *step is 0 and nothing was changed.
 * Errors: REFUSED (of other tensors or another number of ranks, in words), DAMAGED. After an error the tracked memory is not to be used. */
gangline_code gangline_restore(gangline_gang* gang, bool* is_restored, uint64_t* step);

#ifdef __cplusplus
}
#endif

#endif
