#include "checkpoint/tool/view.h"

#include <filesystem>

#include <fmt/format.h>

#include "checkpoint/view.h"

namespace gangline::checkpoint::tool {

namespace fs = std::filesystem;

Result<Viewed> write_view(Opened& opened, const std::string& output, Existing existing) {
    if (auto checked = check_shards(opened); !checked) return checked.error();
    const std::string path = output.empty() ? opened.path + "/" + kViewName : output;
    std::string prefix;
    if (!output.empty()) {
        std::error_code failed;
        const fs::path parent = fs::path(path).parent_path();
        const fs::path here = fs::canonical(parent.empty() ? "." : parent, failed);
        const fs::path shards = failed ? fs::path() : fs::canonical(opened.path, failed);
        if (failed) return Error{Code::InvalidArgument, fmt::format("--output '{}': {}; make its folder first", output, failed.message())};
        prefix = shards.lexically_relative(here).string();
        prefix = prefix == "." ? "" : prefix + "/";
    }
    auto file = NewFile::create(path, output.empty() ? Existing::Replace : existing);
    if (!file) return file.error();
    const auto view = build_view(opened.checkpoint, prefix);
    if (!view) return view.error();
    if (auto written = file->write(view->file); !written) return written.error();
    if (auto published = file->publish(); !published) return published.error();
    return Viewed{path, view->tensors};
}

}  // namespace gangline::checkpoint::tool
