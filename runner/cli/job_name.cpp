#include "runner/cli/job_name.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

namespace gangline::runner {
namespace {

template <class Number>
bool read_number(std::string_view text, Number& number) {
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
    return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

}  // namespace

Result<JobName> parse_job_name(const std::string& word) {
    const std::string_view text = word;
    const std::size_t line = text.find('_');
    JobName name;
    std::uint32_t task = 0;
    const bool has_task = line != std::string_view::npos;
    if (!read_number(text.substr(0, line), name.job) || name.job == 0 || (has_task && !read_number(text.substr(line + 1), task))) {
        return Error{Code::InvalidArgument,
                     fmt::format("'{}' is not a job: write its number, 12_5 for task 5 of the array 12, or @ for the last one that you "
                                 "submitted",
                                 word)};
    }
    if (has_task) name.task = task;
    return name;
}

std::string to_string(const JobName& name) {
    return name.task ? fmt::format("{}_{}", name.job, *name.task) : std::to_string(name.job);
}

std::string name_of(const proto::JobView& job) {
    if (job.array().count() == 0) return std::to_string(job.id());
    return to_string({job.array().job(), job.array().task()});
}

void set_task(proto::Request& request, const JobName& name) {
    request.set_has_task(name.task.has_value());
    request.set_task(name.task.value_or(0));
}

}  // namespace gangline::runner
