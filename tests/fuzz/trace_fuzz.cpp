// Traces, failure tables and phases files, from any bytes.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "coordinator/simulate/failures.h"
#include "coordinator/simulate/replay.h"
#include "coordinator/simulate/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    using namespace gangline::simulate;
    if (const auto trace = read_trace(text, "fuzz"); trace.ok()) {
        double before = 0;
        for (const TraceJob& job : trace->jobs) {
            CHECK(std::isfinite(job.submit_s) && job.submit_s >= before && job.duration_s > 0 && job.cards > 0, "jobs are sorted and whole");
            before = job.submit_s;
        }
    }
    static_cast<void>(read_failure_causes(text, "fuzz").ok());
    static_cast<void>(read_fault_trace(text, "fuzz").ok());
    static_cast<void>(parse_phases(text, "fuzz").ok());
    return 0;
}
