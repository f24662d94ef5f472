#include "runner/agent/notes.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include <fmt/format.h>

#include "base/process.h"

namespace gangline::runner {
namespace {

// Renamed into place, so that a kill in the middle leaves the old note or the new one.
Result<void> put(const std::string& path, const std::string& bytes) {
    const std::string temporary = path + ".new";
    {
        const Fd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        if (!fd) return errno_error("cannot create " + temporary);
        if (auto written = write_all(fd.get(), bytes); !written) return written;
    }
    if (::rename(temporary.c_str(), path.c_str()) != 0) return errno_error("cannot rename to " + path);
    return {};
}

}  // namespace

Result<void> Notes::prepare() { return make_folders(state_ + "/attempts", 0700); }

Result<void> Notes::keep(const AttemptNote& note) {
    // A SpawnReply carries the process, a SpawnRequest the rest: both are messages that exist already.
    proto::SpawnRequest where;
    where.set_socket_name(note.socket_name);
    where.set_spool_folder(note.spool_folder);
    proto::SpawnReply who;
    who.set_pid(note.shepherd.pid);
    who.set_start_ticks(note.shepherd.start_ticks);
    const std::string a = where.SerializeAsString();
    const std::string b = who.SerializeAsString();
    const std::string c = note.prepare.SerializeAsString();
    const std::string& d = note.spare_folder;
    return put(fmt::format("{}/attempts/{}", state_, note.spool_folder),
               fmt::format("{} {} {} {}\n", a.size(), b.size(), c.size(), d.size()) + a + b + c + d);
}

void Notes::drop(const std::string& spool_folder) { ::unlink(fmt::format("{}/attempts/{}", state_, spool_folder).c_str()); }

std::vector<AttemptNote> Notes::all() const {
    std::vector<AttemptNote> notes;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(state_ + "/attempts", error)) {
        const auto text = read_file(entry.path().string());
        std::size_t a = 0, b = 0, c = 0, d = 0;
        int head = 0;
        AttemptNote note;
        proto::SpawnRequest where;
        proto::SpawnReply who;
        const bool sane = text.ok() && std::sscanf(text->c_str(), "%zu %zu %zu %zu\n%n", &a, &b, &c, &d, &head) == 4 && head > 0 &&
                          text->size() == static_cast<std::size_t>(head) + a + b + c + d;
        if (sane) {
            const char* at = text->data() + head;
            const bool parsed = where.ParseFromArray(at, static_cast<int>(a)) && who.ParseFromArray(at + a, static_cast<int>(b)) &&
                                note.prepare.ParseFromArray(at + a + b, static_cast<int>(c));
            if (parsed && where.spool_folder() == entry.path().filename().string()) {
                note.socket_name = where.socket_name();
                note.spool_folder = where.spool_folder();
                note.spare_folder.assign(at + a + b + c, d);
                note.shepherd = {who.pid(), who.start_ticks()};
                notes.push_back(std::move(note));
                continue;
            }
        }
        std::filesystem::remove(entry.path(), error);
    }
    return notes;
}

Result<void> Notes::keep_epoch(std::uint64_t epoch) { return put(state_ + "/epoch", std::to_string(epoch)); }

std::uint64_t Notes::epoch() const {
    const auto text = read_file(state_ + "/epoch");
    return text.ok() ? std::strtoull(text->c_str(), nullptr, 10) : 0;
}

}  // namespace gangline::runner
