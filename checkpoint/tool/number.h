#pragma once
// One element of any dtype as a number. Exact: long double holds every 64-bit integer and every float of 64 bits or less.
//
// Source: bfloat16 is the upper half of IEEE 754 binary32; float8 as in Micikevicius et al., FP8 Formats for Deep Learning
// (e4m3fn has no infinity, S.1111.111 is NaN; e5m2 is as IEEE 754).

#include "checkpoint/tensor.h"

namespace gangline::checkpoint::tool {

// `bytes` are little-endian and need not be aligned.
long double number_at(DType dtype, const char* bytes);

}  // namespace gangline::checkpoint::tool
