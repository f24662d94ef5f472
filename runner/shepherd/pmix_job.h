#pragma once
// What libpmix must know of a gang before its ranks start: the job-level keys, and one array of keys for every rank of it.
//
// Types count: a local rank that is not uint16, or a job size that is signed, makes MPI_Init fail; without
// PMIX_LOCAL_PEERS every rank believes that it is alone on its node. Every node registers the whole job.
//
// Thread rule: pure, but for libpmix's own allocations. Source: PMIx Standard 4.1, chapters "job-level information" and
// "process-specific information".

#include <pmix_server.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runner/shepherd/pmix_server.h"

namespace gangline::runner {

// An array of pmix_info_t that owns what libpmix allocates in it.
class InfoList {
  public:
    InfoList() = default;
    InfoList(const InfoList&) = delete;
    InfoList& operator=(const InfoList&) = delete;
    ~InfoList();

    void text(const char* key, const std::string& value);
    void u32(const char* key, std::uint32_t value);
    void u16(const char* key, std::uint16_t value);
    void rank(const char* key, std::uint32_t value);
    void yes(const char* key);
    void regex(const char* key, const char* value);  // as PMIx_generate_* made it; may contain NUL bytes
    void array(const char* key, InfoList& elements);

    pmix_info_t* data() { return items_.data(); }
    std::size_t size() const { return items_.size(); }

  private:
    void load(const char* key, const void* value, pmix_data_type_t type);
    std::vector<pmix_info_t> items_;
};

pmix_proc_t pmix_proc(const std::string& name_space, std::uint32_t rank);
std::string pmix_reason(pmix_status_t status);

// Fills `list` with everything that PMIx_server_register_nspace needs for `gang`, seen from gang.node.
// Errors: InvalidArgument when gang.node holds no rank, when ranks do not follow one another, or a name is empty.
Result<void> describe_gang(const PmixGang& gang, InfoList& list);

// The placement of `node` with at least one rank, or nullptr.
const proto::Placement* placement_of(const std::vector<proto::Placement>& gang, const std::string& node);

}  // namespace gangline::runner
