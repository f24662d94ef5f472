/* The worker library as a C program sees it: compiled as C11, alone, in a folder of its own. */

#define _XOPEN_SOURCE 700

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runner/worker/gangline.h"

static int failures = 0;

static void expect(bool is_so, const char* what, int line) {
    if (is_so) return;
    ++failures;
    fprintf(stderr, "c_api_test.c:%d: %s; the last error is: %s\n", line, what, gangline_last_error());
}
#define EXPECT(what) expect((what), #what, __LINE__)
#define GOOD(call) expect((call) == GANGLINE_OK, #call, __LINE__)
/* The call fails with this code, and its words hold this text. */
#define BAD(call, code, text) expect((call) == (code) && strstr(gangline_last_error(), (text)) != NULL, #call " is " #code ": " text, __LINE__)

static char folder[4096];

static int remove_one(const char* path, const struct stat* status, int kind, struct FTW* where) {
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}
static void remove_folder(void) { nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

/* A folder for checkpoints, and a gang of one. */
static void begin(void) {
    static const char* const variables[] = {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "GANGLINE_WORKER_SOCKET", "GANGLINE_RESEED"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; ++i) unsetenv(variables[i]);
    const char* const temporary = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/gangline-c-XXXXXX", temporary == NULL ? "/tmp" : temporary);
    if (mkdtemp(folder) == NULL) exit(2);
    setenv("GANGLINE_CHECKPOINT_DIR", folder, 1);
}

/* Of the checkpoint that is there; 0: none. */
static int manifest_version(int step) {
    char path[sizeof folder + 64];
    unsigned char begin_of_it[9] = {0};
    snprintf(path, sizeof path, "%s/step-%012d-e000000/MANIFEST", folder, step);
    FILE* const file = fopen(path, "rb");
    if (file == NULL) return 0;
    const size_t count = fread(begin_of_it, 1, sizeof begin_of_it, file);
    fclose(file);
    return count == sizeof begin_of_it ? begin_of_it[8] : 0;
}

static gangline_gang* joined(void) {
    gangline_gang* gang = NULL;
    GOOD(gangline_join(&gang));
    if (gang == NULL) exit(2);
    return gang;
}

static void test_the_gang_and_its_page(void) {
    begin();
    EXPECT(gangline_api_version() == GANGLINE_API_VERSION);
    gangline_gang* gang = joined();
    uint32_t number = 77;
    bool is_so = false;
    double seconds = 0;
    GOOD(gangline_rank(gang, &number));
    EXPECT(number == 0);
    GOOD(gangline_size(gang, &number));
    EXPECT(number == 1);
    GOOD(gangline_attempt(gang, &number));
    EXPECT(number == 0);
    GOOD(gangline_restarts(gang, &number));
    EXPECT(number == 0);
    GOOD(gangline_is_alone(gang, &is_so));
    EXPECT(is_so);
    GOOD(gangline_should_stop(gang, &is_so));
    EXPECT(!is_so);
    GOOD(gangline_seconds_left(gang, &seconds));
    EXPECT(isinf(seconds));
    GOOD(gangline_total_steps(gang, 10));
    GOOD(gangline_progress(gang, 1, 64, 1e9, 0.5));
    GOOD(gangline_phase_begin(gang, "eval"));
    GOOD(gangline_phase_begin(gang, "eval/test"));
    GOOD(gangline_phase_end(gang));
    GOOD(gangline_phase_end(gang));
    BAD(gangline_phase_end(gang), GANGLINE_INVALID_ARGUMENT, "no phase has begun");
    GOOD(gangline_data_wait_begin(gang));
    BAD(gangline_data_wait_begin(gang), GANGLINE_INVALID_ARGUMENT, "gangline_data_wait_begin: it has begun already");
    GOOD(gangline_communication_begin(gang));
    GOOD(gangline_communication_end(gang));
    GOOD(gangline_data_wait_end(gang));
    BAD(gangline_communication_end(gang), GANGLINE_INVALID_ARGUMENT, "it has not begun");
    GOOD(gangline_phase_begin(gang, "left open"));
    GOOD(gangline_should_save(gang, 1, &is_so));
    EXPECT(!is_so);
    GOOD(gangline_finish(gang, 1000));
    GOOD(gangline_leave(&gang));
    EXPECT(gang == NULL);
    GOOD(gangline_leave(&gang));
    remove_folder();
}

static const struct {
    int dtype;
    size_t width;
    const char* name;
} kTypes[] = {{GANGLINE_FLOAT64, 8, "f64"}, {GANGLINE_FLOAT32, 4, "f32"}, {GANGLINE_FLOAT16, 2, "f16"},       {GANGLINE_BFLOAT16, 2, "bf16"}, {GANGLINE_FLOAT8_E4M3FN, 1, "e4m3"},
              {GANGLINE_FLOAT8_E5M2, 1, "e5m2"}, {GANGLINE_INT64, 8, "i64"},  {GANGLINE_INT32, 4, "i32"},     {GANGLINE_INT16, 2, "i16"},     {GANGLINE_INT8, 1, "i8"},
              {GANGLINE_UINT64, 8, "u64"}, {GANGLINE_UINT32, 4, "u32"},       {GANGLINE_UINT16, 2, "u16"},    {GANGLINE_UINT8, 1, "u8"},      {GANGLINE_BOOL, 1, "bool"}};
enum { kTypeCount = sizeof kTypes / sizeof *kTypes, kBig = 3000000 };

/* A vector [2][3] of each type, a number, an empty tensor, a big one, and a box of a sliced one. */
struct state {
    uint64_t vectors[kTypeCount][6];
    uint64_t number;
    double slice[12];
    float* big;
};

static void fill(struct state* state, int seed) {
    for (int i = 0; i < kTypeCount; ++i) {
        unsigned char* const bytes = (unsigned char*)state->vectors[i];
        for (size_t j = 0; j < 6 * kTypes[i].width; ++j) bytes[j] = (unsigned char)(kTypes[i].dtype == GANGLINE_BOOL ? (j + (size_t)seed) % 2 : j * 7 + (size_t)(seed + i));
    }
    state->number = (uint64_t)seed * 1000;
    for (int i = 0; i < 12; ++i) state->slice[i] = seed + i / 16.0;
    for (int i = 0; i < kBig; ++i) state->big[i] = (float)(seed + i);
}

static void track(gangline_gang* gang, struct state* state) {
    static const uint64_t matrix[2] = {2, 3}, nothing[2] = {0, 4}, big = kBig, whole[2] = {3, 4}, corner[2] = {0, 0};
    for (int i = 0; i < kTypeCount; ++i) {
        char name[32];
        snprintf(name, sizeof name, "types/%s", kTypes[i].name);
        GOOD(gangline_track(gang, name, kTypes[i].dtype, GANGLINE_REPLICATED, 2, matrix, NULL, NULL, state->vectors[i]));
    }
    GOOD(gangline_track(gang, "number", GANGLINE_UINT64, GANGLINE_PER_RANK, 0, NULL, NULL, NULL, &state->number));
    GOOD(gangline_track(gang, "empty", GANGLINE_FLOAT32, GANGLINE_DROP, 2, nothing, NULL, NULL, NULL));
    GOOD(gangline_track(gang, "big", GANGLINE_FLOAT32, GANGLINE_REPLICATED, 1, &big, NULL, NULL, state->big));
    GOOD(gangline_track(gang, "slice", GANGLINE_FLOAT64, GANGLINE_SLICED, 2, whole, corner, whole, state->slice));
}

static bool same(const struct state* a, const struct state* b) {
    for (int i = 0; i < kTypeCount; ++i) {
        if (memcmp(a->vectors[i], b->vectors[i], 6 * kTypes[i].width) != 0) return false;
    }
    return a->number == b->number && memcmp(a->slice, b->slice, sizeof a->slice) == 0 && memcmp(a->big, b->big, kBig * sizeof(float)) == 0;
}

static void test_state_of_every_type_comes_back(void) {
    begin();
    struct state written = {.big = malloc(kBig * sizeof(float))}, read = {.big = malloc(kBig * sizeof(float))};
    if (written.big == NULL || read.big == NULL) exit(2);
    gangline_gang* gang = joined();
    track(gang, &written);
    bool is_restored = true, is_done = false;
    uint64_t step = 9;
    GOOD(gangline_restore(gang, &is_restored, &step));
    EXPECT(!is_restored && step == 0);
    fill(&written, 1);
    gangline_save_handle* save = NULL;
    GOOD(gangline_save(gang, 10, GANGLINE_SAVE_NOW, &save));
    fill(&written, 2);
    GOOD(gangline_save_wait(save, 20000));
    GOOD(gangline_save_is_done(save, &is_done));
    GOOD(gangline_save_step(save, &step));
    int tier = -1;
    GOOD(gangline_save_tier(save, &tier));
    EXPECT(tier == GANGLINE_TIER_DISK);
    EXPECT(is_done && step == 10);
    GOOD(gangline_save_release(&save));
    EXPECT(save == NULL);
    GOOD(gangline_save_release(&save));
    GOOD(gangline_save_measured(gang, 20, GANGLINE_SAVE_FENCED, 0.5, &save));
    GOOD(gangline_fence_tensor(gang, "number"));
    written.number = 5;
    GOOD(gangline_fence(gang));
    fill(&written, 3);
    GOOD(gangline_save_wait(save, 20000));
    GOOD(gangline_save_release(&save));
    GOOD(gangline_finish(gang, 20000));
    GOOD(gangline_leave(&gang));
    EXPECT(manifest_version(10) < 3 && manifest_version(20) == 3); /* one with a metric */

    gang = joined();
    fill(&read, 7);
    track(gang, &read);
    GOOD(gangline_restore(gang, &is_restored, &step));
    EXPECT(is_restored && step == 20);
    fill(&written, 2);
    EXPECT(same(&read, &written));
    GOOD(gangline_leave(&gang));
    free(written.big);
    free(read.big);
    remove_folder();
}

static void test_wrong_input_is_refused_with_words(void) {
    begin();
    gangline_gang* gang = joined();
    gangline_save_handle* save = NULL;
    uint64_t value = 1, step = 0;
    bool is_so = false;
    const uint64_t shape[2] = {4, 2}, outside[2] = {3, 1}, wide[2] = {2, 2};
    const uint64_t wraps[2] = {(uint64_t)1 << 40, (uint64_t)1 << 40};
    BAD(gangline_join(NULL), GANGLINE_INVALID_ARGUMENT, "gangline_join: `gang` is null");
    BAD(gangline_leave(NULL), GANGLINE_INVALID_ARGUMENT, "gangline_leave: `gang` is null");
    BAD(gangline_rank(NULL, NULL), GANGLINE_INVALID_ARGUMENT, "gangline_rank: `gang` is null");
    BAD(gangline_rank(gang, NULL), GANGLINE_INVALID_ARGUMENT, "gangline_rank: `rank` is null");
    BAD(gangline_progress(NULL, 1, 0, 0, 0), GANGLINE_INVALID_ARGUMENT, "gangline_progress");
    BAD(gangline_phase_begin(gang, NULL), GANGLINE_INVALID_ARGUMENT, "`name` is null");
    BAD(gangline_should_stop(gang, NULL), GANGLINE_INVALID_ARGUMENT, "`should_stop` is null");
    BAD(gangline_should_save(gang, 1, NULL), GANGLINE_INVALID_ARGUMENT, "`should_save` is null");
    BAD(gangline_restore(gang, NULL, &step), GANGLINE_INVALID_ARGUMENT, "`is_restored` is null");
    BAD(gangline_restore(gang, &is_so, NULL), GANGLINE_INVALID_ARGUMENT, "`step` is null");
    BAD(gangline_save_wait(NULL, 1), GANGLINE_INVALID_ARGUMENT, "`save` is null");
    BAD(gangline_save_is_done(NULL, &is_so), GANGLINE_INVALID_ARGUMENT, "`save` is null");
    BAD(gangline_save_release(NULL), GANGLINE_INVALID_ARGUMENT, "`save` is null");
    BAD(gangline_fence(NULL), GANGLINE_INVALID_ARGUMENT, "gangline_fence: `gang` is null");
    BAD(gangline_fence_tensor(gang, NULL), GANGLINE_INVALID_ARGUMENT, "`name` is null");
    BAD(gangline_fence_tensor(gang, "nobody's"), GANGLINE_INVALID_ARGUMENT, "'nobody's'");

    BAD(gangline_track(gang, NULL, GANGLINE_UINT64, GANGLINE_REPLICATED, 0, NULL, NULL, NULL, &value), GANGLINE_INVALID_ARGUMENT, "`name` is null");
    BAD(gangline_track(gang, "a//b", GANGLINE_UINT64, GANGLINE_REPLICATED, 0, NULL, NULL, NULL, &value), GANGLINE_INVALID_ARGUMENT, "'a//b'");
    BAD(gangline_track(gang, "a", 0, GANGLINE_REPLICATED, 0, NULL, NULL, NULL, &value), GANGLINE_INVALID_ARGUMENT, "no dtype 0, those from 1 to 15 are");
    BAD(gangline_track(gang, "a", 257, GANGLINE_REPLICATED, 0, NULL, NULL, NULL, &value), GANGLINE_INVALID_ARGUMENT, "no dtype 257");
    BAD(gangline_track(gang, "a", GANGLINE_UINT64, -1, 0, NULL, NULL, NULL, &value), GANGLINE_INVALID_ARGUMENT, "no policy -1, those from 1 to 5 are");
    BAD(gangline_track(gang, "a", GANGLINE_UINT64, GANGLINE_SLICED, 33, shape, NULL, NULL, &value), GANGLINE_INVALID_ARGUMENT, "ndim is 33");
    BAD(gangline_track(gang, "a", GANGLINE_UINT64, GANGLINE_SLICED, 2, NULL, NULL, NULL, &value), GANGLINE_INVALID_ARGUMENT, "the shape is null");
    BAD(gangline_track(gang, "a", GANGLINE_UINT64, GANGLINE_SLICED, 2, shape, outside, NULL, &value), GANGLINE_INVALID_ARGUMENT, "give both, or none");
    BAD(gangline_track(gang, "a", GANGLINE_UINT64, GANGLINE_SLICED, 2, shape, outside, wide, &value), GANGLINE_INVALID_ARGUMENT, "does not lie inside the shape [4, 2]");
    BAD(gangline_track(gang, "a", GANGLINE_UINT64, GANGLINE_REPLICATED, 2, shape, outside, outside, &value), GANGLINE_INVALID_ARGUMENT, "does not lie inside");
    BAD(gangline_track(gang, "a", GANGLINE_UINT64, GANGLINE_REPLICATED, 2, wraps, NULL, NULL, &value), GANGLINE_INVALID_ARGUMENT, "too large");
    BAD(gangline_track(gang, "a", GANGLINE_UINT64, GANGLINE_REPLICATED, 2, shape, NULL, NULL, NULL), GANGLINE_INVALID_ARGUMENT, "its pointer is null");
    BAD(gangline_track_splittable(gang, "a", GANGLINE_UINT64, 0, NULL, &value, NULL, NULL), GANGLINE_INVALID_ARGUMENT, "`split` is null");
    GOOD(gangline_track(gang, "a", GANGLINE_UINT64, GANGLINE_REPLICATED, 0, NULL, NULL, NULL, &value));
    BAD(gangline_track(gang, "a", GANGLINE_UINT64, GANGLINE_REPLICATED, 0, NULL, NULL, NULL, &value), GANGLINE_INVALID_ARGUMENT, "tracked already");

    BAD(gangline_save(NULL, 1, GANGLINE_SAVE_NOW, &save), GANGLINE_INVALID_ARGUMENT, "`gang` is null");
    BAD(gangline_save(gang, 1, 7, &save), GANGLINE_INVALID_ARGUMENT, "there is no mode 7");
    BAD(gangline_save_measured(gang, 1, 7, 0.5, &save), GANGLINE_INVALID_ARGUMENT, "there is no mode 7");
    GOOD(gangline_save(gang, 5, GANGLINE_SAVE_NOW, NULL));
    BAD(gangline_save(gang, 5, GANGLINE_SAVE_NOW, &save), GANGLINE_INVALID_ARGUMENT, "steps must rise");
    EXPECT(save == NULL);
    GOOD(gangline_finish(gang, 20000));
    GOOD(gangline_leave(&gang));

    gang = joined(); /* other tensors than were saved */
    GOOD(gangline_track(gang, "b", GANGLINE_UINT64, GANGLINE_REPLICATED, 0, NULL, NULL, NULL, &value));
    step = 7;
    BAD(gangline_restore(gang, &is_so, &step), GANGLINE_REFUSED, "it has no tensor 'b'");
    EXPECT(step == 7);
    GOOD(gangline_save(gang, 1, GANGLINE_SAVE_NOW, &save)); /* a failure on the way stops nothing */
    BAD(gangline_save_wait(save, 20000), GANGLINE_REFUSED, "already holds a checkpoint of step 5");
    GOOD(gangline_save_release(&save));
    GOOD(gangline_leave(&gang));

    setenv("RANK", "3", 1);
    BAD(gangline_join(&gang), GANGLINE_INVALID_ARGUMENT, "RANK='3'");
    EXPECT(gang == NULL);
    EXPECT(strcmp(gangline_code_name(GANGLINE_DAMAGED), "damaged") == 0 && strcmp(gangline_code_name(99), "unknown code") == 0);
    remove_folder();
}

/* Counts of samples: each rank's share of all. */
static int share_out(const gangline_old_rank* old, uint32_t old_size, uint32_t rank, uint32_t size, void* context) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < old_size; ++i) {
        if (old[i].rank != i || old[i].ndim != 0 || old[i].bytes != sizeof(uint64_t)) return 9;
        all += *(const uint64_t*)old[i].data;
    }
    if (all > 1000) return 4;
    *(uint64_t*)context = all / size + (rank < all % size ? 1 : 0);
    return 0;
}

/* What a rank of `size` does: 0 when all went well. Step 0: restores only. */
static int run_rank(uint32_t rank, uint32_t size, uint64_t samples, uint64_t save_step) {
    char text[16];
    snprintf(text, sizeof text, "%u", rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%u", size);
    setenv("WORLD_SIZE", text, 1);
    gangline_gang* gang = joined();
    bool is_restored = false;
    uint64_t step = 0, mine = 0;
    GOOD(gangline_track_splittable(gang, "samples", GANGLINE_UINT64, 0, NULL, &mine, share_out, &mine));
    if (save_step != 0) {
        gangline_save_handle* save = NULL;
        mine = samples;
        GOOD(gangline_save(gang, save_step, GANGLINE_SAVE_NOW, &save));
        GOOD(gangline_save_wait(save, 20000));
        GOOD(gangline_save_release(&save));
    } else if (samples == 0) {
        BAD(gangline_restore(gang, &is_restored, &step), GANGLINE_REFUSED, "could not make its 'samples' out of what 2 ranks had: its callback returned 4");
    } else {
        GOOD(gangline_restore(gang, &is_restored, &step));
        EXPECT(is_restored && mine == samples);
    }
    GOOD(gangline_finish(gang, 20000));
    GOOD(gangline_leave(&gang));
    return failures == 0 ? 0 : 1;
}

static void test_splittable_state_is_dealt_out_by_the_callback(void) {
    for (int is_refused = 0; is_refused < 2; ++is_refused) {
        begin();
        char run[64];
        snprintf(run, sizeof run, "c-%ld-%d", (long)getpid(), is_refused);
        setenv("SLURM_JOB_ID", run, 1); /* these ranks find each other by it */
        pid_t children[2];
        for (uint32_t rank = 0; rank < 2; ++rank) {
            children[rank] = fork();
            if (children[rank] == 0) _exit(run_rank(rank, 2, 100 + rank + (is_refused ? 1000 : 0), 4));
        }
        for (int rank = 0; rank < 2; ++rank) {
            int status = -1;
            EXPECT(waitpid(children[rank], &status, 0) == children[rank] && status == 0);
        }
        const pid_t child = fork();
        if (child == 0) _exit(run_rank(0, 1, is_refused ? 0 : 201, 0));
        int status = -1;
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
        unsetenv("SLURM_JOB_ID");
        remove_folder();
    }
}

int main(void) {
    test_splittable_state_is_dealt_out_by_the_callback();
    test_the_gang_and_its_page();
    test_state_of_every_type_comes_back();
    test_wrong_input_is_refused_with_words();
    if (failures != 0) fprintf(stderr, "%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
