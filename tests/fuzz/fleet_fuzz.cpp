// The cluster file and dependencies, from any bytes: a value or an error that names a line, never a crash.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "coordinator/brain/dependency.h"
#include "coordinator/schedule/fleet.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    using namespace gangline::coordinator;
    const auto fleet = parse_fleet(text);
    CHECK(fleet.ok() || !fleet.error().message.empty(), "an error has words");
    if (fleet.ok()) {
        for (const auto& [name, team] : fleet->teams) {
            for (const std::string& user : team.users) CHECK(fleet->team_of(user) != nullptr, "each user's team is found");
        }
    }
    const auto dependency = parse_dependency(text);
    if (dependency.ok()) {
        for (const DependencyTerm& term : dependency->terms) CHECK(parse_dependency(text_of(term)).ok(), "a term reads back");
    }
    return 0;
}
