// Devices and their memory, by the runtime of CANN.
#include <algorithm>
#include <mutex>
#include <vector>

#include "acl/acl.h"
#include "boost_ext_ascend.h"

namespace {

constexpr int kDone = 0;
constexpr int kRuntimeError = 2;

// The work memory of a stream.
struct Work {
  std::int32_t device;
  void* stream;
  void* memory;
  std::int64_t bytes;
};

std::mutex one_at_a_time;  // from begin to end: two ops on one stream must not mix their use of its work memory
std::vector<Work> all_work;
std::int32_t current = -1;
std::int32_t before = -1;  // where it was another one: to be made current again

}  // namespace

int boost_ext_ascend_begin(std::int32_t device) {
  one_at_a_time.lock();
  before = -1;
  std::int32_t now = -1;
  const bool known = aclrtGetDevice(&now) == ACL_SUCCESS;
  // One that is current stays with the context that its user has made current.
  if (!(known && now == device) && aclrtSetDevice(device) != ACL_SUCCESS) {
    one_at_a_time.unlock();
    return kRuntimeError;
  }
  current = device;
  if (known && now != device) before = now;
  return kDone;
}

void boost_ext_ascend_show(const void*, std::int64_t) {}

void boost_ext_ascend_end() {
  if (before >= 0) aclrtSetDevice(before);
  one_at_a_time.unlock();
}

int boost_ext_ascend_work_memory(std::int64_t bytes, void* stream, void** memory) {
  Work* known = nullptr;
  for (Work& w : all_work) {
    if (w.device == current && w.stream == stream) known = &w;
  }
  if (known == nullptr || known->bytes < bytes) {
    // At least twice as much: all that is ever kept is less than twice the last one.
    const std::int64_t size = std::max({std::int64_t{1} << 16, bytes, known != nullptr ? 2 * known->bytes : 0});
    void* fresh = nullptr;
    if (aclrtMalloc(&fresh, static_cast<std::size_t>(size), ACL_MEM_MALLOC_HUGE_FIRST) != ACL_SUCCESS) {
      return kRuntimeError;
    }
    if (known == nullptr) known = &all_work.emplace_back();
    *known = {current, stream, fresh, size};
  }
  *memory = known->memory;
  return kDone;
}

int boost_ext_ascend_clear(void* memory, std::int64_t bytes, void* stream) {
  const auto size = static_cast<std::size_t>(bytes);
  return aclrtMemsetAsync(memory, size, 0, size, stream) == ACL_SUCCESS ? kDone : kRuntimeError;
}

std::int32_t boost_ext_ascend_cores() {
  std::int32_t device = 0;
  std::int64_t count = 0;
  if (aclrtGetDevice(&device) != ACL_SUCCESS) return 0;
  if (aclrtGetDeviceInfo(static_cast<std::uint32_t>(device), ACL_DEV_ATTR_VECTOR_CORE_NUM, &count) != ACL_SUCCESS) {
    return 0;
  }
  return static_cast<std::int32_t>(count);
}

std::int32_t boost_ext_ascend_emulated() { return 0; }
