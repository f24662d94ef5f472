#pragma once
// The node's PMIx server: what mpirun would be to an Open MPI rank, so that MPI_Init works without mpirun.
//
//   rank --loopback--> libpmix's own thread --queue--> fd() readable --handle()--> PmixEvents, on the loop's thread
//
// One server a process (libpmix keeps global state), started before any job is known, or later. A namespace is one gang:
// the command's ranks, or one step of a script. Nothing is ever deregistered or finalized: libpmix 4.2 can corrupt
// its event loop or hang there, so the process must leave with _exit. Fences of gangs that live on this node alone are
// completed inside libpmix and never seen here.
//
// Thread rule: the loop's thread only. Source: PMIx Standard 4.1; libpmix 4.2.2; Open MPI 4.1.4.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/protocol/job.pb.h"
#include "base/result.h"

namespace gangline::runner {

// "<cluster>-<job>.<attempt>.<step>": unique for ever, so Open MPI's hash of it is too.
std::string pmix_name_space(const std::string& cluster, const proto::AttemptId& id, std::uint32_t step_id);

struct PmixOptions {
    std::string folder;     // private, exists: libpmix's rendezvous files
    std::string node;       // the node's name in maps and in PMIX_HOSTNAME
    std::string cluster;
};

// Called from handle() on the loop's thread. Unset ones are skipped.
struct PmixEvents {
    std::function<void(const std::string& name_space, std::uint32_t rank)> connected;  // MPI_Init has begun
    std::function<void(const std::string& name_space, std::uint32_t rank)> finalized;  // MPI_Finalize is done
    std::function<void(const std::string& name_space, std::uint32_t rank, int code, const std::string& text)> aborted;
    // Every local participant has arrived: answer_fence(key, ...) when all nodes have. `partial`: a local participant is dead.
    std::function<void(const std::string& key, std::string blob, bool partial)> fence;
    // A local rank wants what `rank` of another node has published: answer_modex(request, ...).
    std::function<void(std::uint64_t request, const std::string& name_space, std::uint32_t rank)> modex;
    // The answer to lookup_modex.
    std::function<void(std::uint64_t request, int status, std::string blob)> modex_found;
    std::function<void(const std::string& text)> help_text;  // Open MPI's help messages, printable part
};

struct PmixGang {
    std::string name_space;
    std::vector<proto::Placement> gang;  // of all nodes; those without ranks are skipped
    std::string node;                    // which placement is this node's
    std::string session_folder;          // made here (0700, owned by uid): Open MPI's session files
    uid_t uid = 0;
    gid_t gid = 0;
};

// How Open MPI is tuned for a rank; each is an environment variable that the user's own setting of the same name overrides.
struct MpiSettings {
    std::string backing_folder;  // tmpfs, private to the attempt and node, exists: shared-memory segments
    std::string address;         // the node's address: its interface is the one MPI uses; empty = Open MPI chooses
    bool yield_when_idle = true; // without it collectives are 100 to 500 times slower where ranks outnumber cores
};

class PmixServer {
  public:
    // Takes 8 to 30 ms, mostly the discovery of the topology. Removes PMIX_*, OMPI_*, PRTE_*, SLURM_* and FLUX_* from this
    // process's environment, sets PMIX_MCA_gds=hash and ignores SIGPIPE.
    // Errors: InvalidArgument (folder, node); Refused (a second server); Unavailable (no loopback); Internal with libpmix's reason.
    static Result<std::unique_ptr<PmixServer>> start(const PmixOptions& options, PmixEvents events);
    virtual ~PmixServer() = default;

    virtual int fd() const = 0;  // readable: call handle()
    virtual void handle() = 0;

    // Registers the gang and its ranks of this node. Errors: InvalidArgument (no rank here, name taken); Internal.
    virtual Result<void> register_gang(const PmixGang& gang) = 0;
    // The environment of a local rank: `base` ("NAME=value"; its PMIX_* are dropped) plus PMIx's and MPI's settings.
    // Errors: NotFound (not registered, or not a rank of this node); Internal.
    virtual Result<std::vector<std::string>> environment_of(const std::string& name_space, std::uint32_t rank,
                                                            const std::vector<std::string>& base,
                                                            const MpiSettings& settings) = 0;

    // `blob`: all nodes' blobs, one behind the other, this node's included. An unknown key is ignored.
    virtual void answer_fence(const std::string& key, const std::string& blob, bool failed) = 0;
    virtual void answer_modex(std::uint64_t request, int status, const std::string& blob) = 0;
    // Asks a local rank's published data for another node; answered by modex_found (also with an error status).
    virtual void lookup_modex(std::uint64_t request, const std::string& name_space, std::uint32_t rank) = 0;
    // The gang has failed: its waiting and later fences and lookups are answered with an error.
    virtual void fail_gang(const std::string& name_space) = 0;

    virtual bool is_connected(const std::string& name_space, std::uint32_t rank) const = 0;  // has ever connected
    // Connected, but neither finalized nor aborted: exit code 0 of such a rank is a failure, its peers hang.
    virtual bool is_inside_mpi(const std::string& name_space, std::uint32_t rank) const = 0;
};

}  // namespace gangline::runner
