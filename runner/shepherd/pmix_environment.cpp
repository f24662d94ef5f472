#include "runner/shepherd/pmix_environment.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pmix_version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace gangline::runner {
namespace {

// Open MPI 5, which comes with libpmix 5, calls its shared memory "sm".
constexpr const char* kTransports = PMIX_VERSION_MAJOR >= 5 ? "self,sm,tcp" : "self,vader,tcp";

std::string_view name_of(std::string_view variable) { return variable.substr(0, variable.find('=')); }

bool has(const std::vector<std::string>& environment, std::string_view name) {
    return std::any_of(environment.begin(), environment.end(),
                       [&](const std::string& variable) { return name_of(variable) == name; });
}

// UCX and the like need another PML there than ob1, and Open MPI finds it.
bool has_fast_fabric() {
    DIR* folder = ::opendir("/sys/class/infiniband");
    if (folder == nullptr) return false;
    bool found = false;
    while (const dirent* entry = ::readdir(folder)) found = found || entry->d_name[0] != '.';
    ::closedir(folder);
    return found;
}

using Interfaces = std::unique_ptr<ifaddrs, void (*)(ifaddrs*)>;
Interfaces list_interfaces() {
    ifaddrs* first = nullptr;
    if (::getifaddrs(&first) != 0) first = nullptr;
    return {first, ::freeifaddrs};
}

bool has_address(const ifaddrs& entry, const std::string& address) {
    if (entry.ifa_addr == nullptr) return false;
    char text[INET6_ADDRSTRLEN] = {};
    if (entry.ifa_addr->sa_family == AF_INET) {
        sockaddr_in in{};
        std::memcpy(&in, entry.ifa_addr, sizeof in);
        ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
    } else if (entry.ifa_addr->sa_family == AF_INET6) {
        sockaddr_in6 in{};
        std::memcpy(&in, entry.ifa_addr, sizeof in);
        ::inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof text);
    }
    return address == text;
}

}  // namespace

bool is_launcher_variable(std::string_view name) {
    const auto begins = [&](std::string_view prefix) { return name.substr(0, prefix.size()) == prefix; };
    if (begins("PMIX_") || begins("PRTE_") || begins("FLUX_") || begins("JSM_") || begins("PMI_") || begins("HYDRA_")) return true;
    if (!begins("OMPI_")) return false;
    if (!begins("OMPI_MCA_")) return true;
    for (const char* internal : {"OMPI_MCA_orte_", "OMPI_MCA_ess", "OMPI_MCA_pmix", "OMPI_MCA_initial_wdir",
                                 "OMPI_MCA_shmem_RUNTIME_QUERY_hint"}) {
        if (begins(internal)) return true;
    }
    return false;
}

void clean_own_environment() {
    std::vector<std::string> names;
    for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
        const std::string_view name = name_of(*variable);
        if (is_launcher_variable(name) || name.substr(0, 6) == "SLURM_") names.emplace_back(name);
    }
    for (const std::string& name : names) ::unsetenv(name.c_str());
}

std::vector<std::string> mpi_environment(const std::vector<std::string>& base, const MpiSettings& settings) {
    std::vector<std::string> result;
    result.reserve(base.size() + 24);
    for (const std::string& variable : base) {
        if (!is_launcher_variable(name_of(variable))) result.push_back(variable);
    }
    const auto set = [&](const std::string& name, const std::string& value) {
        if (!value.empty() && !has(result, name)) result.push_back(name + "=" + value);
    };
    set("JSM_JSRUN_PORT", "0");
    if (!has_fast_fabric()) {
        set("OMPI_MCA_pml", "ob1");  // Saves the 200 ms in which MPI_Init probes for fabrics that are not here.
        set("OMPI_MCA_btl", kTransports);
    }
    if (settings.yield_when_idle) set("OMPI_MCA_mpi_yield_when_idle", "1");
    set("OMPI_MCA_btl_vader_backing_directory", settings.backing_folder);
    set("OMPI_MCA_btl_sm_backing_directory", settings.backing_folder);
    if (!has(result, "OMPI_MCA_btl_tcp_if_exclude")) set("OMPI_MCA_btl_tcp_if_include", interface_of(settings.address));
    return result;
}

std::string interface_of(const std::string& address) {
    if (address.empty()) return {};
    const Interfaces interfaces = list_interfaces();
    for (const ifaddrs* entry = interfaces.get(); entry != nullptr; entry = entry->ifa_next) {
        if (has_address(*entry, address)) return entry->ifa_name;
    }
    // The whole of 127/8 answers on the loopback interface, which carries one address of it.
    return address.substr(0, 4) == "127." && address != "127.0.0.1" ? interface_of("127.0.0.1") : std::string();
}

bool is_loopback_up() {
    const Interfaces interfaces = list_interfaces();
    for (const ifaddrs* entry = interfaces.get(); entry != nullptr; entry = entry->ifa_next) {
        if ((entry->ifa_flags & IFF_LOOPBACK) != 0 && (entry->ifa_flags & IFF_UP) != 0) return true;
    }
    return false;
}

}  // namespace gangline::runner
