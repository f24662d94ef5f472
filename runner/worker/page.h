#pragma once
// The writing side of a progress page (base/progress_page.h): relaxed stores, and the beat last.
//
// Thread rule: the training loop's thread. No call but the constructor's mapping makes a system call.

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "base/progress_page.h"
#include "base/result.h"
#include "base/time.h"

namespace gangline {

class Page {
  public:
    // Maps the file; an empty path gives a page that nobody reads. Errors: Unavailable with the path.
    static Result<Page> open(const std::string& path, std::uint32_t rank, std::uint32_t attempt);

    using Counter = std::atomic<std::uint64_t> ProgressPage::*;
    void step(std::uint64_t step, double samples, double flops, double loss, TimePoint now);
    void start_clock(TimePoint now) { step_begun_ = now; }  // the next step begins here
    void set(Counter counter, std::uint64_t value);
    void add(Counter counter, Duration time);
    std::string phase() const { return page_->phase; }
    void set_phase(std::string_view phase);
    // Something long goes on, and gets on.
    void still_here() { beat(); }

  private:
    struct Unmap {
        void operator()(ProgressPage* page) const;
    };
    explicit Page(ProgressPage* page) : page_(page) {}
    void beat();

    std::unique_ptr<ProgressPage, Unmap> page_;
    double samples_ = 0;
    double flops_ = 0;
    TimePoint step_begun_{};
};

}  // namespace gangline
