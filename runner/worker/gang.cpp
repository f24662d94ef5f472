#include <unistd.h>

#include <algorithm>
#include <set>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <vector>

#include <fmt/format.h>

#include "base/process.h"
#include "base/time.h"
#include "checkpoint/store.h"
#include "runner/worker/gang.h"
#include "runner/worker/line.h"
#include "runner/worker/page.h"
#include "runner/worker/place.h"
#include "runner/worker/saver.h"

namespace gangline {
namespace {

// After a damaged checkpoint the runner ends this gang; the program waits this long for that before it gets the error.
constexpr seconds kDamagedLimit{5};

// The ranks of one run that no launcher has named share their parent.
std::string run_key() {
    const auto parent = process_stat(::getppid());
    return fmt::format("{}-{}-{}", ::geteuid(), ::getppid(), parent ? parent->id.start_ticks : 0);
}

}  // namespace

struct Gang::Impl {
    Impl(Place where, Page page_to_write)
        : place(std::move(where)), page(std::move(page_to_write)), saver(place, [this](const Letter& letter) { return send(letter); }, [this] { still_here(); }) {
        another_world.given_up = place.reseed;
        if (place.rank == 0) another_world.say = [this](const std::string& what) { say(what); };
    }
    ~Impl() {
        saver.stop();  // its threads use the line
        line.reset();  // its thread uses the saver
    }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    // To the user here, and on the job's page.
    void say(const std::string& what) {
        fmt::print(stderr, "gangline: {}\n", what);
        (void)send({WorkerKind::Fault, 0, 0, place.attempt, std::string_view(what).substr(0, 4096)});
    }
    Result<void> send(const Letter& letter) {
        if (line == nullptr) return Error{Code::Unavailable, "the line is not open"};
        return line->send(letter);
    }
    // From any thread, while the training thread waits here.
    void still_here() {
        const std::lock_guard lock(mutex);
        page.still_here();
    }
    void receive(const WorkerHeader& header, std::string_view payload) {
        if (header.kind != static_cast<std::uint16_t>(WorkerKind::StopSoon)) return saver.receive(header, payload);
        std::uint32_t ms = 0;
        if (payload.size() >= 4) std::memcpy(&ms, payload.data(), 4);
        {
            const std::lock_guard lock(mutex);
            stop_at.store((now().steady + milliseconds(ms)).time_since_epoch().count(), std::memory_order_relaxed);
        }
        stop_announced.notify_all();
        saver.hurry();  // the grace is short
    }
    Result<std::optional<std::uint64_t>> restore();
    Result<std::optional<std::uint64_t>> restore_alone(const checkpoint::Store& store);
    Result<void> fill(const checkpoint::Store& store, const RestorePoint& point);
    Error damaged(const RestorePoint& point, Error error);

    const Place place;
    Page page;
    std::atomic<std::int64_t> stop_at{0};  // steady nanoseconds; 0: no stop is announced
    std::mutex mutex;
    std::condition_variable stop_announced;
    std::vector<Tensor> tracked;
    std::set<std::string, std::less<>> tracked_names;
    checkpoint::AnotherWorld another_world;
    Saver saver;
    std::unique_ptr<Line> line;
    bool is_finished = false;
};

Result<std::optional<std::uint64_t>> Gang::Impl::restore() {
    if (!place.is_alone && !place.restore) return std::optional<std::uint64_t>();
    if (place.is_alone && ::access(place.checkpoint_folder.c_str(), F_OK) != 0) return std::optional<std::uint64_t>();
    auto store = checkpoint::Store::open(place.checkpoint_folder);
    if (!store) return store.error();
    if (place.is_alone) return restore_alone(*store);
    auto filled = fill(*store, *place.restore);
    saver.memory().give_back();
    if (!filled && filled.error().code == Code::Damaged) return damaged(*place.restore, filled.error());
    if (!filled) return filled.error();
    return std::optional(place.restore->id.step);
}

Result<void> Gang::Impl::fill(const checkpoint::Store& store, const RestorePoint& point) {
    auto found = point.in_memory ? saver.memory().gather(store, point.id, [this] { still_here(); }) : store.find(point.id, point.digest);
    if (!found) return found.error();
    (void)saver.memory().lend(*found);
    found->while_reading([this] { still_here(); });
    auto filled = found->restore(tracked, place.rank, place.size, another_world);
    if (!found->memory_problems().empty()) fmt::print(stderr, "gangline: {}; its file serves\n", found->memory_problems());
    if (filled && point.in_memory && place.rank == 0) saver.adopt(point.id, found->manifest().world);
    return filled;
}

// The newest is taken or nothing: an older one in its place would be a silent loss.
Result<std::optional<std::uint64_t>> Gang::Impl::restore_alone(const checkpoint::Store& store) {
    const auto there = store.published();
    const auto aside = store.aside();  // found damaged after they were saved
    if (there.empty() && aside.empty()) return std::optional<std::uint64_t>();
    if (there.empty()) {
        return Error{Code::Damaged, fmt::format("{}: each checkpoint was found damaged (.bad-{}); delete the folder to start afresh", place.checkpoint_folder,
                                                checkpoint::folder_name(aside.back()))};
    }
    if (place.rank == 0 && !aside.empty() && aside.back() > there.back()) {
        fmt::print(stderr, "gangline: the checkpoint of step {} was found damaged and set aside: this run goes on from step {}\n", aside.back().step, there.back().step);
    }
    auto found = store.open_published(there.back());
    auto filled = found ? found->restore(tracked, place.rank, place.size, another_world) : Result<void>(found.error());
    if (filled) return std::optional(there.back().step);
    Error error = filled.error();
    if (error.code == Code::Damaged) error.message += fmt::format("; delete {}/{} to go on from the one before it", place.checkpoint_folder, checkpoint::folder_name(there.back()));
    return error;
}

Error Gang::Impl::damaged(const RestorePoint& point, Error error) {
    const std::string text = error.message.substr(0, 4096);
    Letter letter{WorkerKind::Damaged, 0, point.id.step, point.id.attempt, text};
    if (send(letter)) {
        std::unique_lock lock(mutex);
        stop_announced.wait_for(lock, kDamagedLimit, [&] { return stop_at.load() != 0; });
    }
    return error;
}

Gang::Gang(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gang::Gang(Gang&&) noexcept = default;
Gang& Gang::operator=(Gang&&) noexcept = default;
Gang::~Gang() = default;

Result<Gang> Gang::join() {
    auto place = read_place([](const char* name) { return std::getenv(name); }, run_key());
    if (!place) return place.error();
    auto page = Page::open(place->progress_path, place->rank, place->attempt);
    if (!page) return page.error();
    auto impl = std::make_unique<Impl>(std::move(*place), std::move(*page));
    Impl* const self = impl.get();
    auto line = Line::open(self->place, [self](const WorkerHeader& header, std::string_view payload) { self->receive(header, payload); });
    if (!line) return line.error();
    impl->line = std::move(*line);
    impl->page.start_clock(now().steady);
    return Gang(std::move(impl));
}

int Gang::rank() const { return static_cast<int>(impl_->place.rank); }
int Gang::size() const { return static_cast<int>(impl_->place.size); }
std::uint32_t Gang::attempt() const { return impl_->place.attempt; }
std::uint32_t Gang::restarts() const { return impl_->place.restarts; }
bool Gang::is_alone() const { return impl_->place.is_alone; }

void Gang::progress(std::uint64_t step, const StepReport& report) {
    impl_->page.step(step, report.samples, report.flops, report.loss, now().steady);
}

void Gang::total_steps(std::uint64_t count) { impl_->page.set(&ProgressPage::total_steps, count); }

Gang::Scope::Scope(Impl& impl, Kind kind, std::string_view phase) : impl_(&impl), kind_(kind), begun_(now().steady) {
    if (kind != Kind::Phase) return;
    before_ = impl.page.phase();
    impl.page.set_phase(phase);
}

Gang::Scope::Scope(Scope&& other) noexcept
    : impl_(std::exchange(other.impl_, nullptr)), kind_(other.kind_), begun_(other.begun_), before_(std::move(other.before_)) {}

Gang::Scope::~Scope() {
    if (impl_ == nullptr) return;
    Page& page = impl_->page;
    switch (kind_) {
        case Kind::Phase: page.set_phase(before_); break;
        case Kind::DataWait: page.add(&ProgressPage::data_wait_ns, now().steady - begun_); break;
        case Kind::Communication: page.add(&ProgressPage::communication_ns, now().steady - begun_); break;
    }
}

Gang::Scope Gang::phase(std::string_view name) { return {*impl_, Scope::Kind::Phase, name}; }
Gang::Scope Gang::data_wait() { return {*impl_, Scope::Kind::DataWait, {}}; }
Gang::Scope Gang::communication() { return {*impl_, Scope::Kind::Communication, {}}; }

bool Gang::should_stop() const { return impl_->stop_at.load(std::memory_order_relaxed) != 0; }

double Gang::seconds_left() const {
    const std::int64_t stop_at = impl_->stop_at.load(std::memory_order_relaxed);
    if (stop_at == 0) return std::numeric_limits<double>::infinity();
    return std::max(0.0, to_seconds(Duration(stop_at) - now().steady.time_since_epoch()));
}

Result<void> Gang::track(const Tensor& tensor, SplitCallback split) {
    if (auto checked = checkpoint::check_tensor(tensor); !checked) return checked;
    if (split && tensor.policy != Policy::Splittable) {
        return Error{Code::InvalidArgument, fmt::format("tensor '{}': a callback deals out splittable state, this is {}", tensor.name, name_of(tensor.policy))};
    }
    if (!impl_->tracked_names.insert(tensor.name).second) return Error{Code::InvalidArgument, fmt::format("a tensor '{}' is tracked already", tensor.name)};
    if (split) impl_->another_world.splits[tensor.name] = std::move(split);
    impl_->tracked.push_back(tensor);
    if (impl_->tracked.size() == 1) impl_->saver.memory().call_keeper();
    return {};
}

Save Gang::save(std::uint64_t step, const SaveOptions& options) {
    const TimePoint begun = now().steady;
    Save save = impl_->saver.save(step, impl_->tracked, options);
    const Duration stall = now().steady - begun;
    impl_->saver.stalled(stall);
    impl_->page.add(&ProgressPage::checkpoint_stall_ns, stall);
    return save;
}

bool Gang::should_save(std::uint64_t step) { return impl_->saver.is_due(step, should_stop()); }

std::string Gang::save_interval() const { return impl_->saver.interval_reason(); }

void Gang::fence() {
    const TimePoint begun = now().steady;
    impl_->saver.fence();
    const Duration stall = now().steady - begun;
    impl_->saver.stalled(stall);
    impl_->page.add(&ProgressPage::checkpoint_stall_ns, stall);
}

Result<void> Gang::fence(std::string_view tensor) {
    if (!impl_->tracked_names.contains(tensor)) return Error{Code::InvalidArgument, fmt::format("fence('{}'): no tensor of that name is tracked", tensor)};
    const TimePoint begun = now().steady;
    impl_->saver.fence(tensor);
    const Duration stall = now().steady - begun;
    impl_->saver.stalled(stall);
    impl_->page.add(&ProgressPage::checkpoint_stall_ns, stall);
    return {};
}

Result<std::optional<std::uint64_t>> Gang::restore() {
    const TimePoint begun = now().steady;
    impl_->page.set_phase("restore");
    auto step = impl_->restore();
    impl_->page.add(&ProgressPage::restore_ns, now().steady - begun);
    if (step) {
        impl_->page.set(&ProgressPage::first_step, step->value_or(0));
        impl_->page.set(&ProgressPage::step, step->value_or(0));
        impl_->page.set_phase("train");
    }
    impl_->page.start_clock(now().steady);
    return step;
}

Result<void> Gang::finish(std::chrono::milliseconds limit) {
    auto drained = impl_->saver.drain(now().steady + limit);
    if (!drained) return drained;
    if (impl_->is_finished) return {};
    impl_->is_finished = true;
    if (!should_stop()) impl_->saver.give_up_memory();
    impl_->page.set_phase("finished");
    impl_->page.set(&ProgressPage::finished, 1);
    if (!impl_->place.is_alone) (void)impl_->send({WorkerKind::Finished, 0, 0, impl_->place.attempt, {}});
    return {};
}

}  // namespace gangline
