#include "runner/shepherd/pmix_job.h"

#include <pmix.h>

#include <cstdlib>
#include <memory>

#include <fmt/format.h>

namespace gangline::runner {
namespace {

constexpr std::uint32_t kMostRanks = 1u << 20;

struct Free {
    void operator()(char* text) const { std::free(text); }
};
using CText = std::unique_ptr<char, Free>;

// Ranks are one range, without a gap, in node order.
Result<std::uint32_t> count_ranks(const PmixGang& gang) {
    std::uint32_t next = 0;
    for (const proto::Placement& placement : gang.gang) {
        if (placement.rank_count() == 0) continue;
        if (placement.node().empty() || placement.node().find_first_of(",;") != std::string::npos) {
            return Error{Code::InvalidArgument,
                         fmt::format("'{}' cannot be a node's name in a gang: it must not be empty nor contain , or ;",
                                     placement.node())};
        }
        if (placement.first_rank() != next || placement.rank_count() > kMostRanks - next) {
            return Error{Code::InvalidArgument,
                         fmt::format("the placement on {} begins with rank {} and has {} ranks; rank {} must come next and "
                                     "{} are the most",
                                     placement.node(), placement.first_rank(), placement.rank_count(), next, kMostRanks)};
        }
        next += placement.rank_count();
    }
    return next;
}

struct Maps {
    CText nodes;
    CText ranks;
};

Result<Maps> generate_maps(const PmixGang& gang) {
    std::string nodes;
    std::string ranks;
    for (const proto::Placement& placement : gang.gang) {
        if (placement.rank_count() == 0) continue;
        if (!nodes.empty()) {
            nodes += ',';
            ranks += ';';
        }
        nodes += placement.node();
        for (std::uint32_t i = 0; i < placement.rank_count(); ++i) {
            ranks += fmt::format("{}{}", i == 0 ? "" : ",", placement.first_rank() + i);
        }
    }
    char* text = nullptr;
    Maps maps;
    if (const auto rc = PMIx_generate_regex(nodes.c_str(), &text); rc != PMIX_SUCCESS) {
        return Error{Code::Internal, "PMIx cannot encode the list of nodes: " + pmix_reason(rc)};
    }
    maps.nodes.reset(text);
    text = nullptr;
    if (const auto rc = PMIx_generate_ppn(ranks.c_str(), &text); rc != PMIX_SUCCESS) {
        return Error{Code::Internal, "PMIx cannot encode the map of ranks: " + pmix_reason(rc)};
    }
    maps.ranks.reset(text);
    return maps;
}

void describe_ranks(const PmixGang& gang, InfoList& list) {
    std::uint32_t node_id = 0;
    for (const proto::Placement& placement : gang.gang) {
        if (placement.rank_count() == 0) continue;
        for (std::uint32_t i = 0; i < placement.rank_count(); ++i) {
            const std::uint32_t rank = placement.first_rank() + i;
            InfoList keys;
            keys.rank(PMIX_RANK, rank);  // Must be the first.
            keys.u32(PMIX_APPNUM, 0);
            keys.rank(PMIX_APPLDR, 0);
            keys.rank(PMIX_APP_RANK, rank);
            keys.rank(PMIX_GLOBAL_RANK, rank);
            keys.u16(PMIX_LOCAL_RANK, static_cast<std::uint16_t>(i));
            keys.u16(PMIX_NODE_RANK, static_cast<std::uint16_t>(i));
            keys.u32(PMIX_NODEID, node_id);
            keys.text(PMIX_HOSTNAME, placement.node());
            if (placement.node() == gang.node) {
                keys.text(PMIX_PROCDIR, fmt::format("{}/{}", gang.session_folder, rank));
            }
            list.array(PMIX_PROC_DATA, keys);
        }
        ++node_id;
    }
}

}  // namespace

InfoList::~InfoList() {
    for (pmix_info_t& item : items_) PMIX_INFO_DESTRUCT(&item);
}

void InfoList::load(const char* key, const void* value, pmix_data_type_t type) {
    pmix_info_t& item = items_.emplace_back();
    PMIX_INFO_CONSTRUCT(&item);
    PMIX_INFO_LOAD(&item, key, value, type);
}

void InfoList::text(const char* key, const std::string& value) { load(key, value.c_str(), PMIX_STRING); }
void InfoList::u32(const char* key, std::uint32_t value) { load(key, &value, PMIX_UINT32); }
void InfoList::u16(const char* key, std::uint16_t value) { load(key, &value, PMIX_UINT16); }
void InfoList::regex(const char* key, const char* value) { load(key, value, PMIX_REGEX); }

void InfoList::rank(const char* key, std::uint32_t value) {
    const pmix_rank_t rank = value;
    load(key, &rank, PMIX_PROC_RANK);
}

void InfoList::yes(const char* key) {
    const bool value = true;
    load(key, &value, PMIX_BOOL);
}

void InfoList::array(const char* key, InfoList& elements) {
    pmix_data_array_t array{};
    array.type = PMIX_INFO;
    array.size = elements.size();
    array.array = elements.data();
    load(key, &array, PMIX_DATA_ARRAY);  // A deep copy.
}

pmix_proc_t pmix_proc(const std::string& name_space, std::uint32_t rank) {
    pmix_proc_t proc{};
    name_space.copy(proc.nspace, PMIX_MAX_NSLEN);
    proc.rank = rank;
    return proc;
}

std::string pmix_reason(pmix_status_t status) {
    const char* text = PMIx_Error_string(status);
    return fmt::format("{} ({})", text != nullptr ? text : "unknown", status);
}

const proto::Placement* placement_of(const std::vector<proto::Placement>& gang, const std::string& node) {
    for (const proto::Placement& placement : gang) {
        if (placement.node() == node && placement.rank_count() > 0) return &placement;
    }
    return nullptr;
}

Result<void> describe_gang(const PmixGang& gang, InfoList& list) {
    const proto::Placement* here = placement_of(gang.gang, gang.node);
    if (here == nullptr) {
        return Error{Code::InvalidArgument, fmt::format("node {} holds no rank of {}", gang.node, gang.name_space)};
    }
    if (here->rank_count() > UINT16_MAX) {
        return Error{Code::InvalidArgument, fmt::format("{} ranks on one node; {} are the most", here->rank_count(), UINT16_MAX)};
    }
    const auto ranks = count_ranks(gang);
    if (!ranks) return ranks.error();
    const auto maps = generate_maps(gang);
    if (!maps) return maps.error();

    std::uint32_t nodes = 0;
    std::uint32_t node_id = 0;
    for (const proto::Placement& placement : gang.gang) {
        if (placement.rank_count() == 0) continue;
        if (placement.node() == gang.node) node_id = nodes;
        ++nodes;
    }
    std::string peers;
    for (std::uint32_t i = 0; i < here->rank_count(); ++i) {
        peers += fmt::format("{}{}", i == 0 ? "" : ",", here->first_rank() + i);
    }
    list.regex(PMIX_NODE_MAP, maps->nodes.get());
    list.regex(PMIX_PROC_MAP, maps->ranks.get());
    list.text(PMIX_JOBID, gang.name_space);
    list.u32(PMIX_JOB_SIZE, *ranks);
    list.u32(PMIX_UNIV_SIZE, *ranks);
    list.u32(PMIX_MAX_PROCS, *ranks);
    list.u32(PMIX_JOB_NUM_APPS, 1);
    list.u32(PMIX_NUM_NODES, nodes);
    list.u32(PMIX_NODEID, node_id);
    list.u32(PMIX_LOCAL_SIZE, here->rank_count());
    list.u32(PMIX_NODE_SIZE, here->rank_count());
    list.text(PMIX_LOCAL_PEERS, peers);
    list.rank(PMIX_LOCALLDR, here->first_rank());
    list.text(PMIX_TMPDIR, gang.session_folder);
    list.text(PMIX_NSDIR, gang.session_folder);
    list.yes(PMIX_TDIR_RMCLEAN);  // We delete the folders, the ranks need not.
    describe_ranks(gang, list);
    return {};
}

}  // namespace gangline::runner
