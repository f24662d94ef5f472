#pragma once
// What a job waits for besides cards: other jobs, as sbatch's --dependency says it. Pure.
//
//   after:J[+MIN]   J has started (or was cancelled), MIN minutes ago      afterok:J      J completed
//   afterany:J      J has ended                                            afternotok:J   J ended otherwise
//   aftercorr:J     as afterok, of arrays the same element                 singleton      no earlier job of this name and user is left
//
// An array's id means all of its elements. Several with ',' must all be met, with '?' any one. TYPE:J:K is TYPE:J,TYPE:K.
// Source: sbatch(1), --dependency.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gangline::coordinator {

enum class After { Start, Any, Ok, NotOk, Corr, Singleton };

struct DependencyTerm {
    After after = After::Any;
    std::uint64_t job = 0;
    std::uint32_t minutes = 0;
    std::optional<std::uint32_t> task = {};  // "12_5": this element of array 12
};

struct Dependency {
    bool any = false;
    std::vector<DependencyTerm> terms;
};

// Empty text: no terms. Errors: InvalidArgument naming the part that is wrong and what may stand there.
Result<Dependency> parse_dependency(std::string_view text);

// "afterok:7"
std::string text_of(const DependencyTerm& term);

}  // namespace gangline::coordinator
