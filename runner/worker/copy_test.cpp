// What is saved is the state as it was, however it is taken from the program; and taking it again and again takes no more memory.

#include "checkpoint/reader.h"
#include "runner/worker/test_gang.h"

namespace gangline {
namespace {

constexpr std::size_t kValues = 5u << 17;  // 5 MiB: some runs lie within it

// Memory as a disk takes it.
class PagedValues {
  public:
    PagedValues() : values_(static_cast<std::uint64_t*>(::mmap(nullptr, kValues * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
    ~PagedValues() { ::munmap(values_, kValues * 8); }
    PagedValues(const PagedValues&) = delete;
    PagedValues& operator=(const PagedValues&) = delete;
    std::uint64_t* data() { return values_; }
    void fill(std::uint64_t seed) {
        for (std::size_t i = 0; i < kValues; ++i) values_[i] = seed * 0x9E3779B97F4A7C15u + i;
    }
    bool is(std::uint64_t seed) const {
        for (std::size_t i = 0; i < kValues; ++i) {
            if (values_[i] != seed * 0x9E3779B97F4A7C15u + i) return false;
        }
        return true;
    }

  private:
    std::uint64_t* values_;
};

class ACopy : public AGang {
  protected:
    // The program changes its state as soon as the fence lets it, again and again.
    void expect_the_state_as_it_was(const char* how) {
        set("GANGLINE_CHECKPOINT_COPY", how);
        set("GANGLINE_CHECKPOINT_VIEW", "0");
        auto gang = Gang::join().value();
        PagedValues state;
        std::uint64_t small = 0;
        ASSERT_TRUE(gang.track("state", state.data(), {kValues}).ok());
        ASSERT_TRUE(gang.track("small", &small, {}).ok());
        PagedValues read;
        std::uint64_t small_read = 0;
        const std::vector<Tensor> wanted{{"small", DType::U64, Policy::Replicated, {}, {}, {}, &small_read},
                                         {"state", DType::U64, Policy::Replicated, {kValues}, {0}, {kValues}, read.data()}};
        for (std::uint64_t step = 1; step <= 12; ++step) {
            state.fill(step);
            small = step;
            const Save save = gang.save(step, SaveMode::Fenced);
            if (step % 3 == 0) {
                ASSERT_TRUE(gang.fence("small").ok());
                small = ~step;
            }
            gang.fence();
            state.fill(~step);
            small = ~step;
            ASSERT_TRUE(save.wait(kLimit).ok());
            auto found = checkpoint::Store::open(folder_ + "/job-7").value().open_published({step, 0});
            ASSERT_TRUE(found.ok()) << found.error().message;
            const auto restored = found->restore(wanted, 0, 1);
            ASSERT_TRUE(restored.ok()) << restored.error().message;
            EXPECT_TRUE(read.is(step)) << "step " << step;
            EXPECT_EQ(small_read, step);
        }
        EXPECT_TRUE(gang.finish(kLimit).ok());
    }
};

TEST_F(ACopy, ThatIsMadeHoldsTheStateAsItWas) { expect_the_state_as_it_was("copy"); }
TEST_F(ACopy, ThatIsNotMadeIsNotMissed) { expect_the_state_as_it_was("straight"); }
TEST_F(ACopy, ThatIsMadeOrNotAsIsBestHoldsTheStateAsItWas) { expect_the_state_as_it_was("auto"); }

TEST_F(ACopy, IsRefusedInWordsWhereNobodyKnowsTheWord) {
    set("GANGLINE_CHECKPOINT_COPY", "maybe");
    const auto gang = Gang::join();
    ASSERT_FALSE(gang.ok());
    EXPECT_EQ(gang.error().code, Code::InvalidArgument);
    EXPECT_NE(gang.error().message.find("GANGLINE_CHECKPOINT_COPY='maybe' must be auto, copy or straight"), std::string::npos) << gang.error().message;
}

std::size_t resident_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("RssAnon:")) return std::strtoul(line.c_str() + 8, nullptr, 10);
    }
    return 0;
}

TEST_F(ACopy, TakesItsMemoryOnce) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer keeps what is freed";
#endif
    constexpr std::size_t kStateKib = kValues * 8 / 1024;
    set("GANGLINE_CHECKPOINT_VIEW", "0");
    auto gang = Gang::join().value();
    PagedValues state;
    state.fill(1);
    ASSERT_TRUE(gang.track("state", state.data(), {kValues}).ok());
    const std::size_t before = resident_kib();
    std::uint64_t step = 0;
    const auto save = [&](int times) {
        for (int i = 0; i < times; ++i) {
            ++step;
            const Save one = gang.save(step, step % 2 == 0 ? SaveMode::Fenced : SaveMode::Now);
            gang.fence();
            ASSERT_TRUE(one.wait(kLimit).ok());
        }
    };
    save(50);  // until the allocator has what it wants
    const std::size_t first = resident_kib();
    save(200);
    const std::size_t last = resident_kib();
    EXPECT_LE(first, before + kStateKib + 8 * 1024) << "one copy, in large pages, and some threads";
    EXPECT_LE(last, first + 1024) << "kibibytes, after 50 and after 250 saves";
    fmt::print("resident: {} KiB before, {} after 50 saves, {} after 250\n", before, first, last);
    EXPECT_TRUE(gang.finish(kLimit).ok());
}

}  // namespace
}  // namespace gangline
