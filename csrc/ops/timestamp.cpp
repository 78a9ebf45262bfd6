#include "ops/timestamp.h"

#include <chrono>

namespace boost_ext {

void timestamp(const View& stamps, std::int64_t slot) {
  const char* op = "timestamp";
  require_cpu(op, {}, {stamps});
  require_dtype(op, "stamps", stamps, DType::f64);
  require_writable(op, "stamps", stamps);
  require(slot >= 0 && slot < stamps.size, op, ": slot must be from 0 to ", stamps.size - 1, ", got ", slot);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  static_cast<double*>(stamps.data)[slot] = std::chrono::duration<double>(now).count();
}

}  // namespace boost_ext
