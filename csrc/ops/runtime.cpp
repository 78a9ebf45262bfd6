#include "ops/runtime.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "ops/read_ahead.h"

namespace boost_ext {
namespace {

bool supported(Isa isa) {
#if defined(BOOST_EXT_X86_ISAS)
  switch (isa) {
    case Isa::baseline:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2");
    case Isa::avx512:
      return supported(Isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
  }
  return false;
#else
  return isa == Isa::baseline;
#endif
}

constexpr Isa all[] = {Isa::baseline, Isa::avx2, Isa::avx512};

std::string name(Isa isa) {
  if (isa == Isa::avx512) return "avx512";
  if (isa == Isa::avx2) return "avx2";
#if defined(__aarch64__)
  return "neon";
#else
  return "baseline";
#endif
}

Isa widest() { return supported(Isa::avx512) ? Isa::avx512 : supported(Isa::avx2) ? Isa::avx2 : Isa::baseline; }

std::atomic<Isa> current{widest()};
// BOOST_EXT_NUM_THREADS, else OMP_NUM_THREADS (what launchers of several processes a machine set), else one thread for
// each CPU that this process may use.
int default_threads() {
  for (const char* variable : {"BOOST_EXT_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* value = std::getenv(variable);
    const int n = value != nullptr ? std::atoi(value) : 0;
    if (n >= 1 && n <= 1024) return n;
  }
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

std::atomic<int> threads{default_threads()};
std::atomic<bool> medium{false};

bool multiplies_bfloat16() {
#if defined(BOOST_EXT_X86_ISAS)
  return isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

}  // namespace

// An Intel Xeon (Sapphire Rapids) reads bfloat16 a third faster from memory with 2 KB, and a step on bfloat16 state
// takes an eighth less; an AMD EPYC (Zen 5) reads in 0.8 of the time with 8 KB, and the step takes a sixth less. A Zen
// 4 took 1.3 to 1.7 times as long with 2 KB. What tells the two apart is an instruction that Zen 4 does not have.
#if defined(BOOST_EXT_X86_ISAS)
const std::uintptr_t cpu::read_ahead_bytes = __builtin_cpu_is("intel")                      ? 2048
                                             : __builtin_cpu_supports("avx512vp2intersect") ? 8192
                                                                                            : 0;
#else
const std::uintptr_t cpu::read_ahead_bytes = 0;
#endif

Isa isa() { return current.load(std::memory_order_relaxed); }
std::string isa_name() { return name(isa()); }

std::vector<std::string> built_isas() {
#if defined(BOOST_EXT_X86_ISAS)
  return {"baseline", "avx2", "avx512"};
#else
  return {name(Isa::baseline)};
#endif
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> names;
  for (Isa i : all) {
    if (supported(i)) names.push_back(name(i));
  }
  return names;
}

void set_isa(const std::string& wanted) {
  for (Isa i : all) {
    if (name(i) == wanted && supported(i)) {
      current.store(i);
      return;
    }
  }
  std::string choices;
  for (const auto& f : cpu_features()) choices += (choices.empty() ? "" : ", ") + f;
  require(false, "set_isa: name must be one of ", choices, " on this CPU, got ", wanted);
}

int num_threads() { return threads.load(std::memory_order_relaxed); }

void set_num_threads(int n) {
  require(n >= 1 && n <= 1024, "set_num_threads: threads must be from 1 to 1024, got ", n);
  threads.store(n);
}

void set_float32_matmul_precision(const std::string& wanted) {
  require(wanted == "highest" || wanted == "medium",
          "set_float32_matmul_precision: precision must be one of highest, medium, got ", wanted);
  medium.store(wanted == "medium");
}

std::string float32_matmul_precision() { return medium.load(std::memory_order_relaxed) ? "medium" : "highest"; }

bool has_narrow_products() { return medium.load(std::memory_order_relaxed) && multiplies_bfloat16(); }

Context cpu_context() {
  Context c;
  c.threads = num_threads();
  c.narrow_products = has_narrow_products();
  return c;
}

std::string compiler() {
#if defined(__clang__)
  return text("clang ", __clang_major__, ".", __clang_minor__, ".", __clang_patchlevel__);
#else
  return text("gcc ", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__);
#endif
}

}  // namespace boost_ext
