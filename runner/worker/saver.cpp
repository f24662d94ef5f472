#include "runner/worker/saver.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <utility>

#include <fmt/format.h>

#include "base/quiet_thread.h"
#include "checkpoint/shard.h"
#include "runner/worker/mail.h"
#include "runner/worker/priority.h"

namespace gangline {
namespace {

constexpr seconds kWriterLimit{600};
constexpr Duration kSayAgain = seconds(1);
constexpr Duration kAdoptLook = milliseconds(50);
constexpr unsigned kMostCopiers = 3;  // beside the caller; more gain nothing on memory's speed
constexpr std::size_t kMostWaiting = 4 * std::size_t{checkpoint::kMostWorld};

Duration thread_cpu() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return seconds(time.tv_sec) + Duration(time.tv_nsec);
}

}  // namespace

std::uint64_t Save::step() const { return state_->step; }
SaveTier Save::tier() const { return state_->tier; }

bool Save::is_done() const {
    const std::lock_guard lock(state_->mutex);
    return state_->is_done;
}

Result<void> Save::wait(std::chrono::milliseconds limit) const {
    std::unique_lock lock(state_->mutex);
    if (!state_->changed.wait_for(lock, limit, [&] { return state_->is_done; })) {
        if (state_->tier == SaveTier::Memory) return Error{Code::Deadline, fmt::format("the snapshot of step {} is not whole yet", state_->step)};
        return Error{Code::Deadline, fmt::format("whether the checkpoint of step {} counts is not known yet", state_->step)};
    }
    if (state_->error) return *state_->error;
    return {};
}

void Save::State::finish(std::optional<Error> why) {
    {
        const std::lock_guard lock(mutex);
        if (is_done) return;
        is_done = true;
        error = std::move(why);
    }
    changed.notify_all();
}

Saver::Saver(Place place, Send send, std::function<void()> waiting)
    : place_(std::move(place)), send_(std::move(send)), waiting_for_(std::move(waiting)),
      interval_(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(place_.mean_between_failures_s)), now().steady,
                SaveInterval::Tiers{.may_use_memory = may_use_memory(), .has_replicas = false}),
      memory_(place_, [this](bool start) { return send_({WorkerKind::Keeper, 0, 0, place_.attempt, std::string(1, start ? '\1' : '\0')}); },
              [this](std::uint32_t to_rank, bool is_question, const std::string& text) {
                  (void)mail(to_rank, 0, static_cast<char>(is_question ? Mail::WhereKeeper : Mail::KeeperAt) + text);
              },
              [this](std::uint64_t step) { replicated(step); }) {
    image_.when_copied([this] { snapshot_copied(); });
    if (place_.write_mib_s != 0) slow_disk_.emplace(std::uint64_t{place_.write_mib_s} << 20);
}

Saver::~Saver() { stop(); }

// The gang is not to be taken for hanging meanwhile.
template <class Condition>
bool Saver::wait_until(std::unique_lock<std::mutex>& lock, TimePoint limit, const Condition& condition) {
    while (!changed_.wait_until(lock, std::min(limit, now().steady + kSayAgain), condition)) {
        if (now().steady >= limit) return false;
        if (waiting_for_) waiting_for_();
    }
    return true;
}

void Saver::stop() {
    std::map<std::uint64_t, StatePointer> left;
    {
        const std::lock_guard lock(mutex_);
        is_stopping_ = true;
        left.swap(open_);
    }
    changed_.notify_all();
    hurry();
    if (writer_.joinable()) writer_.join();
    if (adopter_.joinable()) adopter_.join();
    adopted_.reset();
    for (std::thread& copier : copiers_) copier.join();
    copiers_.clear();
    committer_.reset();
    memory_.close();
    for (auto& [step, state] : left) state->finish(Error{Code::Unavailable, "the program left the gang before the answer came"});
}

// The folder, and on rank 0 the committer: at the first save, so that a program that never saves needs neither.
Result<void> Saver::open(std::uint64_t step) {
    if (store_) return {};
    auto store = checkpoint::Store::open(place_.checkpoint_folder, slow_disk_ ? *slow_disk_ : checkpoint::real_disk());
    if (!store) return store.error();
    store_ = std::move(*store);
    if (place_.rank != 0) return {};
    const auto ask = [this](std::uint64_t asked, const CommitLetter& letter) {
        {
            const std::lock_guard lock(mutex_);
            written_ = asked;
        }
        return ask_coordinator(asked, letter, place_.attempt);
    };
    auto committer = std::make_unique<CommitLoop>(
        place_, *store_,
        CommitLoop::Outlets{ask, [this](const checkpoint::Tell& outcome) { tell_all(outcome); }, [this](const std::string& what) { complain(what); },
                            [this](const checkpoint::CheckpointId& id, const std::string& what) { tell_tainted(id, what); }});
    const std::lock_guard lock(mutex_);
    committer_ = std::move(committer);
    for (Waiting& letter : waiting_) {
        if (letter.step >= step) committer_->post(std::move(letter.event));
    }
    waiting_.clear();
    return {};
}

Result<void> Saver::ask_coordinator(std::uint64_t step, const CommitLetter& letter, std::uint32_t written_by) {
    return send_({WorkerKind::Commit, 0, step, written_by, encode(letter)});
}

// Shown to the user here, and by `gangline show`.
void Saver::complain(const std::string& what) {
    fmt::print(stderr, "gangline: {}\n", what);
    (void)send_({WorkerKind::Fault, 0, 0, place_.attempt, std::string_view(what).substr(0, 4096)});
}

// It lies there: nobody's state comes from it, and nothing is stopped.
void Saver::tell_tainted(const checkpoint::CheckpointId& id, const std::string& what) {
    fmt::print(stderr, "gangline: the checkpoint of step {} is damaged and set aside: {}\n", id.step, what);
    (void)send_({WorkerKind::DamagedAtRest, 0, id.step, id.attempt, std::string_view(what).substr(0, 4096)});
}

// Alone, a step that is not newer than what lies there means that the program started afresh beside an older run's state.
Result<void> Saver::refuse_stale_folder(std::uint64_t step) const {
    if (!place_.is_alone || last_step_) return {};
    const auto there = store_->published();
    if (there.empty() || there.back().step < step) return {};
    return Error{Code::Refused, fmt::format("{} already holds a checkpoint of step {}, this save is of step {}: restore() it, delete it, or set "
                                            "GANGLINE_CHECKPOINT_DIR to another folder",
                                            place_.checkpoint_folder, there.back().step, step)};
}

Save Saver::save(std::uint64_t step, std::span<const Tensor> tracked, const SaveOptions& options) {
    const SaveTier tier = due_ && due_->step == step ? due_->tier : SaveTier::Disk;
    auto state = std::make_shared<Save::State>(step, tier);
    if (last_step_ && step <= *last_step_) {
        state->finish(Error{Code::InvalidArgument, fmt::format("save({}) after save({}): steps must rise", step, *last_step_)});
        return Save(state);
    }
    note_memory_cost();
    if (tier == SaveTier::Memory) return save_in_memory(state, tracked, options);
    {
        const std::lock_guard lock(mutex_);
        early_.erase(early_.begin(), early_.lower_bound(step));
        if (const auto known = early_.find(step); known != early_.end()) {
            state->finish(known->second);  // another rank's failure has ended it already
            early_.erase(known);
            last_step_ = step;
            return Save(state);
        }
        open_[step] = state;
        begun_[step] = {now().steady, Duration{0}};
        begun_on_disk_ = step;
        interval_.memory_holds(!not_held_ || *not_held_ < step);  // it may hold again
    }
    auto begun = open(step);
    if (begun) begun = refuse_stale_folder(step);
    last_step_ = step;
    if (begun) {
        begun = begin_copy({step, tier}, tracked, options);
        if (begun) {
            if (options.mode == SaveMode::Now) fence();
            return Save(state);
        }
    }
    report_failure(step, begun.error());
    return Save(state);
}

// One that cannot be made at once is left out: the next one on disk serves.
Save Saver::save_in_memory(const StatePointer& state, std::span<const Tensor> tracked, const SaveOptions& options) {
    const std::uint64_t step = state->step;
    last_step_ = step;
    Result<void> begun;
    {
        const std::lock_guard lock(mutex_);
        open_[step] = state;
        in_memory_ = InMemory{step, now().steady, Duration{0}, {}};
        if (job_ && job_->tier == SaveTier::Disk) begun = Error{Code::Unavailable, fmt::format("step {} was to be saved in memory, but the save of step {} is still being written", step, job_->step)};
    }
    if (begun) begun = begin_copy({step, SaveTier::Memory}, tracked, options);
    if (begun) {
        if (options.mode == SaveMode::Now) fence();
        return Save(state);
    }
    tell_not_held(step);
    settle(step, begun.error());
    return Save(state);
}

checkpoint::ShardPlan Saver::plan(std::uint64_t step) const { return {place_.job, step, place_.attempt, place_.rank, place_.size, mine_, metric_}; }

// Once the writer and the copiers have finished with the save before. The memory is kept from save to save.
Result<void> Saver::begin_copy(const At& at, std::span<const Tensor> tracked, const SaveOptions& options) {
    {
        std::unique_lock lock(mutex_);
        if (!wait_until(lock, now().steady + kWriterLimit, [&] { return !job_ && busy_copiers_ == 0; })) {
            return Error{Code::Deadline, fmt::format("the save before is still being written after {} s", kWriterLimit.count())};
        }
    }
    if (place_.rank == 0) metric_ = options.metric;
    if (tracked_ != tracked.size()) {  // tensors are only added
        mine_ = checkpoint::tensors_to_write(tracked, place_.rank, place_.size);
        tracked_ = tracked.size();
        mine_by_name_.clear();
        for (std::size_t i = 0; i < mine_.size(); ++i) mine_by_name_[mine_[i].name] = i;
        is_laid_out_ = false;
    }
    if (!is_laid_out_) {
        if (auto prepared = image_.prepare(plan(at.step)); !prepared) return prepared;
        is_laid_out_ = true;
    }
    if (auto begun = begin_image(at, options.mode); !begun) return begun;
    if (!writer_.joinable()) {
        writer_ = quiet_thread([this] { run_writer(); });
        const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
        for (unsigned i = 0; i < std::min(kMostCopiers, cores - 1); ++i) copiers_.push_back(quiet_thread([this] { run_copier(); }));
    }
    {
        const std::lock_guard lock(mutex_);
        job_ = at;
        ++copies_;
    }
    changed_.notify_all();
    return {};
}

Result<void> Saver::begin_image(const At& at, SaveMode mode) {
    const std::uint64_t step = at.step;
    const std::uint64_t part_size = place_.is_alone ? 0 : encoded_size(part_of(plan(step), image_));
    checkpoint::ImageMemory* const memory = memory_.memory_for(image_.size(), part_size);
    if (memory == nullptr && at.tier == SaveTier::Memory) {
        return Error{Code::Unavailable, fmt::format("step {} was to be saved in memory, but no keeper of this node gives any now: the next save on disk serves", step)};
    }
    if (memory == nullptr) tell_not_held(step);
    CopyMeasurements measured = meter_.ended();
    measured.wish = place_.copies;
    measured.is_fenced = mode == SaveMode::Fenced;
    measured.outlives = memory != nullptr;
    measured.bytes = image_.size();
    if (measured.is_fenced) measured.straight_bytes = image_.straight_bytes(mine_);
    const CopyChoice choice = choose_mode(measured);
    auto begun = choice.mode == CopyMode::ZeroCopy ? image_.begin_straight(step, mine_) : image_.begin(step, mine_, memory);
    if (!begun) return begun;
    copying_ = at;
    is_in_keeper_ = memory != nullptr;
    meter_.begun(choice.mode, now().steady);
    if (place_.rank == 0 && choice.is_measured && !std::exchange(has_said_copy_, true)) fmt::print(stderr, "gangline: what is saved is {}\n", choice.reason);
    return {};
}

void Saver::fence() {
    {
        const std::lock_guard lock(mutex_);
        if (copies_ == 0) return;
    }
    meter_.fenced(now().steady);
    image_.wait_free();
}

void Saver::fence(std::string_view tensor) {
    {
        const std::lock_guard lock(mutex_);
        if (copies_ == 0) return;
    }
    meter_.fenced(now().steady);
    if (const auto found = mine_by_name_.find(tensor); found != mine_by_name_.end()) image_.wait_free(found->second);
}

void Saver::run_copier() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return is_stopping_ || copies_ != seen; });  // until save() or stop()
        if (is_stopping_) return;
        seen = copies_;
        ++busy_copiers_;
        lock.unlock();
        const Duration cpu = thread_cpu();
        while (image_.copy_one()) {}
        meter_.took(thread_cpu() - cpu);
        lock.lock();
        --busy_copiers_;
        changed_.notify_all();
    }
}

void Saver::hurry() {
    if (slow_disk_) slow_disk_->lift();
}

void Saver::run_writer() {
    behind_others_on_disk();
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return is_stopping_ || job_ || !failed_.empty(); });  // until save(), a failure or stop()
        const std::set<std::uint64_t> failed = failed_;
        const bool has_job = job_ && !is_stopping_;
        const At at = job_.value_or(At{});
        const bool is_wanted = at.tier == SaveTier::Disk && open_.contains(at.step);  // it has not failed on another rank yet
        if (failed.empty() && !has_job) return;
        lock.unlock();
        for (const std::uint64_t step : failed) (void)store_->drop_temporary({step, place_.attempt});  // before the next one needs the room
        if (has_job) {
            const Duration cpu = thread_cpu();
            if (is_wanted) write(at.step);
            image_.wait_copied();  // also when nothing could be written: a fence waits for it
            image_.let_go();
            meter_.took(thread_cpu() - cpu);
        }
        lock.lock();
        if (has_job) job_.reset();
        for (const std::uint64_t step : failed) failed_.erase(step);
        changed_.notify_all();
    }
}

void Saver::write(std::uint64_t step) {
    const checkpoint::CheckpointId id{step, place_.attempt};
    auto folder = store_->temporary(id);
    if (!folder) return report_failure(step, folder.error());
    auto part = checkpoint::write_image(store_->disk(), folder->get(), image_, plan(step), place_.recycles ? store_->recycle() : checkpoint::Recycle());
    if (!part && part.error().code == Code::NoSpace) {  // what was kept for the next saves is given up for this one
        store_->empty_pool();
        part = checkpoint::write_image(store_->disk(), folder->get(), image_, plan(step));
    }
    if (!part) return report_failure(step, part.error());
    meter_.written(now().steady);
    const auto sealed = store_->write_part(id, *part);
    if (!sealed) return report_failure(step, sealed.error());
    memory_.on_disk(step);
    std::string payload(1, static_cast<char>(Mail::Durable));
    payload.append(reinterpret_cast<const char*>(sealed->digest.data()), sealed->digest.size());
    if (auto sent = mail(0, step, std::move(payload)); !sent) conclude(step, sent.error());
}

// From now on this rank may die without loss.
void Saver::snapshot_copied() {
    meter_.copied(now().steady);
    const At at = copying_;
    const bool is_held = memory_.hold(plan(at.step), image_);
    if (is_held) {
        (void)send_({WorkerKind::Snapshot, 0, at.step, place_.attempt, {}});
    } else if (is_in_keeper_) {
        tell_not_held(at.step);
    }
    {
        const std::lock_guard lock(mutex_);
        if (is_held) told_before_ = std::exchange(told_, at.step);
        if (at.tier == SaveTier::Disk) return;
        if (is_held && in_memory_ && in_memory_->step == at.step) in_memory_->copy = now().steady - in_memory_->begun;
        if (is_held) kept_[0] = std::exchange(kept_[1], at.step);
    }
    std::optional<Error> why;
    if (!is_held) why = Error{Code::Unavailable, fmt::format("the keeper that was to hold the snapshot of step {} is gone", at.step)};
    settle(at.step, std::move(why));
}

// ---- snapshots of an earlier attempt

void Saver::adopt(const checkpoint::CheckpointId& id, std::uint32_t world) {
    auto store = checkpoint::Store::open(place_.checkpoint_folder);
    if (!store || adopted_ != nullptr) return;
    adopted_store_ = std::move(*store);
    Place theirs = place_;
    theirs.attempt = id.attempt;
    theirs.size = world;
    theirs.scrub_mib_s = 0;  // this attempt's own loop does that
    const auto ask = [this, id](std::uint64_t asked, const CommitLetter& letter) { return ask_coordinator(asked, letter, id.attempt); };
    auto loop = std::make_unique<CommitLoop>(theirs, *adopted_store_,
                                             CommitLoop::Outlets{ask, [](const checkpoint::Tell&) {}, [this](const std::string& what) { complain(what); }, {}});
    {
        const std::lock_guard lock(mutex_);
        adopted_ = std::move(loop);
        adopted_step_ = id.step;
    }
    adopter_ = quiet_thread([this, id, world] { watch_adopted(id, world); });
}

// Their keepers write them; each part that is whole there is as good as its rank's word.
void Saver::watch_adopted(const checkpoint::CheckpointId& id, std::uint32_t world) {
    if (const auto whole = adopted_store_->open_temporary(id)) {  // its own gang came as far as the manifest, and then the parts were gone
        for (std::uint32_t rank = 0; rank < whole->manifest().world; ++rank) {
            if (auto written = adopted_store_->write_part(id, part_of(whole->manifest(), rank)); !written) return complain(written.error().message);
        }
    }
    const TimePoint until = now().steady + kWriterLimit;
    for (std::uint32_t rank = 0; rank < world;) {
        if (const auto part = adopted_store_->read_part(id, rank)) {
            adopted_->post(checkpoint::ShardDurable{rank, id.attempt, id.step, checkpoint::seal_of(encode(*part))});
            ++rank;
            continue;
        }
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, kAdoptLook, [&] { return is_stopping_; }) || now().steady > until) return;
    }
}

// The committer ends the save for everybody. Where it cannot be told, this rank's Save ends here.
void Saver::report_failure(std::uint64_t step, const Error& error) {
    if (place_.rank == 0 && committer_ == nullptr) {  // not even the folder is there
        complain(fmt::format("the checkpoint of step {} was not saved: {}", step, error.message));
        return tell_all({step, false, error.message});
    }
    std::string payload(1, static_cast<char>(Mail::Failed));
    payload += error.message.substr(0, 4096);
    if (auto sent = mail(0, step, std::move(payload)); !sent) conclude(step, error);
}

Result<void> Saver::mail(std::uint32_t to_rank, std::uint64_t step, std::string payload) {
    if (to_rank != place_.rank) return send_({WorkerKind::Relay, to_rank, step, place_.attempt, payload});
    deliver(place_.rank, step, place_.attempt, payload);
    return {};
}

void Saver::receive(const WorkerHeader& header, std::string_view payload) {
    if (header.attempt != place_.attempt) return;
    if (header.kind == static_cast<std::uint16_t>(WorkerKind::Keeper)) return memory_.answer(std::string(payload));
    if (header.kind == static_cast<std::uint16_t>(WorkerKind::Relay)) {
        deliver(header.rank, header.step, header.attempt, payload);
        return;
    }
    if (header.kind != static_cast<std::uint16_t>(WorkerKind::CommitResult)) return;
    auto answer = decode_commit_answer(payload);
    if (!answer) return;
    checkpoint::CommitReply reply{header.step, answer->accepted, std::move(answer->reason), {}, answer->keep_every};
    for (const CommitAnswer::Stays& one : answer->keep) reply.keep.push_back({one.step, one.attempt});
    const std::lock_guard lock(mutex_);
    if (adopted_ != nullptr && reply.step == adopted_step_) return is_stopping_ ? void() : adopted_->post(std::move(reply));
    if (committer_ != nullptr && !is_stopping_) committer_->post(std::move(reply));
}

void Saver::deliver(std::uint32_t from_rank, std::uint64_t step, std::uint32_t attempt, std::string_view payload) {
    if (payload.empty()) return;
    const auto kind = static_cast<Mail>(payload[0]);
    payload.remove_prefix(1);
    if (kind == Mail::Durable || kind == Mail::Failed) {
        checkpoint::ShardDurable durable{from_rank, attempt, step, {}};
        if (kind == Mail::Durable && payload.size() != durable.part.size()) return;
        if (kind == Mail::Durable) std::memcpy(durable.part.data(), payload.data(), durable.part.size());
        checkpoint::CommitterEvent event = durable;
        if (kind == Mail::Failed) event = checkpoint::ShardFailed{from_rank, attempt, step, std::string(payload)};
        const std::lock_guard lock(mutex_);
        if (is_stopping_ || place_.rank != 0) return;
        if (committer_ != nullptr) {
            committer_->post(std::move(event));
        } else if (waiting_.size() < kMostWaiting) {
            waiting_.push_back({step, std::move(event)});  // rank 0 has not come to its first save yet
        }
    } else if (kind == Mail::WhereKeeper || kind == Mail::KeeperAt) {
        memory_.receive(from_rank, kind == Mail::WhereKeeper, std::string(payload));
    } else if (kind == Mail::NotHeld) {
        hear_not_held(step);
    } else if (from_rank == 0 && kind == Mail::SaveAt) {
        hear_save_at({step, payload == "M" ? SaveTier::Memory : SaveTier::Disk});
    } else if (from_rank == 0 && kind == Mail::Committed) {
        conclude(step, std::nullopt);
    } else if (from_rank == 0 && kind == Mail::NotCommitted) {
        conclude(step, Error{Code::Refused, std::string(payload)});
    }
}

void Saver::conclude(std::uint64_t step, std::optional<Error> error) {
    StatePointer state;
    {
        const std::lock_guard lock(mutex_);
        // The committer's word: it will never count. It has deleted what was there then; a rank that still writes deletes its own.
        if (error && error->code == Code::Refused) failed_.insert(step);
        if (const auto begun = begun_.find(step); begun != begun_.end()) {
            if (!error) interval_.measured(begun->second.stall, now().steady - begun->second.begun);
            begun_.erase(begun_.begin(), std::next(begun));
        }
        if (const auto known = open_.find(step); known != open_.end()) {
            state = known->second;
            open_.erase(known);
        } else if (!is_stopping_ && error) {
            early_[step] = error;
        }
    }
    if (state != nullptr) state->finish(std::move(error));
    changed_.notify_all();
}

// A save in memory has its outcome; nobody else hears of it.
void Saver::settle(std::uint64_t step, std::optional<Error> error) {
    StatePointer state;
    {
        const std::lock_guard lock(mutex_);
        if (const auto known = open_.find(step); known != open_.end()) state = open_.extract(known).mapped();
    }
    if (state != nullptr) state->finish(std::move(error));
    changed_.notify_all();
}

void Saver::tell_all(const checkpoint::Tell& outcome) {
    std::string payload(1, static_cast<char>(outcome.committed ? Mail::Committed : Mail::NotCommitted));
    payload += outcome.reason.substr(0, 4096);
    for (std::uint32_t rank = 1; rank < place_.size; ++rank) (void)mail(rank, outcome.step, payload);
    std::optional<Error> error;
    if (!outcome.committed) error = Error{Code::Refused, outcome.reason};
    conclude(outcome.step, std::move(error));
}

Result<void> Saver::drain(TimePoint limit) {
    hurry();
    std::optional<At> missed;
    {
        const std::lock_guard lock(mutex_);
        if (announced_ && asked_ && asked_->first >= announced_->step) missed = std::exchange(announced_, std::nullopt);
    }
    if (missed) tell_missed(*missed);
    {
        std::unique_lock lock(mutex_);
        if (!wait_until(lock, limit, [&] { return open_.empty() && !job_ && (failed_.empty() || copies_ == 0); })) {  // no copy: nothing was ever written
            return Error{Code::Deadline, fmt::format("the save of step {} has no answer yet", !open_.empty() ? open_.begin()->first : job_ ? job_->step : *failed_.begin())};
        }
    }
    if (committer_ != nullptr && !committer_->wait_idle(limit)) return Error{Code::Deadline, "the committer has not finished yet"};
    return {};
}

}  // namespace gangline
