// Data-parallel training on Fashion-MNIST with MPI: every rank computes the gradient of its slice of the global batch, an
// all-reduce adds them, every rank takes the same step. Checkpoints and restarts through the worker library; the final
// weights do not depend on how often the gang was killed on the way.
//
//   gangline run --ranks 4 -- fashion_mnist --steps 1200        mpirun -n 4 fashion_mnist --steps 1200

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "base/process.h"
#include "checkpoint/checksum.h"
#include "examples/fashion_mnist/dataset.h"
#include "examples/fashion_mnist/network.h"
#include "runner/worker/gang.h"

namespace {

using namespace fashion_mnist;

struct Options {
    std::string data = "/usr/share/datasets/fashion-mnist";
    std::string weights_out;
    std::uint64_t steps = 1200;
    std::uint64_t batch = 1024;
    std::uint64_t checkpoint_every = 100;
    std::uint64_t print_every = 50;
    std::uint64_t seed = 1;
    float learning_rate = 0.15f;
};

// Empty on success; what is wrong and what is allowed otherwise.
std::string parse(int argc, char** argv, Options& options, bool& wants_help) {
    namespace po = boost::program_options;
    po::options_description all("fashion_mnist: data-parallel training on Fashion-MNIST");
    auto add = all.add_options();
    add("help,h", "this text");
    add("data", po::value(&options.data)->default_value(options.data), "folder of the dataset");
    add("steps", po::value(&options.steps)->default_value(options.steps), "training steps, from 1");
    add("batch", po::value(&options.batch)->default_value(options.batch), "samples a step, over all ranks");
    add("checkpoint-every", po::value(&options.checkpoint_every)->default_value(options.checkpoint_every), "steps; 0: none");
    add("print-every", po::value(&options.print_every)->default_value(options.print_every), "steps; 0: never");
    add("seed", po::value(&options.seed)->default_value(options.seed), "of the first weights and the order of samples");
    add("lr", po::value(&options.learning_rate)->default_value(options.learning_rate), "learning rate, above 0");
    add("weights-out", po::value(&options.weights_out), "file for the final weights (rank 0 writes it)");
    try {
        po::variables_map values;
        po::store(po::parse_command_line(argc, argv, all), values);
        po::notify(values);
        wants_help = values.count("help") > 0;
    } catch (const po::error& error) {
        return fmt::format("{}; see --help", error.what());
    }
    if (wants_help) std::cout << all;
    if (options.steps == 0) return "--steps 0: must be at least 1";
    if (options.batch == 0 || options.batch > 60000) return fmt::format("--batch {}: must be from 1 to 60000", options.batch);
    if (!(options.learning_rate > 0)) return fmt::format("--lr {}: must be above 0", options.learning_rate);
    return "";
}

[[noreturn]] void die(const std::string& why) {
    fmt::print(stderr, "fashion_mnist: {}\n", why);
    std::fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::abort();
}

void must(const gangline::Result<void>& result) {
    if (!result) die(result.error().message);
}

// An all-reduce whose sums run in rank order: each rank adds its piece of everybody's vector, then all share the pieces.
// MPI_Allreduce may choose another order on another set of nodes; here the result depends on the number of ranks alone.
class FixedOrderSum {
  public:
    FixedOrderSum(std::size_t count, int ranks)
        : piece_((count + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks)),
          ranks_(static_cast<std::size_t>(ranks)),
          values_(piece_ * ranks_, 0.0f),
          received_(piece_ * ranks_),
          sum_(piece_) {}

    std::vector<float>& values() { return values_; }  // in: this rank's; out: the sums
    void run() {
        const int piece = static_cast<int>(piece_);
        MPI_Alltoall(values_.data(), piece, MPI_FLOAT, received_.data(), piece, MPI_FLOAT, MPI_COMM_WORLD);
        std::copy_n(received_.begin(), piece_, sum_.begin());
        for (std::size_t rank = 1; rank < ranks_; ++rank) {
            const float* from = received_.data() + rank * piece_;
            for (std::size_t i = 0; i < piece_; ++i) sum_[i] += from[i];
        }
        MPI_Allgather(sum_.data(), piece, MPI_FLOAT, values_.data(), piece, MPI_FLOAT, MPI_COMM_WORLD);
    }

  private:
    std::size_t piece_;
    std::size_t ranks_;
    std::vector<float> values_;
    std::vector<float> received_;
    std::vector<float> sum_;
};

// Which samples of the global batch of a step this rank takes.
class Sampler {
  public:
    Sampler(std::size_t samples, std::uint64_t seed, std::uint64_t batch) : samples_(samples), seed_(seed), batch_(batch) {}
    std::span<const std::uint32_t> slice(std::uint64_t step, int rank, int ranks) {
        const std::uint64_t batches = samples_ / batch_;
        if (order_.empty() || epoch_ != step / batches) {
            epoch_ = step / batches;
            order_ = order_of(samples_, seed_, epoch_);
        }
        const std::uint64_t begin = step % batches * batch_;
        const auto part = [&](int which) { return begin + batch_ * static_cast<std::uint64_t>(which) / static_cast<std::uint64_t>(ranks); };
        return std::span(order_).subspan(part(rank), part(rank + 1) - part(rank));
    }

  private:
    std::size_t samples_;
    std::uint64_t seed_;
    std::uint64_t batch_;
    std::uint64_t epoch_ = 0;
    std::vector<std::uint32_t> order_;
};

struct State {
    std::vector<float> parameters;
    std::vector<float> velocity;
    std::uint64_t samples = 0;  // that this rank has taken; all ranks' together are the position in the data
};

void train(const Options& options, gangline::Gang& gang, const Dataset& data, State& state, std::uint64_t first) {
    const int rank = gang.rank();
    const int ranks = gang.size();
    const Rule rule{options.learning_rate, 0.9f};
    // Behind the gradient travel the loss and whether a rank has been told to stop.
    constexpr std::size_t kLoss = kParameters;
    constexpr std::size_t kStop = kParameters + 1;
    FixedOrderSum sum(kParameters + 2, ranks);
    Sampler sampler(data.count(), options.seed, options.batch);
    Network network;
    Batch batch;
    bool has_saved_for_stop = false;
    for (std::uint64_t step = first; step < options.steps;) {
        {
            const auto waiting = gang.data_wait();
            gather(data, sampler.slice(step, rank, ranks), batch);
        }
        std::vector<float>& values = sum.values();
        std::fill(values.begin(), values.end(), 0.0f);
        const Outcome outcome = network.gradient(state.parameters, batch, std::span(values).first(kParameters));
        values[kLoss] = static_cast<float>(outcome.loss);
        values[kStop] = gang.should_stop() ? 1.0f : 0.0f;
        {
            const auto communicating = gang.communication();
            sum.run();
        }
        const float scale = 1.0f / static_cast<float>(options.batch);
        apply(rule, scale, std::span(values).first(kParameters), state.velocity, state.parameters);
        state.samples += batch.count();
        ++step;
        const double loss = static_cast<double>(values[kLoss]) / static_cast<double>(options.batch);
        const auto samples = static_cast<double>(batch.count());
        gang.progress(step, {.samples = samples, .flops = 6.0 * samples * static_cast<double>(kParameters), .loss = loss});
        const bool is_due = options.checkpoint_every > 0 && step % options.checkpoint_every == 0 && step < options.steps;
        const bool must_stop = values[kStop] > 0 && !has_saved_for_stop;  // the runner ends the program; it trains on until then
        if (is_due || must_stop) gang.save(step);
        has_saved_for_stop = has_saved_for_stop || must_stop;
        if (rank == 0 && options.print_every > 0 && (step % options.print_every == 0 || step == options.steps)) {
            fmt::print("step {}/{} loss {:.4f}\n", step, options.steps, loss);
            std::fflush(stdout);
        }
    }
}

double test_accuracy(gangline::Gang& gang, const Dataset& test, const State& state) {
    const auto phase = gang.phase("eval");
    std::vector<std::uint32_t> mine;
    for (std::size_t i = static_cast<std::size_t>(gang.rank()); i < test.count(); i += static_cast<std::size_t>(gang.size())) {
        mine.push_back(static_cast<std::uint32_t>(i));
    }
    Network network;
    Batch batch;
    unsigned long right = 0;
    for (std::size_t begin = 0; begin < mine.size(); begin += 500) {
        gather(test, std::span(mine).subspan(begin, std::min<std::size_t>(500, mine.size() - begin)), batch);
        right += network.evaluate(state.parameters, batch).right;
    }
    unsigned long all = 0;
    MPI_Allreduce(&right, &all, 1, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
    return 100.0 * static_cast<double>(all) / static_cast<double>(test.count());
}

void write_weights(const Options& options, const State& state) {
    const std::string_view bytes(reinterpret_cast<const char*>(state.parameters.data()), state.parameters.size() * sizeof(float));
    if (!options.weights_out.empty()) must(gangline::write_file_atomically(options.weights_out, bytes));
    fmt::print("weights sha256 {}\n", gangline::checkpoint::to_hex(gangline::checkpoint::sha256(bytes)));
}

// The order of the samples is a function of seed and step, so there is no random state to keep; each rank's count is shared out
// anew when another number of ranks goes on.
void track(gangline::Gang& gang, State& state) {
    must(gang.track("model/parameters", state.parameters.data(), {kParameters}));
    must(gang.track("optimizer/velocity", state.velocity.data(), {kParameters}));
    must(gang.track("data/samples", &state.samples, {}, gangline::Policy::Splittable, [&state](const gangline::Split& split) {
        std::uint64_t all = 0;
        for (const auto& old : split.old) all += old.as<std::uint64_t>()[0];
        state.samples = all / split.world + (split.rank < all % split.world ? 1 : 0);
        return gangline::Result<void>();
    }));
}

std::uint64_t position_of(const State& state) {
    std::uint64_t all = 0;
    MPI_Allreduce(&state.samples, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

int run(const Options& options) {
    auto joined = gangline::Gang::join();
    if (!joined) die(joined.error().message);
    gangline::Gang& gang = *joined;
    int rank = 0;
    int ranks = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank != gang.rank() || ranks != gang.size()) die(fmt::format("MPI says rank {} of {}, the gang {} of {}", rank, ranks, gang.rank(), gang.size()));
    if (options.batch < static_cast<std::uint64_t>(ranks)) die(fmt::format("--batch {}: must be at least the number of ranks, {}", options.batch, ranks));

    State state{initial_parameters(options.seed), std::vector<float>(kParameters, 0.0f)};
    track(gang, state);
    const auto restored = gang.restore();
    if (!restored) die(restored.error().message);
    const std::uint64_t first = restored->value_or(0);
    if (const std::uint64_t position = position_of(state); position != first * options.batch) {
        die(fmt::format("the checkpoint of step {} was trained with another --batch ({} samples were taken)", first, position));
    }
    if (rank == 0 && *restored) fmt::print("resumed at step {}\n", first);
    gang.total_steps(options.steps);
    auto data = load(options.data, "train");
    if (!data) die(data.error().message);
    const auto test = load(options.data, "t10k");
    if (!test) die(test.error().message);

    train(options, gang, *data, state, first);
    const double accuracy = test_accuracy(gang, *test, state);
    if (rank == 0) {
        write_weights(options, state);
        fmt::print("test accuracy {:.1f} %\n", accuracy);
        std::fflush(stdout);
    }
    must(gang.finish());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    bool wants_help = false;
    const std::string problem = parse(argc, argv, options, wants_help);
    if (!problem.empty()) {
        fmt::print(stderr, "fashion_mnist: {}\n", problem);
        return 2;
    }
    if (wants_help) return 0;
    MPI_Init(&argc, &argv);
    const int status = run(options);
    MPI_Finalize();
    return status;
}
