#include "runner/shepherd/output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

#include <fmt/format.h>

#include "base/process.h"

namespace gangline::runner {
namespace {

using testing::HasSubstr;

// Files of this process cannot grow over a limit: a full disk without a disk.
class FileLimit {
  public:
    explicit FileLimit(rlim_t bytes) {
        ::signal(SIGXFSZ, SIG_IGN);
        ::getrlimit(RLIMIT_FSIZE, &before_);
        set(bytes);
    }
    FileLimit(const FileLimit&) = delete;
    FileLimit& operator=(const FileLimit&) = delete;
    ~FileLimit() { lift(); }
    void lift() { ::setrlimit(RLIMIT_FSIZE, &before_); }
    void set(rlim_t bytes) {
        rlimit limit = before_;
        limit.rlim_cur = bytes;
        ::setrlimit(RLIMIT_FSIZE, &limit);
    }

  private:
    rlimit before_{};
};

class OutputTest : public testing::Test {
  protected:
    OutputTest() : folder("/tmp/gangline-test-" + random_hex(6)), loop(std::move(Loop::create()).value()) {
        EXPECT_TRUE(make_folders(folder).ok());
        options.log_path = folder + "/output.log";
    }
    ~OutputTest() override { EXPECT_TRUE(remove_tree(folder).ok()); }
    // The write end of a new rank's standard output.
    Fd rank(Output& output, std::uint32_t number, Output::Sink sink = nullptr) {
        int out[2];
        int err[2];
        EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
        EXPECT_EQ(::pipe2(err, O_CLOEXEC), 0);
        EXPECT_TRUE(set_nonblocking(out[0]).ok());
        EXPECT_TRUE(set_nonblocking(err[0]).ok());
        output.add_rank({sink ? 1u : 0u, number}, Fd(out[0]), Fd(err[0]), sink);
        ::close(err[1]);
        return Fd(out[1]);
    }
    std::vector<std::string> records() const {
        const auto text = read_file(options.log_path);
        std::string_view bytes = *text;
        std::vector<std::string> result;
        OutputRecord record;
        while (next_output_record(bytes, record)) result.emplace_back(record.data);
        EXPECT_TRUE(bytes.empty());
        return result;
    }
    std::string folder;
    std::unique_ptr<Loop> loop;
    OutputOptions options;
};

TEST_F(OutputTest, ATornRecordIsCutOffBeforeMoreIsAppended) {
    std::string bytes;
    append_output_record(bytes, {}, "whole");
    const std::size_t whole = bytes.size();
    append_output_record(bytes, {}, "torn");
    bytes.resize(bytes.size() - 2);
    ASSERT_TRUE(write_file_atomically(options.log_path, bytes).ok());
    auto output = Output::open(*loop, options);
    ASSERT_TRUE(output.ok());
    EXPECT_EQ(read_file(options.log_path)->size(), whole);
    (*output)->note({}, "more");
    (*output)->flush(now().steady);
    EXPECT_EQ(records(), (std::vector<std::string>{"whole", "more\n"}));
}

TEST_F(OutputTest, TheFilesOfAnArraysElementAreNamedByItsArrayAndItsTask) {
    auto output = Output::open(*loop, options);
    ASSERT_TRUE(output.ok());
    proto::Prepare prepare;
    prepare.mutable_id()->set_job(17);
    prepare.add_gang()->set_node("n0");
    proto::JobSpec& spec = *prepare.mutable_spec();
    spec.set_cwd(folder);
    spec.set_output("%A_%a-%j.out");
    ASSERT_TRUE((*output)->open_files(prepare, 0, 1).ok());
    EXPECT_TRUE(read_file(folder + "/17_0-17.out").ok());
    spec.mutable_array()->set_job(12);
    spec.mutable_array()->set_task(5);
    spec.mutable_array()->set_count(8);
    ASSERT_TRUE((*output)->open_files(prepare, 0, 1).ok());
    EXPECT_TRUE(read_file(folder + "/12_5-17.out").ok());
}

TEST_F(OutputTest, WhatWaitsForAFullDiskIsWrittenInOrderLater) {
    auto output = Output::open(*loop, options);
    ASSERT_TRUE(output.ok());
    FileLimit limit(10);
    const Fd out = rank(**output, 0);
    const TimePoint at = now().steady;
    for (const char* text : {"one", "two", "three"}) {
        ASSERT_TRUE(write_all(out.get(), text).ok());
        (*output)->drain({0, 0});
        (*output)->flush(at);
    }
    EXPECT_TRUE((*output)->is_waiting());
    ASSERT_EQ((*output)->faults().size(), 1u);
    EXPECT_THAT((*output)->faults()[0], HasSubstr("disk full"));
    EXPECT_EQ((*output)->next_deadline(), at + PatientFile::kRetryEvery);
    limit.lift();
    (*output)->flush(at + milliseconds(1));  // Too early: not tried.
    EXPECT_TRUE((*output)->is_waiting());
    (*output)->flush(at + PatientFile::kRetryEvery);
    EXPECT_FALSE((*output)->is_waiting());
    EXPECT_TRUE((*output)->faults().empty());
    EXPECT_EQ(records(), (std::vector<std::string>{"one", "two", "three"}));
}

TEST_F(OutputTest, WhatIsOverTheMemoryLimitIsLostAndSaidSo) {
    options.most_waiting_bytes = 300;
    auto output = Output::open(*loop, options);
    ASSERT_TRUE(output.ok());
    FileLimit limit(1);
    const Fd out = rank(**output, 0);
    const TimePoint at = now().steady;
    for (int i = 0; i < 5; ++i) {
        ASSERT_TRUE(write_all(out.get(), std::string(100, static_cast<char>('a' + i))).ok());
        (*output)->drain({0, 0});
        (*output)->flush(at);
    }
    ASSERT_EQ((*output)->faults().size(), 2u);
    EXPECT_THAT((*output)->faults()[0], HasSubstr("of output lost"));
    limit.lift();
    (*output)->flush(at + PatientFile::kRetryEvery);
    (*output)->flush(at + PatientFile::kRetryEvery);
    const auto kept = records();
    ASSERT_EQ(kept.size(), 3u);
    EXPECT_EQ(kept[0], std::string(100, 'a'));
    EXPECT_EQ(kept[1], std::string(100, 'b'));
    EXPECT_THAT(kept[2], HasSubstr("372 bytes of output are missing here"));  // three records of 124
}

TEST_F(OutputTest, TheLogEndsAtItsLimitWithAWord) {
    options.most_log_bytes = 250;
    auto output = Output::open(*loop, options);
    ASSERT_TRUE(output.ok());
    const Fd out = rank(**output, 0);
    for (int i = 0; i < 5; ++i) {
        ASSERT_TRUE(write_all(out.get(), std::string(100, 'x')).ok());
        (*output)->drain({0, 0});
    }
    (*output)->flush(now().steady);
    const auto kept = records();
    ASSERT_EQ(kept.size(), 3u);
    EXPECT_THAT(kept[2], HasSubstr("this log ends here"));
}

TEST_F(OutputTest, AStepsOutputGoesToItsSinkAlone) {
    auto output = Output::open(*loop, options);
    ASSERT_TRUE(output.ok());
    std::string heard;
    const Fd out = rank(**output, 3, [&](bool is_error, std::string data) { heard += (is_error ? "E" : "O") + data; });
    ASSERT_TRUE(write_all(out.get(), "hello").ok());
    (*output)->drain({1, 3});
    (*output)->flush(now().steady);
    EXPECT_EQ(heard, "Ohello");
    EXPECT_TRUE(records().empty());
    EXPECT_EQ((*output)->last_lines({1, 3}), "hello");
}

TEST_F(OutputTest, TheLastLinesAreTwentyAndPrintable) {
    auto output = Output::open(*loop, options);
    ASSERT_TRUE(output.ok());
    const Fd out = rank(**output, 0);
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(write_all(out.get(), fmt::format("line {}\n", i)).ok());
    ASSERT_TRUE(write_all(out.get(), "na\xc3\xafve \xff\x1b[31m\n").ok());
    (*output)->drain({0, 0});
    const std::string lines = (*output)->last_lines({0, 0});
    EXPECT_TRUE(lines.starts_with("line 11\n")) << lines;
    EXPECT_TRUE(lines.ends_with("line 29\nna\xc3\xafve ??[31m")) << lines;
}

}  // namespace
}  // namespace gangline::runner
