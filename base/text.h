#pragma once
// Text that people and Slurm write: time limits, memory sizes, node lists, output patterns. Pure.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace gangline {

// `minutes`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`; `0`, `UNLIMITED`, `INFINITE` give zero = no limit.
// Errors: InvalidArgument that names the accepted forms. Source: sbatch(1).
Result<seconds> parse_time_limit(std::string_view text);
// A moment: HH:MM[:SS] (the next such), YYYY-MM-DD[THH:MM[:SS]], MMDDYY or MM/DD/YY, now, now+N[seconds|minutes|hours|days|weeks] (seconds
// without a word), today, tomorrow, midnight, noon; in local time. Units: returns seconds since 1970.
// Errors: InvalidArgument that names the accepted forms. Source: sbatch(1), --begin.
Result<std::int64_t> parse_when(std::string_view text, std::int64_t now_unix_s);
// A number with K, M, G or T (1024 each); without a letter it is MiB, as sbatch's --mem has it. Units: returns MiB.
Result<std::uint64_t> parse_memory_mib(std::string_view text);
// "gpu[001-003,007],login1" -> names in order; the inverse compresses. Errors: InvalidArgument. At most 65,536 names.
Result<std::vector<std::string>> expand_node_list(std::string_view text);
std::string compress_node_list(const std::vector<std::string>& names);
// n2 before n10: numbers inside names count as numbers.
bool natural_less(std::string_view a, std::string_view b);
// sbatch's file patterns: %j %A %a %x %u %N %n %t %s %J %%, with a zero-padding width (%4t). `values` maps the letter to
// its text; an unknown letter stays as it is.
std::string expand_pattern(std::string_view pattern, const std::map<char, std::string>& values);
// Whether every byte belongs to a character of UTF-8 (shortest forms, no surrogates), as protobuf's strings must.
bool is_utf8(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
// "1h 02m", "3m 04s", "12.3s": for people.
std::string human_duration(double duration_s);
std::string human_bytes(double bytes);
// 2026-11-30T07:32:37Z
std::string iso_time(std::int64_t unix_ms);
// Quotes a word for a POSIX shell when it needs it.
std::string shell_quote(std::string_view word);
std::string signal_name(int number);  // "SIGKILL"; "signal 99" when unknown

}  // namespace gangline
