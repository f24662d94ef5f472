#include "runner/agent/node_facts.h"

#include <hwloc.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <filesystem>

#include <fmt/format.h>

#include "base/process.h"

namespace gangline::runner {
namespace {

std::uint32_t real_cards() {
    std::uint32_t count = 0;
    while (::access(fmt::format("/dev/nvidia{}", count).c_str(), F_OK) == 0) ++count;
    return count;
}

std::string card_model(std::uint32_t index) {
    // The kernel module tells the model without the driver's library; one folder a card, named by PCI address, in order.
    std::error_code error;
    std::uint32_t at = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
        if (at++ != index) continue;
        const auto text = read_file(entry.path().string() + "/information");
        const std::size_t from = text.ok() ? text->find("Model:") : std::string::npos;
        if (from == std::string::npos) return "NVIDIA";
        const std::size_t start = text->find_first_not_of(" \t", from + 6);
        return text->substr(start, text->find('\n', start) - start);
    }
    return "NVIDIA";
}

}  // namespace

std::string machine_cgroup_root() {
    for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        if (::access(fmt::format("{}/cgroup.controllers", root).c_str(), F_OK) == 0) return root;
    }
    return "";
}

proto::NodeInfo describe_node(const NodeWish& wish) {
    proto::NodeInfo node;
    node.set_name(wish.name);
    node.set_address(wish.address);
    node.set_rack(wish.rack);
    cpu_set_t usable;
    CPU_ZERO(&usable);
    const bool known = ::sched_getaffinity(0, sizeof usable, &usable) == 0;  // a container's share, not the machine
    node.set_cpus(static_cast<std::uint32_t>(known ? CPU_COUNT(&usable) : ::sysconf(_SC_NPROCESSORS_ONLN)));
    struct sysinfo memory{};
    if (::sysinfo(&memory) == 0) node.set_memory_mib(memory.totalram * memory.mem_unit >> 20);
    node.set_boot_id(boot_id());
    node.set_version(GANGLINE_VERSION);
    node.set_multi_user(wish.multi_user);
    node.set_process_tracking(wish.cgroups ? "cgroup v2" : "subreaper");
    const std::uint32_t real = wish.virtual_cards == 0 ? real_cards() : 0;
    const std::uint32_t count = real > 0 ? real : wish.virtual_cards > 0 ? wish.virtual_cards : node.cpus();
    for (std::uint32_t i = 0; i < count; ++i) {
        proto::Card& card = *node.add_cards();
        card.set_index(i);
        card.set_is_virtual(real == 0);
        card.set_model(real == 0 ? "virtual" : card_model(i));
    }
    return node;
}

Result<void> keep_topology(const std::string& path) {
    const std::string wanted = boot_id();
    if (const auto known = read_file(path + ".boot"); known.ok() && *known == wanted && ::access(path.c_str(), R_OK) == 0) return {};
    hwloc_topology_t topology = nullptr;
    if (hwloc_topology_init(&topology) != 0) return Error{Code::Internal, "hwloc does not start"};
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    const std::string temporary = fmt::format("{}.{}", path, ::getpid());
    const bool good = hwloc_topology_load(topology) == 0 && hwloc_topology_export_xml(topology, temporary.c_str(), 0) == 0;
    hwloc_topology_destroy(topology);
    if (!good) return Error{Code::Internal, "hwloc cannot write the topology to " + temporary};
    if (::rename(temporary.c_str(), path.c_str()) != 0) return errno_error("cannot rename to " + path);
    return write_file_atomically(path + ".boot", wanted);
}

bool can_make_cgroups(const std::string& cluster, const std::string& node) {
    const std::string base = machine_cgroup_root();
    if (base.empty()) return false;
    const std::string folder = fmt::format("{}/gangline/{}/{}", base, cluster, node);
    return make_folders(folder).ok() && ::access((folder + "/cgroup.kill").c_str(), W_OK) == 0;
}

void remove_empty_cgroups(const std::string& cluster, const std::string& node) {
    const std::string base = machine_cgroup_root();
    if (base.empty()) return;
    for (const std::string& folder : {fmt::format("{}/gangline/{}/{}", base, cluster, node), fmt::format("{}/gangline/{}", base, cluster), fmt::format("{}/gangline", base)}) {
        if (::rmdir(folder.c_str()) != 0) return;
    }
}

}  // namespace gangline::runner
