#include "coordinator/store/store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/handle.h"

namespace gangline::coordinator {
namespace {

constexpr std::int64_t kFormat = 1;

struct DatabaseTraits {
    using Value = sqlite3*;
    static Value none() { return nullptr; }
    static void close(Value database) { sqlite3_close_v2(database); }
};
using Database = Handle<DatabaseTraits>;

struct StatementTraits {
    using Value = sqlite3_stmt*;
    static Value none() { return nullptr; }
    static void close(Value statement) { sqlite3_finalize(statement); }
};
using Statement = Handle<StatementTraits>;

Error sqlite_error(sqlite3* database, const std::string& path, const std::string& what) {
    const int system = errno;  // of the call inside SQLite that failed
    const int code = sqlite3_errcode(database);
    Code kind = Code::Internal;
    std::string remedy;
    if (code == SQLITE_FULL || (code == SQLITE_IOERR && (system == ENOSPC || system == EDQUOT || system == EFBIG))) {
        kind = Code::NoSpace;
        remedy = ": make room on its disk and start the coordinator again; nothing that was acknowledged is lost";
    } else if (code == SQLITE_BUSY || code == SQLITE_LOCKED) {
        kind = Code::Unavailable;
        remedy = ": another coordinator has this state open; stop it first, or give another --state";
    } else if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) {
        kind = Code::Damaged;
        remedy = ": restore it from a backup; it is not used as it is, and was not changed";
    }
    return {kind, fmt::format("{}: cannot {}: {}{}", path, what, sqlite3_errmsg(database), remedy)};
}

// Over the number too, so that no record can stand in another's place.
std::uint32_t checksum(std::uint64_t number, const void* bytes, std::size_t size) {
    std::array<unsigned char, 8> head{};
    for (std::size_t i = 0; i < head.size(); ++i) head[i] = static_cast<unsigned char>(number >> (8 * i));
    uLong crc = crc32(0, head.data(), static_cast<uInt>(head.size()));
    crc = crc32_z(crc, static_cast<const Bytef*>(bytes), size);
    return static_cast<std::uint32_t>(crc);
}

struct Mark {
    std::uint64_t count = 0;
    std::uint64_t inverse = ~std::uint64_t{0};  // of count: proves that it was written whole
};

}  // namespace

struct Store::State {
    std::string path;
    Database database;
    Statement begin, commit, rollback, insert, read_epoch, write_epoch;
    Fd mark;
    std::uint64_t epoch = 0;
    bool has_office = false;  // our epoch is stored
    std::uint64_t count = 0;

    Error error(const std::string& what) const { return sqlite_error(database.get(), path, what); }
    Result<void> execute(const char* sql, const char* what) {
        if (sqlite3_exec(database.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) return error(what);
        return {};
    }
    Result<Statement> prepare(const char* sql) {
        sqlite3_stmt* statement = nullptr;
        if (sqlite3_prepare_v3(database.get(), sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr) != SQLITE_OK) {
            return error("prepare a statement");
        }
        return Statement(statement);
    }
    Result<void> run(const Statement& statement, const char* what) {
        errno = 0;
        const int rc = sqlite3_step(statement.get());
        if (rc != SQLITE_DONE && rc != SQLITE_ROW) {
            const Error failed = error(what);
            sqlite3_reset(statement.get());
            return failed;
        }
        sqlite3_reset(statement.get());
        return {};
    }
    Result<std::int64_t> number(const char* sql, const char* what) {
        const auto statement = prepare(sql);
        if (!statement) return statement.error();
        const int rc = sqlite3_step(statement->get());
        if (rc == SQLITE_DONE) return std::int64_t{0};
        if (rc != SQLITE_ROW) return error(what);
        return std::int64_t{sqlite3_column_int64(statement->get(), 0)};
    }

    Result<void> open_file();
    Result<void> take_over();
    Result<void> check_mark();
    Result<void> write_mark();
    Result<void> insert_all(std::span<const proto::Record> records);
};

Result<void> Store::State::open_file() {
    // SQLite gives its log the mode of the file.
    Fd made(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!made) return errno_error("cannot open the journal " + path);
    made.reset();
    sqlite3* raw = nullptr;
    const int rc = sqlite3_open_v2(path.c_str(), &raw, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
    database.reset(raw);
    if (rc != SQLITE_OK) return error("open the journal");
    // Exclusive: held from the first read until the process ends, however it ends.
    if (auto done = execute("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
                            "PRAGMA trusted_schema=OFF; PRAGMA journal_size_limit=4194304;",
                            "take the journal for ourselves");
        !done) {
        return done;
    }
    // A clean end takes the way of a crash, which has to work anyway, and costs no flush.
    sqlite3_db_config(database.get(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    return execute("CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
                   "CREATE TABLE IF NOT EXISTS journal(number INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, record BLOB NOT NULL);"
                   "INSERT OR IGNORE INTO meta VALUES('format', 1);",
                   "make the journal's tables");
}

Result<void> Store::State::take_over() {
    const auto format = number("SELECT value FROM meta WHERE name = 'format'", "read the journal's format");
    if (!format) return format.error();
    if (*format > kFormat) {
        return Error{Code::Refused, fmt::format("{} was written by a newer version (format {}, this one knows {}): use that version",
                                                path, *format, kFormat)};
    }
    const auto last = number("SELECT max(number) FROM journal", "count the journal's records");
    if (!last) return last.error();
    count = static_cast<std::uint64_t>(*last);
    if (auto marked = check_mark(); !marked) return marked;
    const auto before = number("SELECT value FROM meta WHERE name = 'epoch'", "read the epoch");
    if (!before) return before.error();
    epoch = static_cast<std::uint64_t>(*before) + 1;
    return {};
}

Result<void> Store::State::check_mark() {
    const std::string name = path + ".mark";
    mark.reset(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!mark) return errno_error("cannot open " + name);
    Mark seen;
    const ssize_t size = ::pread(mark.get(), &seen, sizeof seen, 0);
    if (size < 0) return errno_error("cannot read " + name);
    if (size == 0) return {};  // New, or deleted by someone who accepts the journal as it is.
    if (size != sizeof seen || seen.inverse != ~seen.count) {
        return Error{Code::Damaged, fmt::format("{} is damaged, so nothing shows that {} is whole: check it, then delete {}", name, path, name)};
    }
    if (seen.count > count) {
        return Error{Code::Damaged,
                     fmt::format("{} ends at record {}, but {} were committed (record {} is missing): restore {} and {}-wal from a backup; "
                                 "to go on without the lost records, delete {}",
                                 path, count, seen.count, count + 1, path, path, name)};
    }
    return {};
}

Result<void> Store::State::write_mark() {
    // Not flushed: after a power cut it may lag, and a lower mark claims less.
    const Mark now{count, ~count};
    if (::pwrite(mark.get(), &now, sizeof now, 0) != sizeof now) return errno_error("cannot write " + path + ".mark");
    return {};
}

Result<void> Store::State::insert_all(std::span<const proto::Record> records) {
    const int rc = sqlite3_step(read_epoch.get());
    const std::int64_t stored = rc == SQLITE_ROW ? sqlite3_column_int64(read_epoch.get(), 0) : 0;
    sqlite3_reset(read_epoch.get());
    if (static_cast<std::uint64_t>(stored) != (has_office ? epoch : epoch - 1)) {
        return Error{Code::Refused, fmt::format("{}: another coordinator has taken over (epoch {}, ours is {})", path, stored, epoch)};
    }
    if (!has_office) {
        sqlite3_bind_int64(write_epoch.get(), 1, static_cast<sqlite3_int64>(epoch));
        if (auto done = run(write_epoch, "raise the epoch"); !done) return done;
    }
    std::string bytes;
    std::uint64_t next = count;
    for (const proto::Record& record : records) {
        ++next;
        bytes.clear();
        if (!record.SerializeToString(&bytes)) return Error{Code::Internal, "a record cannot be serialized"};
        sqlite3_bind_int64(insert.get(), 1, static_cast<sqlite3_int64>(next));
        sqlite3_bind_int64(insert.get(), 2, checksum(next, bytes.data(), bytes.size()));
        sqlite3_bind_blob64(insert.get(), 3, bytes.data(), bytes.size(), SQLITE_STATIC);
        if (auto done = run(insert, "append a record"); !done) return done;
    }
    return {};
}

Store::Store(std::unique_ptr<State> state) : state_(std::move(state)) {}
Store::~Store() = default;
std::uint64_t Store::epoch() const { return state_->epoch; }
std::uint64_t Store::record_count() const { return state_->count; }

Result<std::unique_ptr<Store>> Store::open(const std::string& path) {
    auto state = std::make_unique<State>();
    state->path = path;
    if (auto opened = state->open_file(); !opened) return opened.error();
    if (auto taken = state->take_over(); !taken) return taken.error();
    struct Plan {
        Statement* statement;
        const char* sql;
    };
    const Plan plans[] = {
        {&state->begin, "BEGIN IMMEDIATE"},
        {&state->commit, "COMMIT"},
        {&state->rollback, "ROLLBACK"},
        {&state->insert, "INSERT INTO journal(number, checksum, record) VALUES(?, ?, ?)"},
        {&state->read_epoch, "SELECT value FROM meta WHERE name = 'epoch'"},
        {&state->write_epoch, "INSERT OR REPLACE INTO meta VALUES('epoch', ?)"},
    };
    for (const Plan& plan : plans) {
        auto prepared = state->prepare(plan.sql);
        if (!prepared) return prepared.error();
        *plan.statement = std::move(*prepared);
    }
    return std::unique_ptr<Store>(new Store(std::move(state)));
}

Result<void> Store::append(std::span<const proto::Record> records) {
    if (records.empty()) return {};
    State& s = *state_;
    if (auto done = s.run(s.begin, "begin a commit"); !done) return done;
    Result<void> done = s.insert_all(records);
    if (done) done = s.run(s.commit, "commit");
    if (!done) {
        if (sqlite3_get_autocommit(s.database.get()) == 0) sqlite3_step(s.rollback.get());
        sqlite3_reset(s.rollback.get());
        return done;
    }
    s.has_office = true;
    s.count += records.size();
    return s.write_mark();
}

Result<void> Store::replay(const std::function<void(proto::Record&&)>& each) {
    State& s = *state_;
    const auto select = s.prepare("SELECT number, checksum, record FROM journal ORDER BY number");
    if (!select) return select.error();
    proto::Record record;
    std::uint64_t expected = 1;
    int rc = SQLITE_DONE;
    for (; (rc = sqlite3_step(select->get())) == SQLITE_ROW; ++expected) {
        const auto number = static_cast<std::uint64_t>(sqlite3_column_int64(select->get(), 0));
        const auto stored = static_cast<std::uint32_t>(sqlite3_column_int64(select->get(), 1));
        const void* bytes = sqlite3_column_blob(select->get(), 2);
        const int size = sqlite3_column_bytes(select->get(), 2);
        const auto damaged = [&](const char* how) {
            return Error{Code::Damaged, fmt::format("{}: record {} {}: restore the file from a backup; nothing was skipped or repaired",
                                                    s.path, expected, how)};
        };
        if (number != expected) return damaged("is missing");
        if (checksum(number, bytes, static_cast<std::size_t>(size)) != stored) return damaged("is damaged (its checksum differs)");
        if (!record.ParseFromArray(bytes, size)) return damaged("cannot be read");
        each(std::move(record));
    }
    if (rc != SQLITE_DONE) {
        Error failed = s.error("read the journal");
        failed.message += fmt::format(" (at record {})", expected);
        return failed;
    }
    if (expected != s.count + 1) {
        return Error{Code::Damaged, fmt::format("{}: record {} is missing: restore the file from a backup", s.path, expected)};
    }
    return {};
}

}  // namespace gangline::coordinator
