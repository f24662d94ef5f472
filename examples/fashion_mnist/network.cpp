#include "examples/fashion_mnist/network.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace fashion_mnist {
namespace {

constexpr std::size_t kTile = 8;  // rows of a batch that share one pass over W1

// out[row][j] += sum over k of x[row][k] w[k][j], for `rows` rows; k ascends.
void multiply_tile(const float* x, const float* w, float* out, std::size_t rows) {
    for (std::size_t k = 0; k < kPixels; ++k) {
        const float* weights = w + k * kHidden;
        for (std::size_t row = 0; row < rows; ++row) {
            const float value = x[row * kPixels + k];
            if (value == 0.0f) continue;  // a good part of every image is black
            float* sum = out + row * kHidden;
            for (std::size_t j = 0; j < kHidden; ++j) sum[j] += value * weights[j];
        }
    }
}

}  // namespace

std::vector<float> initial_parameters(std::uint64_t seed) {
    std::vector<float> parameters(kParameters, 0.0f);
    std::mt19937_64 random(seed);
    auto fill = [&](std::size_t begin, std::size_t end, std::size_t inputs) {
        const double bound = std::sqrt(6.0 / static_cast<double>(inputs));  // He, uniform
        for (std::size_t i = begin; i < end; ++i) {
            const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
            parameters[i] = static_cast<float>((2 * unit - 1) * bound);
        }
    };
    fill(kW1, kB1, kPixels);
    fill(kW2, kB2, kHidden);
    return parameters;
}

void gather(const Dataset& data, std::span<const std::uint32_t> samples, Batch& batch) {
    batch.x.resize(samples.size() * kPixels);
    batch.labels.resize(samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const std::uint8_t* image = data.pixels.data() + samples[i] * kPixels;
        float* to = batch.x.data() + i * kPixels;
        for (std::size_t p = 0; p < kPixels; ++p) to[p] = static_cast<float>(image[p]) * (1.0f / 255.0f);
        batch.labels[i] = data.labels[samples[i]];
    }
}

void Network::forward(const float* parameters, const Batch& batch) {
    const std::size_t count = batch.count();
    h_.resize(count * kHidden);
    y_.resize(count * kClasses);
    for (std::size_t i = 0; i < count; ++i) std::copy_n(parameters + kB1, kHidden, h_.data() + i * kHidden);
    for (std::size_t i = 0; i < count; i += kTile) {
        multiply_tile(batch.x.data() + i * kPixels, parameters + kW1, h_.data() + i * kHidden, std::min(kTile, count - i));
    }
    for (float& value : h_) value = std::max(value, 0.0f);
    for (std::size_t i = 0; i < count; ++i) {
        float* y = y_.data() + i * kClasses;
        std::copy_n(parameters + kB2, kClasses, y);
        for (std::size_t j = 0; j < kHidden; ++j) {
            const float value = h_[i * kHidden + j];
            const float* weights = parameters + kW2 + j * kClasses;
            for (std::size_t c = 0; c < kClasses; ++c) y[c] += value * weights[c];
        }
    }
}

Outcome Network::compare(const Batch& batch) {
    Outcome outcome;
    for (std::size_t i = 0; i < batch.count(); ++i) {
        float* y = y_.data() + i * kClasses;
        const std::size_t label = batch.labels[i];
        const float most = *std::max_element(y, y + kClasses);
        if (std::max_element(y, y + kClasses) == y + label) ++outcome.right;
        float sum = 0;
        for (std::size_t c = 0; c < kClasses; ++c) {
            y[c] = std::exp(y[c] - most);
            sum += y[c];
        }
        for (std::size_t c = 0; c < kClasses; ++c) y[c] /= sum;
        outcome.loss -= std::log(std::max(y[label], 1e-30f));
        y[label] -= 1.0f;
    }
    return outcome;
}

Outcome Network::evaluate(std::span<const float> parameters, const Batch& batch) {
    forward(parameters.data(), batch);
    return compare(batch);
}

Outcome Network::gradient(std::span<const float> parameters, const Batch& batch, std::span<float> gradient) {
    forward(parameters.data(), batch);
    const Outcome outcome = compare(batch);
    const std::size_t count = batch.count();
    dh_.assign(count * kHidden, 0.0f);
    float* const g = gradient.data();
    for (std::size_t i = 0; i < count; ++i) {
        const float* dy = y_.data() + i * kClasses;
        for (std::size_t c = 0; c < kClasses; ++c) g[kB2 + c] += dy[c];
        for (std::size_t j = 0; j < kHidden; ++j) {
            const float value = h_[i * kHidden + j];
            if (value <= 0.0f) continue;
            const float* weights = parameters.data() + kW2 + j * kClasses;
            float* to = g + kW2 + j * kClasses;
            float sum = 0;
            for (std::size_t c = 0; c < kClasses; ++c) {
                to[c] += value * dy[c];
                sum += weights[c] * dy[c];
            }
            dh_[i * kHidden + j] = sum;
            g[kB1 + j] += sum;
        }
    }
    for (std::size_t i = 0; i < count; i += kTile) {
        const std::size_t rows = std::min(kTile, count - i);
        for (std::size_t k = 0; k < kPixels; ++k) {
            float* to = g + kW1 + k * kHidden;
            for (std::size_t row = i; row < i + rows; ++row) {
                const float value = batch.x[row * kPixels + k];
                if (value == 0.0f) continue;
                const float* from = dh_.data() + row * kHidden;
                for (std::size_t j = 0; j < kHidden; ++j) to[j] += value * from[j];
            }
        }
    }
    return outcome;
}

void apply(const Rule& rule, float scale, std::span<const float> gradient, std::span<float> velocity, std::span<float> parameters) {
    const float* const g = gradient.data();
    float* const v = velocity.data();
    float* const p = parameters.data();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        v[i] = rule.momentum * v[i] + scale * g[i];
        p[i] -= rule.learning_rate * v[i];
    }
}

}  // namespace fashion_mnist
