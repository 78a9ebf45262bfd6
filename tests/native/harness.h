// What the native tests are written with. They run under sanitizers, so every array is a heap block of exactly its
// size: an op that reads or writes one element beyond it is caught.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/runtime.h"

namespace native {

inline int passed = 0;
inline int failed = 0;

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (condition) {                                                            \
      ++native::passed;                                                         \
    } else {                                                                    \
      ++native::failed;                                                         \
      std::printf("%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
    }                                                                           \
  } while (false)

inline void check_text(const char* file, int line, const std::string& expected, const std::string& got) {
  if (got == expected) {
    ++passed;
  } else {
    ++failed;
    std::printf("%s:%d: expected \"%s\", got \"%s\"\n", file, line, expected.c_str(), got.c_str());
  }
}

#define CHECK_THROWS(statement, exception, message)       \
  do {                                                    \
    std::string got = "nothing";                          \
    try {                                                 \
      statement;                                          \
    } catch (const exception& e) { got = e.what(); }      \
    native::check_text(__FILE__, __LINE__, message, got); \
  } while (false)

using boost_ext::DType;
using boost_ext::View;

inline double decode_half(std::uint16_t h) {
  const int exponent = h >> 10 & 31;
  const int mantissa = h & 1023;
  const double magnitude = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return (h & 0x8000) != 0 ? -magnitude : magnitude;
}

// An array of one of the storage types, exactly as large as it says.
class Array {
 public:
  Array(DType dtype, std::int64_t size, std::int64_t rows = -1)
      : dtype_(dtype), size_(size), rows_(rows), memory_(new unsigned char[static_cast<std::size_t>(bytes())]) {
    if (bytes() > 0) std::memset(memory_.get(), 0xff, static_cast<std::size_t>(bytes()));  // nan everywhere
  }

  // Small multiples of 1/8, which every storage type holds exactly.
  Array& fill(std::mt19937& random) {
    for (std::int64_t i = 0; i < size_; ++i) set(i, (static_cast<int>(random() % 33) - 16) / 8.0);
    return *this;
  }
  Array& fill(double value) {
    for (std::int64_t i = 0; i < size_; ++i) set(i, value);
    return *this;
  }

  double get(std::int64_t i) const {
    if (dtype_ == DType::f64) return read<double>(i);
    if (dtype_ == DType::f32) return static_cast<double>(read<float>(i));
    if (dtype_ == DType::i32) return read<std::int32_t>(i);
    if (dtype_ == DType::b8 || dtype_ == DType::u8) return read<unsigned char>(i);
    if (dtype_ == DType::i8) return read<std::int8_t>(i);
    if (dtype_ == DType::i16) return read<std::int16_t>(i);
    if (dtype_ == DType::f16) return decode_half(read<std::uint16_t>(i));
    const std::uint32_t bits = static_cast<std::uint32_t>(read<std::uint16_t>(i)) << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return static_cast<double>(value);
  }
  void set(std::int64_t i, double value) {
    if (dtype_ == DType::f64) return write(i, value);
    if (dtype_ == DType::i32) return write(i, static_cast<std::int32_t>(value));
    if (dtype_ == DType::b8 || dtype_ == DType::u8) return write(i, static_cast<unsigned char>(value));
    if (dtype_ == DType::i8) return write(i, static_cast<std::int8_t>(value));
    if (dtype_ == DType::i16) return write(i, static_cast<std::int16_t>(value));
    const auto narrow = static_cast<float>(value);
    if (dtype_ == DType::f32) return write(i, narrow);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &narrow, sizeof bits);
    if (dtype_ == DType::bf16) return write(i, static_cast<std::uint16_t>(bits >> 16));
    const std::uint32_t sign = bits >> 16 & 0x8000;
    if (const double magnitude = std::fabs(value); magnitude < 0x1p-14) {  // zero or subnormal
      return write(i, static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(magnitude * 0x1p24)));
    }
    const bool special = !std::isfinite(value);
    const std::uint32_t rebased = special ? 0x7c00 | (std::isnan(value) ? 0x200 : 0) : (bits & 0x7fffffff) - 0x38000000;
    write(i, static_cast<std::uint16_t>(sign | (special ? rebased : rebased >> 13)));
  }

  View view() const {
    View v;
    v.data = memory_.get();
    v.size = size_;
    v.dtype = dtype_;
    v.rows = rows_ < 0 ? size_ : rows_;
    v.ndim = rows_ < 0 ? 1 : 2;
    return v;
  }
  std::int64_t size() const { return size_; }
  std::int64_t bytes() const { return size_ * boost_ext::item_size(dtype_); }
  void* data() const { return memory_.get(); }
  DType dtype() const { return dtype_; }
  bool same_bits(const Array& other) const {
    return bytes() == other.bytes() && (bytes() == 0 || std::memcmp(data(), other.data(), bytes()) == 0);
  }
  void copy(const Array& other) {
    if (bytes() > 0) std::memcpy(data(), other.data(), static_cast<std::size_t>(bytes()));
  }

 private:
  // Not by memcpy: for the thread sanitizer that is a range, which takes it many times as long.
  template <class T> T read(std::int64_t i) const {
    using Aliased __attribute__((may_alias)) = T;
    return reinterpret_cast<const Aliased*>(memory_.get())[i];
  }
  template <class T> void write(std::int64_t i, T value) {
    using Aliased __attribute__((may_alias)) = T;
    reinterpret_cast<Aliased*>(memory_.get())[i] = value;
  }
  DType dtype_;
  std::int64_t size_;
  std::int64_t rows_;
  std::unique_ptr<unsigned char[]> memory_;
};

using Shape = std::vector<std::int64_t>;

inline boost_ext::View shaped(const Array& array, const Shape& shape) {
  boost_ext::View v = array.view();
  v.set_shape(static_cast<int>(shape.size()), [&](int d) { return shape[static_cast<std::size_t>(d)]; });
  return v;
}
// Each in its shape; those of another size, which are no such tensors, as vectors.
template <std::size_t N> boost_ext::Views shaped(const std::vector<Array>& list, const Shape (&shapes)[N]) {
  boost_ext::Views v;
  for (std::size_t t = 0; t < list.size(); ++t) {
    const boost_ext::View whole = shaped(list[t], shapes[t]);
    v.push_back(whole.size == list[t].size() ? whole : list[t].view());
  }
  return v;
}

// Within the rounding of the storage type and of sums of float32 terms that are `scale` large together.
inline bool close(const Array& a, std::int64_t i, double expected, double scale) {
  const double unit = a.dtype() == DType::f16 ? 0x1p-11 : a.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-24;
  return std::fabs(a.get(i) - expected) <= 1.1 * unit * std::fabs(expected) + 160 * 0x1p-24 * scale + 0x1p-24;
}

// body(context) with each instruction set and with products of each precision, on one thread and on three.
template <class Body> void each_way(Body body) {
  for (const std::string& isa : boost_ext::cpu_features()) {
    boost_ext::set_isa(isa);
    for (const bool narrow : {false, true}) {
      boost_ext::set_float32_matmul_precision(narrow ? "medium" : "highest");
      for (int threads : {1, 3}) {
        boost_ext::Context context = boost_ext::cpu_context();
        context.threads = threads;
        if (context.narrow_products == narrow) body(context);
      }
    }
  }
  boost_ext::set_float32_matmul_precision("highest");
}

}  // namespace native
