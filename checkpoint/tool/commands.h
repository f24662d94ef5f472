#pragma once
// What `gangline ckpt` is asked, and the commands that answer. Each prints its answer and returns the exit code.

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/tool/place.h"
#include "checkpoint/tool/verb.h"

namespace gangline::checkpoint::tool {

struct Request {
    std::vector<std::string> words;   // places; jobs' numbers are folders by now
    std::vector<InMemory> in_memory;  // of the job that was named first
    std::string output;
    std::string format = "safetensors";
    std::string rank;
    std::string keep;
    std::string every;
    bool all = false;
    bool force = false;
    bool dry_run = false;
    bool yes = false;
    bool json = false;
    bool help = false;
};

Result<int> run_list(const Request& request);
Result<int> run_show(const Request& request);
Result<int> run_verify(const Request& request);
Result<int> run_diff(const Request& request);
Result<int> run_view(const Request& request);
Result<int> run_export(const Request& request);
Result<int> run_prune(const Request& request);
Result<int> run_pin(const Request& request);
Result<int> run_unpin(const Request& request);

// A whole number within [least, most]. Errors: InvalidArgument that names option, value and range.
Result<std::uint64_t> whole_number(const std::string& option, const std::string& value, std::uint64_t least, std::uint64_t most);

}  // namespace gangline::checkpoint::tool
