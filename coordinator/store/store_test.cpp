#include "coordinator/store/store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/handle.h"
#include "base/process.h"
#include "base/time.h"

namespace gangline::coordinator {
namespace {

proto::Record submitted(std::uint64_t job, std::size_t script_bytes = 100) {
    proto::Record record;
    record.set_unix_ms(1'800'000'000'000 + static_cast<std::int64_t>(job));
    auto* what = record.mutable_job_submitted();
    what->set_job(job);
    what->set_user("alice");
    what->mutable_spec()->set_script(std::string(script_bytes, 's'));
    return record;
}

class StoreTest : public ::testing::Test {
  protected:
    void SetUp() override {
        char name[] = "/tmp/gangline-store-XXXXXX";
        ASSERT_NE(::mkdtemp(name), nullptr);
        folder_ = name;
        path_ = folder_ + "/journal.db";
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    void append(Store& store, std::uint64_t first, std::uint64_t last) {
        std::vector<proto::Record> records;
        for (std::uint64_t job = first; job <= last; ++job) records.push_back(submitted(job));
        const auto done = store.append(records);
        ASSERT_TRUE(done) << done.error().message;
    }
    static std::vector<std::uint64_t> jobs(Store& store) {
        std::vector<std::uint64_t> jobs;
        const auto done = store.replay([&](const proto::Record& record) { jobs.push_back(record.job_submitted().job()); });
        EXPECT_TRUE(done) << done.error().message;
        return jobs;
    }
    void execute(const std::string& sql) {
        sqlite3* database = nullptr;
        ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
        EXPECT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
        sqlite3_close(database);
    }
    // Everything from the log into the file, so that a test can damage it there.
    void checkpoint() { execute("PRAGMA wal_checkpoint(TRUNCATE)"); }

    std::string folder_;
    std::string path_;
};

TEST_F(StoreTest, ReplaysWhatWasAppendedInOrderAcrossOpenings) {
    {
        const auto store = *Store::open(path_);
        append(*store, 1, 3);
        append(*store, 4, 4);
        EXPECT_EQ(store->record_count(), 4U);
    }
    const auto store = *Store::open(path_);
    EXPECT_EQ(jobs(*store), (std::vector<std::uint64_t>{1, 2, 3, 4}));
    append(*store, 5, 5);
    EXPECT_EQ(jobs(*store).size(), 5U);
}

TEST_F(StoreTest, RaisesTheEpochWithTheFirstCommitOfEachOpening) {
    for (std::uint64_t term = 1; term <= 3; ++term) {
        const auto store = *Store::open(path_);
        EXPECT_EQ(store->epoch(), term);
        append(*store, term, term);
    }
    EXPECT_EQ((*Store::open(path_))->epoch(), 4U);
    EXPECT_EQ((*Store::open(path_))->epoch(), 4U);  // The one before did nothing under it.
}

TEST_F(StoreTest, BelongsToOneCoordinatorAtATime) {
    const auto store = *Store::open(path_);
    append(*store, 1, 1);
    const pid_t child = ::fork();
    if (child == 0) {
        const auto second = Store::open(path_);
        ::_exit(!second && second.error().code == Code::Unavailable && second.error().message.find("another coordinator") != std::string::npos ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    append(*store, 2, 2);
}

TEST_F(StoreTest, KeepsSpecsFromOtherUsersEyes) {
    const mode_t before = ::umask(0);
    const auto store = *Store::open(path_);
    append(*store, 1, 1);
    ::umask(before);
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
        struct stat about = {};
        ASSERT_EQ(::stat(entry.path().c_str(), &about), 0);
        EXPECT_EQ(about.st_mode & 0777U, 0600U) << entry.path();
    }
}

TEST_F(StoreTest, LosesNothingAcknowledgedWhenKilledWhileAppending) {
    for (int round = 0; round < 8; ++round) {
        int acknowledged[2];
        ASSERT_EQ(::pipe(acknowledged), 0);
        const pid_t child = ::fork();
        if (child == 0) {
            auto store = Store::open(path_);
            if (!store) ::_exit(1);
            for (;;) {
                const std::uint64_t next = (*store)->record_count() + 1;
                std::vector<proto::Record> records;
                for (std::uint64_t i = 0; i < 7; ++i) records.push_back(submitted(next + i));
                if (!(*store)->append(records)) ::_exit(2);
                const std::uint64_t count = (*store)->record_count();
                if (::write(acknowledged[1], &count, sizeof count) != sizeof count) ::_exit(3);
            }
        }
        ::close(acknowledged[1]);
        std::uint64_t last = 0;
        for (int i = 0; i < 5 + 3 * round; ++i) ASSERT_EQ(::read(acknowledged[0], &last, sizeof last), static_cast<ssize_t>(sizeof last));
        ::kill(child, SIGKILL);
        int status = 0;
        ::waitpid(child, &status, 0);
        ASSERT_TRUE(WIFSIGNALED(status));
        while (::read(acknowledged[0], &last, sizeof last) == sizeof last) {
        }
        ::close(acknowledged[0]);
        const auto store = Store::open(path_);
        ASSERT_TRUE(store) << store.error().message;
        const auto found = jobs(**store);
        EXPECT_GE(found.size(), last);
        EXPECT_EQ(found.size() % 7, 0U);  // A commit is whole or absent.
        for (std::size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], i + 1);
    }
}

TEST_F(StoreTest, NamesARecordWhoseBytesWereChanged) {
    {
        const auto store = *Store::open(path_);
        append(*store, 1, 50);
    }
    execute("UPDATE journal SET record = x'00' || substr(record, 2) WHERE number = 17");
    const auto store = *Store::open(path_);
    int seen = 0;
    const auto replayed = store->replay([&](const proto::Record&) { ++seen; });
    ASSERT_FALSE(replayed);
    EXPECT_EQ(replayed.error().code, Code::Damaged);
    EXPECT_NE(replayed.error().message.find("record 17 "), std::string::npos) << replayed.error().message;
    EXPECT_EQ(seen, 16);
}

TEST_F(StoreTest, NamesARecordThatIsMissingOrStandsInAnothersPlace) {
    {
        const auto store = *Store::open(path_);
        append(*store, 1, 50);
    }
    execute("UPDATE journal SET record = (SELECT record FROM journal WHERE number = 8), "
            "checksum = (SELECT checksum FROM journal WHERE number = 8) WHERE number = 9");
    EXPECT_NE((*Store::open(path_))->replay([](const proto::Record&) {}).error().message.find("record 9 "), std::string::npos);
    execute("DELETE FROM journal WHERE number = 5");
    EXPECT_NE((*Store::open(path_))->replay([](const proto::Record&) {}).error().message.find("record 5 is missing"), std::string::npos);
}

TEST_F(StoreTest, NoFlippedByteOfTheFileIsTakenForTruth) {
    {
        const auto store = *Store::open(path_);
        append(*store, 1, 40);
    }
    checkpoint();
    const std::string good = *read_file(path_);
    std::vector<std::string> expected;
    {
        const auto store = *Store::open(path_);
        ASSERT_TRUE(store->replay([&](const proto::Record& record) { expected.push_back(record.SerializeAsString()); }));
    }
    int noticed = 0;
    for (std::size_t at = 0; at < good.size(); at += 97) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ 0x5a);
        for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(path_ + suffix);
        std::ofstream(path_, std::ios::binary) << bad;
        std::vector<std::string> found;
        auto store = Store::open(path_);
        if (!store || !(*store)->replay([&](const proto::Record& record) { found.push_back(record.SerializeAsString()); })) {
            ++noticed;
            continue;
        }
        ASSERT_EQ(found, expected) << "byte " << at;  // It hit what is not used: unused space or SQLite's counters.
    }
    EXPECT_GT(noticed, 20);
}

TEST_F(StoreTest, ADamagedLogIsNotTakenForAShorterOne) {
    const pid_t child = ::fork();
    if (child == 0) {  // Killed, so that the log is not merged into the file.
        const auto store = Store::open(path_);
        if (!store) ::_exit(1);
        for (std::uint64_t job = 1; job <= 9; ++job) {
            if (!(*store)->append(std::vector{submitted(job)})) ::_exit(1);
        }
        ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    const std::string log = path_ + "-wal";
    const auto size = std::filesystem::file_size(log);
    const Fd fd(::open(log.c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    const auto at = static_cast<off_t>(size - 2000);  // inside the last commit
    ASSERT_EQ(::pread(fd.get(), &byte, 1, at), 1);
    byte = static_cast<char>(byte ^ 1);
    ASSERT_EQ(::pwrite(fd.get(), &byte, 1, at), 1);
    const auto opened = Store::open(path_);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::Damaged);
    EXPECT_NE(opened.error().message.find("record 9 is missing"), std::string::npos) << opened.error().message;
    std::filesystem::remove(path_ + ".mark");  // The operator's explicit word.
    const auto accepted = Store::open(path_);
    ASSERT_TRUE(accepted);
    EXPECT_EQ(jobs(**accepted).size(), 8U);
}

TEST_F(StoreTest, AFileThatIsNoJournalIsRefusedAndLeftAsItIs) {
    const std::string text(5000, 'x');
    ASSERT_TRUE(write_file_atomically(path_, text));
    EXPECT_EQ(Store::open(path_).error().code, Code::Damaged);
    EXPECT_EQ(*read_file(path_), text);
    EXPECT_EQ(Store::open(folder_ + "/absent/journal.db").error().code, Code::NotFound);
}

TEST_F(StoreTest, AJournalOfANewerVersionIsRefused) {
    (void)*Store::open(path_);
    execute("UPDATE meta SET value = 2 WHERE name = 'format'");
    EXPECT_EQ(Store::open(path_).error().code, Code::Refused);
}

TEST_F(StoreTest, AFullDiskIsAnErrorAndWhatWasStoredStays) {
    const pid_t child = ::fork();
    if (child == 0) {
        std::signal(SIGXFSZ, SIG_IGN);
        const auto store = Store::open(path_);
        if (!store || !(*store)->append(std::vector{submitted(1)})) ::_exit(1);
        const rlimit limit = {256 * 1024, 256 * 1024};  // EFBIG stands for ENOSPC.
        ::setrlimit(RLIMIT_FSIZE, &limit);
        const auto refused = (*store)->append(std::vector{submitted(2, 1 << 20)});
        if (refused || refused.error().code != Code::NoSpace || (*store)->record_count() != 1) ::_exit(2);
        ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    ASSERT_EQ(status, 0);
    const auto store = *Store::open(path_);
    EXPECT_EQ(jobs(*store), std::vector<std::uint64_t>{1});
}

TEST_F(StoreTest, TenThousandJobsAreStoredAndReplayed) {
    const TimePoint start = now().steady;
    {
        const auto store = *Store::open(path_);
        for (std::uint64_t first = 1; first <= 10'000; first += 100) append(*store, first, first + 99);
    }
    const TimePoint stored = now().steady;
    const auto store = *Store::open(path_);
    EXPECT_EQ(jobs(*store).size(), 10'000U);
    const TimePoint replayed = now().steady;
    RecordProperty("append_10000_ms", static_cast<int>(to_ms(stored - start)));
    RecordProperty("replay_10000_ms", static_cast<int>(to_ms(replayed - stored)));
    printf("10000 records: append %ld ms, open and replay %ld ms\n", static_cast<long>(to_ms(stored - start)),
           static_cast<long>(to_ms(replayed - stored)));
}

}  // namespace
}  // namespace gangline::coordinator
