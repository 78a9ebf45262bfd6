// timestamp: the monotonic clock in seconds, written into one place of an array.
//
//   stamps[slot] <- seconds of std::chrono::steady_clock (on Linux the clock of Python's time.perf_counter)
//
// For timing the parts of a compiled graph, where Python's clock cannot be read: the graph calls it on the tensors that
// must be there before (they are not read).
// stamps  float64, written; the other elements are left as they are
// slot    from 0 to the number of stamps - 1
#pragma once

#include "ops/tensor.h"

namespace boost_ext {

void timestamp(const View& stamps, std::int64_t slot);

}  // namespace boost_ext
