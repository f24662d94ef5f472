#include "runner/worker/gangline.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runner/worker/gang.h"

struct gangline_gang {
    gangline::Gang gang;
    std::vector<gangline::Gang::Scope> phases;
    std::optional<gangline::Gang::Scope> data_wait;
    std::optional<gangline::Gang::Scope> communication;
};

struct gangline_save_handle {
    gangline::Save save;
};

namespace {

using gangline::Code;
using gangline::DType;
using gangline::Error;
using gangline::Policy;
using gangline::Result;
using gangline::Shape;
using gangline::Tensor;

static_assert(static_cast<int>(DType::F64) == GANGLINE_FLOAT64 && static_cast<int>(DType::F32) == GANGLINE_FLOAT32 &&
              static_cast<int>(DType::F16) == GANGLINE_FLOAT16 && static_cast<int>(DType::BF16) == GANGLINE_BFLOAT16 &&
              static_cast<int>(DType::F8E4M3) == GANGLINE_FLOAT8_E4M3FN && static_cast<int>(DType::F8E5M2) == GANGLINE_FLOAT8_E5M2 &&
              static_cast<int>(DType::I64) == GANGLINE_INT64 && static_cast<int>(DType::I32) == GANGLINE_INT32 &&
              static_cast<int>(DType::I16) == GANGLINE_INT16 && static_cast<int>(DType::I8) == GANGLINE_INT8 &&
              static_cast<int>(DType::U64) == GANGLINE_UINT64 && static_cast<int>(DType::U32) == GANGLINE_UINT32 &&
              static_cast<int>(DType::U16) == GANGLINE_UINT16 && static_cast<int>(DType::U8) == GANGLINE_UINT8 &&
              static_cast<int>(DType::Bool) == GANGLINE_BOOL);
static_assert(static_cast<int>(Policy::Replicated) == GANGLINE_REPLICATED && static_cast<int>(Policy::Sliced) == GANGLINE_SLICED &&
              static_cast<int>(Policy::PerRank) == GANGLINE_PER_RANK && static_cast<int>(Policy::Splittable) == GANGLINE_SPLITTABLE &&
              static_cast<int>(Policy::Drop) == GANGLINE_DROP);

thread_local std::string last_error;

gangline_code code_of(Code code) {
    switch (code) {
        case Code::InvalidArgument: return GANGLINE_INVALID_ARGUMENT;
        case Code::Refused: return GANGLINE_REFUSED;
        case Code::Unavailable: return GANGLINE_UNAVAILABLE;
        case Code::NotFound: return GANGLINE_NOT_FOUND;
        case Code::NoSpace: return GANGLINE_NO_SPACE;
        case Code::Damaged: return GANGLINE_DAMAGED;
        case Code::Deadline: return GANGLINE_DEADLINE;
        case Code::Internal: return GANGLINE_INTERNAL;
    }
    return GANGLINE_INTERNAL;
}

gangline_code fail(gangline_code code, std::string_view what) noexcept {
    try {
        last_error = what;
    } catch (...) {
        last_error.clear();  // no memory for words
    }
    return code;
}

struct Pointer {
    const char* name;
    const void* value;
};

// Refuses the first of these pointers that is null; else runs `body(function)` and turns what comes out of it into a code.
template <class Body>
gangline_code guarded(const char* function, std::initializer_list<Pointer> pointers, const Body& body) noexcept {
    try {
        for (const Pointer& pointer : pointers) {
            if (pointer.value == nullptr) return fail(GANGLINE_INVALID_ARGUMENT, fmt::format("{}: `{}` is null", function, pointer.name));
        }
        const Result<void> done = body(function);
        if (done) return GANGLINE_OK;
        return fail(code_of(done.error().code), done.error().message);
    } catch (const std::bad_alloc&) {
        return fail(GANGLINE_NO_SPACE, "no memory");
    } catch (const std::exception& error) {
        return fail(GANGLINE_INTERNAL, error.what());
    } catch (...) {
        return fail(GANGLINE_INTERNAL, "an exception that is none of the standard's");
    }
}

// A call that cannot fail.
template <class Do>
gangline_code simply(const char* function, gangline_gang* gang, const Do& act) noexcept {
    return guarded(function, {{"gang", gang}}, [&](const char*) {
        act(gang->gang);
        return Result<void>();
    });
}

// A question whose answer is one value.
template <class Out, class Ask>
gangline_code answer(const char* function, const gangline_gang* gang, const char* name, Out* out, const Ask& ask) noexcept {
    return guarded(function, {{"gang", gang}, {name, out}}, [&](const char*) {
        *out = static_cast<Out>(ask(gang->gang));
        return Result<void>();
    });
}

Error wrong(const char* function, std::string_view what) { return {Code::InvalidArgument, fmt::format("{}: {}", function, what)}; }

std::chrono::milliseconds limit_of(uint64_t limit_ms) {
    constexpr uint64_t kMost = 1000ull * 3600 * 24 * 365;  // a year: none that is longer can be added to a clock without care
    return std::chrono::milliseconds(std::min(limit_ms, kMost));
}

Result<Tensor> tensor_of(const char* function, const char* name, int dtype, int policy, uint32_t ndim, const uint64_t* global_shape, const uint64_t* offset,
                         const uint64_t* extent, void* data) {
    const auto refuse = [&](const std::string& what) { return Error{Code::InvalidArgument, fmt::format("{}: tensor '{}': {}", function, name, what)}; };
    const auto known_dtype = dtype < 0 || dtype > 255 ? std::nullopt : gangline::checkpoint::dtype_of(static_cast<std::uint8_t>(dtype));
    const auto known_policy = policy < 0 || policy > 255 ? std::nullopt : gangline::checkpoint::policy_of(static_cast<std::uint8_t>(policy));
    if (!known_dtype) return refuse(fmt::format("there is no dtype {}, those from {} to {} are", dtype, static_cast<int>(GANGLINE_FLOAT64), static_cast<int>(GANGLINE_BOOL)));
    if (!known_policy) return refuse(fmt::format("there is no policy {}, those from {} to {} are", policy, static_cast<int>(GANGLINE_REPLICATED), static_cast<int>(GANGLINE_DROP)));
    if (ndim > gangline::checkpoint::kMostDimensions) return refuse(fmt::format("ndim is {}, at most {} are possible", ndim, gangline::checkpoint::kMostDimensions));
    if (ndim > 0 && global_shape == nullptr) return refuse(fmt::format("the shape is null, ndim is {}", ndim));
    if (ndim > 0 && (offset == nullptr) != (extent == nullptr)) return refuse("one of `offset` and `extent` is null: give both, or none for all of it");
    Tensor tensor;
    tensor.name = name;
    tensor.dtype = *known_dtype;
    tensor.policy = *known_policy;
    tensor.data = data;
    if (ndim > 0) tensor.global_shape = Shape(global_shape, global_shape + ndim);
    tensor.offset = ndim > 0 && offset != nullptr ? Shape(offset, offset + ndim) : Shape(ndim, 0);
    tensor.extent = ndim > 0 && extent != nullptr ? Shape(extent, extent + ndim) : tensor.global_shape;
    return tensor;
}

Result<void> refuse_begun(const char* function, const std::optional<gangline::Gang::Scope>& wait) {
    if (wait) return wrong(function, "it has begun already and not ended");
    return {};
}

gangline_code end_wait(const char* function, gangline_gang* gang, std::optional<gangline::Gang::Scope> gangline_gang::*wait) noexcept {
    return guarded(function, {{"gang", gang}}, [&](const char*) -> Result<void> {
        if (!(gang->*wait)) return wrong(function, "it has not begun");
        (gang->*wait).reset();
        return {};
    });
}

gangline_code save_with(const char* name, gangline_gang* gang, uint64_t step, int mode, std::optional<double> metric, gangline_save_handle** save) {
    if (save != nullptr) *save = nullptr;
    return guarded(name, {{"gang", gang}}, [&](const char* function) -> Result<void> {
        if (mode != GANGLINE_SAVE_NOW && mode != GANGLINE_SAVE_FENCED) return wrong(function, fmt::format("there is no mode {}", mode));
        auto handle = std::make_unique<gangline_save_handle>(gangline_save_handle{gangline::Save(nullptr)});
        handle->save = gang->gang.save(step, {.mode = mode == GANGLINE_SAVE_NOW ? gangline::SaveMode::Now : gangline::SaveMode::Fenced, .metric = metric});
        if (handle->save.is_done()) {
            if (auto outcome = handle->save.wait(); !outcome && outcome.error().code == Code::InvalidArgument) return outcome;
        }
        if (save != nullptr) *save = handle.release();
        return {};
    });
}

}  // namespace

uint32_t gangline_api_version(void) { return GANGLINE_API_VERSION; }

const char* gangline_last_error(void) { return last_error.c_str(); }

const char* gangline_code_name(int code) {
    switch (code) {
        case GANGLINE_OK: return "ok";
        case GANGLINE_INVALID_ARGUMENT: return "invalid argument";
        case GANGLINE_REFUSED: return "refused";
        case GANGLINE_UNAVAILABLE: return "unavailable";
        case GANGLINE_NOT_FOUND: return "not found";
        case GANGLINE_NO_SPACE: return "no space";
        case GANGLINE_DAMAGED: return "damaged";
        case GANGLINE_DEADLINE: return "deadline";
        case GANGLINE_INTERNAL: return "internal";
        default: return "unknown code";
    }
}

gangline_code gangline_join(gangline_gang** gang) {
    return guarded(__func__, {{"gang", gang}}, [&](const char*) -> Result<void> {
        *gang = nullptr;
        auto joined = gangline::Gang::join();
        if (!joined) return joined.error();
        *gang = new gangline_gang{std::move(*joined), {}, {}, {}};
        return {};
    });
}

gangline_code gangline_leave(gangline_gang** gang) {
    return guarded(__func__, {{"gang", gang}}, [&](const char*) {
        const std::unique_ptr<gangline_gang> left(std::exchange(*gang, nullptr));
        while (left != nullptr && !left->phases.empty()) left->phases.pop_back();  // the inner ones first
        return Result<void>();
    });
}

gangline_code gangline_finish(gangline_gang* gang, uint64_t limit_ms) {
    return guarded(__func__, {{"gang", gang}}, [&](const char*) { return gang->gang.finish(limit_of(limit_ms)); });
}

gangline_code gangline_rank(const gangline_gang* gang, uint32_t* rank) {
    return answer(__func__, gang, "rank", rank, [](const gangline::Gang& one) { return one.rank(); });
}
gangline_code gangline_size(const gangline_gang* gang, uint32_t* size) {
    return answer(__func__, gang, "size", size, [](const gangline::Gang& one) { return one.size(); });
}
gangline_code gangline_attempt(const gangline_gang* gang, uint32_t* attempt) {
    return answer(__func__, gang, "attempt", attempt, [](const gangline::Gang& one) { return one.attempt(); });
}
gangline_code gangline_restarts(const gangline_gang* gang, uint32_t* restarts) {
    return answer(__func__, gang, "restarts", restarts, [](const gangline::Gang& one) { return one.restarts(); });
}
gangline_code gangline_is_alone(const gangline_gang* gang, bool* is_alone) {
    return answer(__func__, gang, "is_alone", is_alone, [](const gangline::Gang& one) { return one.is_alone(); });
}
gangline_code gangline_should_stop(const gangline_gang* gang, bool* should_stop) {
    return answer(__func__, gang, "should_stop", should_stop, [](const gangline::Gang& one) { return one.should_stop(); });
}
gangline_code gangline_seconds_left(const gangline_gang* gang, double* seconds) {
    return answer(__func__, gang, "seconds", seconds, [](const gangline::Gang& one) { return one.seconds_left(); });
}

gangline_code gangline_progress(gangline_gang* gang, uint64_t step, double samples, double flops, double loss) {
    return simply(__func__, gang, [&](gangline::Gang& one) { one.progress(step, {.samples = samples, .flops = flops, .loss = loss}); });
}
gangline_code gangline_total_steps(gangline_gang* gang, uint64_t count) {
    return simply(__func__, gang, [&](gangline::Gang& one) { one.total_steps(count); });
}
gangline_code gangline_phase_begin(gangline_gang* gang, const char* name) {
    return guarded(__func__, {{"gang", gang}, {"name", name}}, [&](const char*) {
        gang->phases.push_back(gang->gang.phase(name));
        return Result<void>();
    });
}
gangline_code gangline_phase_end(gangline_gang* gang) {
    return guarded(__func__, {{"gang", gang}}, [&](const char* function) -> Result<void> {
        if (gang->phases.empty()) return wrong(function, "no phase has begun");
        gang->phases.pop_back();
        return {};
    });
}
gangline_code gangline_data_wait_begin(gangline_gang* gang) {
    return guarded(__func__, {{"gang", gang}}, [&](const char* function) {
        auto checked = refuse_begun(function, gang->data_wait);
        if (checked) gang->data_wait.emplace(gang->gang.data_wait());
        return checked;
    });
}
gangline_code gangline_data_wait_end(gangline_gang* gang) { return end_wait(__func__, gang, &gangline_gang::data_wait); }
gangline_code gangline_communication_begin(gangline_gang* gang) {
    return guarded(__func__, {{"gang", gang}}, [&](const char* function) {
        auto checked = refuse_begun(function, gang->communication);
        if (checked) gang->communication.emplace(gang->gang.communication());
        return checked;
    });
}
gangline_code gangline_communication_end(gangline_gang* gang) { return end_wait(__func__, gang, &gangline_gang::communication); }

gangline_code gangline_track(gangline_gang* gang, const char* name, int dtype, int policy, uint32_t ndim, const uint64_t* global_shape, const uint64_t* offset,
                             const uint64_t* extent, void* data) {
    return guarded(__func__, {{"gang", gang}, {"name", name}}, [&](const char* function) -> Result<void> {
        const auto tensor = tensor_of(function, name, dtype, policy, ndim, global_shape, offset, extent, data);
        if (!tensor) return tensor.error();
        return gang->gang.track(*tensor);
    });
}

gangline_code gangline_track_splittable(gangline_gang* gang, const char* name, int dtype, uint32_t ndim, const uint64_t* shape, void* data, gangline_split split,
                                        void* context) {
    return guarded(__func__, {{"gang", gang}, {"name", name}}, [&](const char* function) -> Result<void> {
        if (split == nullptr) return wrong(function, "`split` is null; gangline_track takes a tensor without one");
        const auto tensor = tensor_of(function, name, dtype, GANGLINE_SPLITTABLE, ndim, shape, nullptr, nullptr, data);
        if (!tensor) return tensor.error();
        return gang->gang.track(*tensor, [split, context](const gangline::Split& all) -> Result<void> {
            std::vector<gangline_old_rank> old;
            for (const auto& one : all.old) {
                old.push_back({one.rank, static_cast<uint32_t>(one.shape.size()), one.shape.data(), one.bytes.data(), one.bytes.size()});
            }
            const int code = split(old.data(), static_cast<uint32_t>(old.size()), all.rank, all.world, context);
            if (code != 0) return Error{Code::Refused, fmt::format("its callback returned {}", code)};
            return {};
        });
    });
}

gangline_code gangline_save(gangline_gang* gang, uint64_t step, int mode, gangline_save_handle** save) {
    return save_with(__func__, gang, step, mode, std::nullopt, save);
}
gangline_code gangline_save_measured(gangline_gang* gang, uint64_t step, int mode, double metric, gangline_save_handle** save) {
    return save_with(__func__, gang, step, mode, metric, save);
}

gangline_code gangline_save_wait(const gangline_save_handle* save, uint64_t limit_ms) {
    return guarded(__func__, {{"save", save}}, [&](const char*) { return save->save.wait(limit_of(limit_ms)); });
}
gangline_code gangline_save_is_done(const gangline_save_handle* save, bool* is_done) {
    return guarded(__func__, {{"save", save}, {"is_done", is_done}}, [&](const char*) {
        *is_done = save->save.is_done();
        return Result<void>();
    });
}
gangline_code gangline_save_step(const gangline_save_handle* save, uint64_t* step) {
    return guarded(__func__, {{"save", save}, {"step", step}}, [&](const char*) {
        *step = save->save.step();
        return Result<void>();
    });
}
gangline_code gangline_save_tier(const gangline_save_handle* save, int* tier) {
    return guarded(__func__, {{"save", save}, {"tier", tier}}, [&](const char*) {
        *tier = save->save.tier() == gangline::SaveTier::Memory ? GANGLINE_TIER_MEMORY : GANGLINE_TIER_DISK;
        return Result<void>();
    });
}
gangline_code gangline_save_release(gangline_save_handle** save) {
    return guarded(__func__, {{"save", save}}, [&](const char*) {
        delete std::exchange(*save, nullptr);
        return Result<void>();
    });
}

gangline_code gangline_fence(gangline_gang* gang) {
    return simply(__func__, gang, [](gangline::Gang& one) { one.fence(); });
}
gangline_code gangline_fence_tensor(gangline_gang* gang, const char* name) {
    return guarded(__func__, {{"gang", gang}, {"name", name}}, [&](const char*) { return gang->gang.fence(name); });
}
gangline_code gangline_should_save(gangline_gang* gang, uint64_t step, bool* should_save) {
    return guarded(__func__, {{"gang", gang}, {"should_save", should_save}}, [&](const char*) {
        *should_save = gang->gang.should_save(step);
        return Result<void>();
    });
}
gangline_code gangline_restore(gangline_gang* gang, bool* is_restored, uint64_t* step) {
    return guarded(__func__, {{"gang", gang}, {"is_restored", is_restored}, {"step", step}}, [&](const char*) -> Result<void> {
        const auto restored = gang->gang.restore();
        if (!restored) return restored.error();
        *is_restored = restored->has_value();
        *step = restored->value_or(0);
        return {};
    });
}
