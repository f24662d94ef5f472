// A trainer whose weights are integers, so that runs compare bit by bit whatever the order of a reduction: each step sums a
// contribution of every rank (MPI_Allreduce; nothing with --no-mpi) and mixes it into the weights.
//
//   steady --steps N [--step-ms M] [--every K] [--starts FILE] [--payload-mib B] [--no-mpi] [--elastic] [--wait-saves] [--due]
//
// The metric of a save is its distance from step 40; with --wait-saves each counts before the next step; with --due they are made when they are due, beside the next step's sleep. With --starts each start appends "attempt rank pid first-step" to FILE. At the end each rank prints "weights RANK DIGEST".

#include <mpi.h>

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "runner/worker/gang.h"

namespace {

struct Options {
    std::uint64_t steps = 200;
    std::uint64_t step_ms = 20;
    std::uint64_t every = 10;
    std::uint64_t payload_mib = 0;
    std::string starts;
    bool use_mpi = true;
    bool wait_saves = false;
    bool due = false;
    bool elastic = false;  // what is saved fits any number of ranks
};

Options options_of(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name == "--no-mpi") {
            options.use_mpi = false;
            continue;
        }
        if (name == "--wait-saves") {
            options.wait_saves = true;
            continue;
        }
        if (name == "--due") {
            options.due = true;
            continue;
        }
        if (name == "--elastic") {
            options.elastic = true;
            continue;
        }
        if (i + 1 == argc) std::exit(2);
        const char* const value = argv[++i];
        if (name == "--steps") options.steps = std::strtoull(value, nullptr, 10);
        else if (name == "--step-ms") options.step_ms = std::strtoull(value, nullptr, 10);
        else if (name == "--every") options.every = std::strtoull(value, nullptr, 10);
        else if (name == "--payload-mib") options.payload_mib = std::strtoull(value, nullptr, 10);
        else if (name == "--starts") options.starts = value;
        else std::exit(2);
    }
    return options;
}

std::uint64_t mix(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
}

struct Model {
    std::vector<std::uint64_t> weights = std::vector<std::uint64_t>(1024);  // the same on every rank
    std::vector<std::uint64_t> moments = std::vector<std::uint64_t>(256);   // this rank's own
    std::vector<std::uint64_t> payload;                                     // weight to carry, this rank's own
    std::uint64_t all_samples = 0;                                          // one a step and rank, by every rank's count
    std::uint64_t samples = 0;                                              // those of this rank
    double step_s = 0;                                                      // of this rank's last step; worth nothing to another gang

    void step(std::uint64_t step, int rank, bool use_mpi) {
        std::vector<std::uint64_t> gradient(weights.size());
        const auto seed = mix(step) ^ mix(static_cast<std::uint64_t>(rank) + 77);
        for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = mix(weights[i] ^ seed);
        if (use_mpi) MPI_Allreduce(MPI_IN_PLACE, gradient.data(), static_cast<int>(gradient.size()), MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = mix(weights[i] + gradient[i]);
        for (std::size_t i = 0; i < moments.size(); ++i) moments[i] = mix(moments[i] + weights[i] + static_cast<std::uint64_t>(rank));
        for (std::size_t i = 0; i < payload.size(); i += 512) payload[i] = mix(payload[i] + weights[i % weights.size()]);
    }

    std::uint64_t digest() const {
        std::uint64_t sum = 14695981039346656037U;
        for (const auto* part : {&weights, &moments, &payload}) {
            for (const std::uint64_t value : *part) sum = mix(sum ^ value);
        }
        return sum;
    }
};

// Each rank's own: the samples are shared out anew by another number of ranks, and none may be lost or counted twice.
gangline::Result<void> track_own(gangline::Gang& gang, Model& model) {
    if (auto done = gang.track("all_samples", &model.all_samples, {}); !done) return done;
    if (auto done = gang.track("step_s", &model.step_s, {}, gangline::Policy::Drop); !done) return done;
    return gang.track("samples", &model.samples, {}, gangline::Policy::Splittable, [&model](const gangline::Split& split) {
        std::uint64_t all = 0;
        for (const auto& old : split.old) all += old.as<std::uint64_t>()[0];
        model.samples = all / split.world + (split.rank < all % split.world ? 1 : 0);
        return gangline::Result<void>();
    });
}

bool samples_are_exact(const Model& model, bool use_mpi) {
    std::uint64_t all = model.samples;
    if (use_mpi) MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return all == model.all_samples;
}

template <class T>
void insist(const gangline::Result<T>& result) {
    if (result) return;
    std::fprintf(stderr, "steady: %s\n", result.error().message.c_str());
    std::exit(70);
}

void note_start(const Options& options, const gangline::Gang& gang, std::uint64_t first) {
    std::printf("start attempt %u rank %d of %d from %llu\n", gang.attempt(), gang.rank(), gang.size(), static_cast<unsigned long long>(first));
    std::fflush(stdout);
    if (options.starts.empty()) return;
    char line[128];
    const int size = std::snprintf(line, sizeof line, "%u %d %d %llu\n", gang.attempt(), gang.rank(), static_cast<int>(::getpid()),
                                   static_cast<unsigned long long>(first));
    const int file = ::open(options.starts.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0 || ::write(file, line, static_cast<std::size_t>(size)) != size) std::exit(71);
    ::close(file);
}

// Ranks hear of a stop at different times, and must leave after the same step.
bool all_stop(bool stop, bool use_mpi) {
    int wanted = stop ? 1 : 0;
    if (use_mpi) MPI_Allreduce(MPI_IN_PLACE, &wanted, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return wanted != 0;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = options_of(argc, argv);
    if (options.use_mpi) MPI_Init(&argc, &argv);
    auto joined = gangline::Gang::join();
    insist(joined);
    gangline::Gang& gang = *joined;
    if (options.use_mpi) {
        int size = 0;
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        if (size != gang.size()) {
            std::fprintf(stderr, "steady: MPI has %d ranks, the gang %d\n", size, gang.size());
            return 72;
        }
    }
    gang.total_steps(options.steps);

    Model model;
    model.payload.resize(options.payload_mib << 17U);
    const auto rank = static_cast<std::uint64_t>(gang.rank());
    const auto size = static_cast<std::uint64_t>(gang.size());
    insist(gang.track("weights", model.weights.data(), {model.weights.size()}));
    if (options.elastic) insist(track_own(gang, model));
    if (!options.elastic) insist(gang.track_slice("moments", model.moments.data(), {model.moments.size() * size}, {model.moments.size() * rank}, {model.moments.size()}));
    if (!model.payload.empty()) {
        insist(gang.track_slice("payload", model.payload.data(), {model.payload.size() * size}, {model.payload.size() * rank}, {model.payload.size()}));
    }
    const auto restored = gang.restore();
    insist(restored);
    const std::uint64_t first = restored->value_or(0);
    note_start(options, gang, first);
    if (options.elastic && !samples_are_exact(model, options.use_mpi)) {
        std::fprintf(stderr, "steady: %llu samples were taken, the ranks count others\n", static_cast<unsigned long long>(model.all_samples));
        return 73;
    }

    for (std::uint64_t step = first; step < options.steps;) {
        if (all_stop(gang.should_stop(), options.use_mpi)) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(options.step_ms));
        gang.fence();
        model.step(step, gang.rank(), options.use_mpi);
        model.all_samples += size;
        ++model.samples;
        gang.progress(++step, {.samples = 1, .flops = 1e6, .loss = 1.0 / static_cast<double>(step)});
        const bool is_due = options.due ? gang.should_save(step) : options.every != 0 && step % options.every == 0;
        if (!is_due) continue;
        const gangline::Save save = gang.save(step, {.mode = options.due ? gangline::SaveMode::Fenced : gangline::SaveMode::Now, .metric = static_cast<double>(step < 40 ? 40 - step : step - 40)});
        if (options.wait_saves) insist(save.wait());
    }
    insist(gang.finish());
    std::printf("weights %d %016llx\n", gang.rank(), static_cast<unsigned long long>(model.digest()));
    std::fflush(stdout);
    if (options.use_mpi) MPI_Finalize();
    return 0;
}
