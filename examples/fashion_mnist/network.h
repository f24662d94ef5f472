#pragma once
// A perceptron with one hidden layer, its gradient, and momentum SGD.
//
//   h = relu(x W1 + b1)    y = softmax(h W2 + b2)    loss = -log y[label]
//   v <- m v + g           p <- p - lr v
//
// Shapes: x [n][784], W1 [784][128], b1 [128], W2 [128][10], b2 [10]; all parameters lie in one vector, in this order.
// Every sum runs in a fixed order, and no loop that the compiler may vectorise is a sum: the same input gives the same
// bits on every x86-64 processor.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "examples/fashion_mnist/dataset.h"

namespace fashion_mnist {

inline constexpr std::size_t kHidden = 128;
inline constexpr std::size_t kW1 = 0;
inline constexpr std::size_t kB1 = kW1 + kPixels * kHidden;
inline constexpr std::size_t kW2 = kB1 + kHidden;
inline constexpr std::size_t kB2 = kW2 + kHidden * kClasses;
inline constexpr std::size_t kParameters = kB2 + kClasses;

std::vector<float> initial_parameters(std::uint64_t seed);

// A batch as the network reads it.
struct Batch {
    std::vector<float> x;  // [n][kPixels], 0 to 1
    std::vector<std::uint8_t> labels;
    std::size_t count() const { return labels.size(); }
};
void gather(const Dataset& data, std::span<const std::uint32_t> samples, Batch& batch);

struct Outcome {
    double loss = 0;  // summed over the batch
    std::size_t right = 0;
};

class Network {
  public:
    // Adds the batch's summed gradient to `gradient` [kParameters].
    Outcome gradient(std::span<const float> parameters, const Batch& batch, std::span<float> gradient);
    Outcome evaluate(std::span<const float> parameters, const Batch& batch);

  private:
    void forward(const float* parameters, const Batch& batch);
    Outcome compare(const Batch& batch);  // turns y_ into d loss / d y

    std::vector<float> h_;   // [n][kHidden]
    std::vector<float> y_;   // [n][kClasses]
    std::vector<float> dh_;  // [n][kHidden]
};

struct Rule {
    float learning_rate = 0.1f;
    float momentum = 0.9f;
};
// `scale` turns the summed gradient into a mean.
void apply(const Rule& rule, float scale, std::span<const float> gradient, std::span<float> velocity, std::span<float> parameters);

}  // namespace fashion_mnist
