// Devices and their memory, on the host: there is one, device 0, and what is launched on a stream has happened when the
// launch returns.
#include <map>
#include <mutex>

#include "boost_ext_ascend.h"
#include "core.h"

namespace {

std::mutex one_at_a_time;
std::vector<std::unique_ptr<emulator::Region>> shown;  // from begin to end

struct Work {
  std::vector<float> memory;
  std::unique_ptr<emulator::Region> region;
};
std::map<void*, Work> all_work;

}  // namespace

int boost_ext_ascend_begin(std::int32_t device) {
  if (device != 0 || emulator::settings.cores == 0) return 2;
  one_at_a_time.lock();
  return 0;
}

void boost_ext_ascend_show(const void* memory, std::int64_t bytes) {
  if (bytes > 0) shown.push_back(std::make_unique<emulator::Region>(const_cast<void*>(memory), bytes));
}

void boost_ext_ascend_end() {
  shown.clear();
  all_work.clear();
  one_at_a_time.unlock();
}

// Of exactly the size that was asked for, and nobody has written it.
int boost_ext_ascend_work_memory(std::int64_t bytes, void* stream, void** memory) {
  Work& w = all_work[stream];
  w.region.reset();
  w.memory.assign(static_cast<std::size_t>((bytes + 3) / 4), NAN);
  w.region = std::make_unique<emulator::Region>(w.memory.data(), bytes);
  *memory = w.memory.data();
  return 0;
}

int boost_ext_ascend_clear(void* memory, std::int64_t bytes, void*) {
  emulator::region_of("clear", static_cast<std::uint8_t*>(memory), bytes);
  std::memset(memory, 0, static_cast<std::size_t>(bytes));
  return 0;
}

std::int32_t boost_ext_ascend_cores() { return emulator::settings.cores; }
std::int32_t boost_ext_ascend_emulated() { return 1; }
