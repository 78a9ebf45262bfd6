#include "ops/timestamp.h"

#include <chrono>

namespace boost_ext {

void timestamp(const Context&, const View& stamps, std::int64_t slot, const Views&) {
  check(kTimestamp, stamps, slot, Views());
  require(slot >= 0 && slot < stamps.size, kTimestamp.op, ": slot must be from 0 to ", stamps.size - 1, ", got ", slot);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  static_cast<double*>(stamps.data)[slot] = std::chrono::duration<double>(now).count();
}

}  // namespace boost_ext
