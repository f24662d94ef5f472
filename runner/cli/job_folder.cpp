#include "runner/cli/job_folder.h"

#include <filesystem>

#include "runner/cli/verbs.h"

namespace gangline::runner {

Result<std::string> checkpoint_folder_of(const std::string& job) {
    Line line;
    line.verb = "ckpt";
    line.environment = this_environment();
    std::error_code ignored;
    line.cwd = std::filesystem::current_path(ignored).string();
    auto config = read_config(line.environment, line.cwd);
    if (!config) return config.error();
    line.config = std::move(config).value();
    line.state = state_folder(line.given, line.environment, line.config);
    const auto client = connect(line);
    if (!client) return client.error();
    const auto name = find_job(**client, job);
    if (!name) return name.error();
    proto::Request request;
    request.mutable_show_job()->set_job(name->job);
    set_task(request, *name);
    const auto response = (*client)->ask(request);
    if (!response) return response.error();
    if (response->jobs_size() == 0) return Error{Code::NotFound, "the coordinator knows no such job"};
    const std::string& folder = response->jobs(0).checkpoint_folder();
    if (folder.empty()) return Error{Code::NotFound, "the coordinator does not say where its checkpoints are"};
    return folder;
}

}  // namespace gangline::runner
