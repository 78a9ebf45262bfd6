// timestamp: the monotonic clock in seconds, written into one place of an array.
//
//   stamps[slot] <- seconds of std::chrono::steady_clock (on Linux the clock of Python's time.perf_counter)
//
// For timing the parts of a compiled graph, where Python's clock cannot be read: the graph calls it on the tensors that
// must be there before (they are not read).
// stamps  float64, written; the other elements are left as they are
// slot    from 0 to the number of stamps - 1
#pragma once

#include "ops/schema.h"

namespace boost_ext {

inline constexpr Arg kTimestampArgs[] = {array("stamps", kF64).written(), integer("slot"),
                                         arrays("dependencies", 0).optional()};
inline constexpr Schema kTimestamp{"timestamp", kTimestampArgs, Devices::cpu};

// The dependencies may be anything.
void timestamp(const Context& context, const View& stamps, std::int64_t slot, const Views& dependencies);

}  // namespace boost_ext
