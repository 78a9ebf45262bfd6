#include "ops/adasum_part.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "ops/adasum.h"

namespace boost_ext {
namespace {

// `count` elements of a tensor, from `in_tensor`, which lie in a part from `in_part`.
struct Piece {
  std::int64_t tensor;
  std::int64_t in_tensor;
  std::int64_t in_part;
  std::int64_t count;
};

std::vector<Piece> pieces_of(const Sizes& sizes, std::int64_t begin, std::int64_t end) {
  std::vector<Piece> pieces;
  std::int64_t first = 0;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    const std::int64_t from = std::max(first, begin), to = std::min(first + sizes[t], end);
    if (from < to) pieces.push_back({static_cast<std::int64_t>(t), from - first, from - begin, to - from});
    first += sizes[t];
  }
  return pieces;
}

View slice(const View& v, std::int64_t begin, std::int64_t count) {
  View s = v;
  s.data = static_cast<char*>(v.data) + begin * item_size(v.dtype);
  s.size = s.rows = count;
  s.ndim = 1;
  return s;
}

Views slices(const View& part, const std::vector<Piece>& pieces) {
  Views views;
  for (const Piece& p : pieces) views.push_back(slice(part, p.in_part, p.count));
  return views;
}

Views slices(const Views& tensors, const std::vector<Piece>& pieces) {
  Views views;
  for (const Piece& p : pieces) {
    views.push_back(slice(tensors[static_cast<std::size_t>(p.tensor)], p.in_tensor, p.count));
  }
  return views;
}

Sizes sizes_of(const Views& tensors) {
  Sizes sizes;
  for (const View& v : tensors) sizes.push_back(v.size);
  return sizes;
}

std::int64_t total(const Sizes& sizes) {
  std::int64_t sum = 0;
  for (const std::int64_t s : sizes) sum += s;
  return sum;
}

void clear_from(const View& v, std::int64_t begin) {
  if (begin >= v.size) return;
  const View rest = slice(v, begin, v.size - begin);
  std::memset(rest.data, 0, static_cast<std::size_t>(rest.bytes()));
}

constexpr std::int64_t kWords = 4;  // of a float64 on its way

void encode(const double* values, std::int64_t count, float* words) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, values + i, sizeof bits);
    for (std::int64_t w = 0; w < kWords; ++w) words[kWords * i + w] = static_cast<float>((bits >> (16 * w)) & 0xFFFF);
  }
}

double decode(const float* words) {
  std::uint64_t bits = 0;
  for (std::int64_t w = 0; w < kWords; ++w) bits |= static_cast<std::uint64_t>(words[w]) << (16 * w);
  double value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void require_part(const char* op, const Sizes& sizes, std::int64_t index) {
  require(!sizes.empty(), op, ": sizes must hold at least one number");
  for (const std::int64_t s : sizes) require(s >= 0, op, ": sizes must be >= 0, got ", s);
  require(index >= 0, op, ": index must be >= 0, got ", index);
}

// out <- a - b: the combination whose coefficients are 1 - 4 / (2 inf) = 1 and 1 - 4 / (2 * 1) = -1.
void subtract(const Context& context, const Views& a, const Views& b, const Views& out) {
  if (a.empty()) return;
  std::vector<double> dots;
  for (std::size_t i = 0; i < a.size(); ++i) {
    dots.insert(dots.end(), {4.0, std::numeric_limits<double>::infinity(), 1.0});
  }
  BOOST_EXT_CPU(adasum_combine)(context, a, b, dots.data(), out);
}

// Half weights beside their masters, or nothing; returns a list like the weights either way.
Views require_halves(const char* op, const Views& halves, const Views& weights, bool written, Overlap& overlap) {
  if (halves.empty()) return Views(weights.size(), slice(weights[0], 0, 0));
  require_same_count(op, {"halves", halves}, {"weights", weights});
  for (std::size_t i = 0; i < halves.size(); ++i) {
    if (halves[i].size == 0) continue;
    const Name name("halves", static_cast<std::int64_t>(i));
    require_dtype(op, Name("weights", static_cast<std::int64_t>(i)), weights[i], DType::f32);
    require_float(op, name, halves[i]);
    require(halves[i].dtype != DType::f32, op, ": ", name, " must be float16 or bfloat16, got float32");
    require_size(op, name, halves[i], weights[i].size);
    if (written) {
      require_writable(op, name, halves[i]);
      overlap.writes(name, halves[i]);
    } else {
      overlap.reads(name, halves[i]);
    }
  }
  return halves;
}

void require_vector(const char* op, const View& vector, const Views& tensors) {
  require_dtype(op, "vector", vector, tensors[0].dtype);
  const std::int64_t n = total(sizes_of(tensors));
  require(vector.size >= n, op, ": vector must have at least ", n, " elements, got ", vector.size);
}

}  // namespace

void adasum_part_dots(const Context& context, const View& a, const View& b, const Sizes& sizes, std::int64_t index,
                      const View& dots) {
  const char* op = kAdasumPartDots.op;
  check(kAdasumPartDots, a, b, sizes, index, dots);
  require_part(op, sizes, index);
  require_size(op, "dots", dots, 3 * kWords * static_cast<std::int64_t>(sizes.size()));
  const auto pieces = pieces_of(sizes, index * a.size, (index + 1) * a.size);
  std::vector<double> found(3 * pieces.size()), all(3 * sizes.size());
  if (!pieces.empty()) BOOST_EXT_CPU(adasum_dots)(context, slices(a, pieces), slices(b, pieces), found.data());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::copy_n(&found[3 * i], 3, &all[3 * static_cast<std::size_t>(pieces[i].tensor)]);
  }
  encode(all.data(), static_cast<std::int64_t>(all.size()), static_cast<float*>(dots.data));
}

void adasum_part_combine(const Context& context, const View& a, const View& b, const Sizes& sizes, std::int64_t index,
                         const View& dots, const View& out) {
  const char* op = kAdasumPartCombine.op;
  check(kAdasumPartCombine, a, b, sizes, index, dots, out);
  require_part(op, sizes, index);
  const std::int64_t row = 3 * kWords * static_cast<std::int64_t>(sizes.size());
  require(dots.size > 0 && dots.size % row == 0, op, ": dots must have a multiple of ", row, " elements, got ",
          dots.size);
  const auto pieces = pieces_of(sizes, index * a.size, (index + 1) * a.size);
  const auto* words = static_cast<const float*>(dots.data);
  std::vector<double> sums(3 * pieces.size());
  for (std::int64_t from = 0; from < dots.size; from += row) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::int64_t value = 3 * pieces[i / 3].tensor + static_cast<std::int64_t>(i % 3);
      sums[i] += decode(words + from + kWords * value);
    }
  }
  if (!pieces.empty()) {
    BOOST_EXT_CPU(adasum_combine)
    (context, slices(a, pieces), slices(b, pieces), sums.data(), slices(out, pieces));
  }
  clear_from(out, pieces.empty() ? 0 : pieces.back().in_part + pieces.back().count);
}

void adasum_part_keep(const Context& context, const Views& weights, const Views& halves, const Views& out) {
  const char* op = "adasum_part_keep";
  require_cpu(op, {&weights, &halves, &out}, {});
  require_floats(op, {"weights", weights});
  require_same_count(op, {"out", out}, {"weights", weights});
  require_same_sizes(op, {"out", out}, {"weights", weights});
  require_same_dtypes(op, {"out", out}, {"weights", weights});
  require_writables(op, {"out", out});
  Overlap overlap(op);
  const Views beside = require_halves(op, halves, weights, false, overlap);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const Name name("weights", static_cast<std::int64_t>(i));
    if (beside[i].size == 0) {
      overlap.reads(name, weights[i]);
      continue;
    }
    require_writable(op, name, weights[i]);
    overlap.writes(name, weights[i]);
  }
  overlap.writes({"out", out});
  overlap.check();
  BOOST_EXT_CPU(adasum_part_keep)(context, weights, beside, out);
}

void adasum_part_pack(const Views& tensors, const View& vector) {
  check(kAdasumPartPack, tensors, vector);
  require_vector(kAdasumPartPack.op, vector, tensors);
  const auto pieces = pieces_of(sizes_of(tensors), 0, vector.size);
  for (const Piece& p : pieces) {
    const View from = slice(tensors[static_cast<std::size_t>(p.tensor)], p.in_tensor, p.count);
    std::memcpy(slice(vector, p.in_part, p.count).data, from.data, static_cast<std::size_t>(from.bytes()));
  }
  clear_from(vector, total(sizes_of(tensors)));
}

void adasum_part_pack_difference(const Context& context, const Views& a, const Views& b, const View& vector) {
  check(kAdasumPartPackDifference, a, b, vector);
  require_vector(kAdasumPartPackDifference.op, vector, a);
  const auto pieces = pieces_of(sizes_of(a), 0, vector.size);
  subtract(context, slices(a, pieces), slices(b, pieces), slices(vector, pieces));
  clear_from(vector, total(sizes_of(a)));
}

void adasum_part_apply(const Context& context, const View& vector, const std::vector<std::int64_t>& parts,
                       const Views& old, const Views& weights, const Views& halves) {
  const char* op = "adasum_part_apply";
  require_cpu(op, {&old, &weights, &halves}, {vector});
  require_floats(op, {"weights", weights});
  require_same_count(op, {"old", old}, {"weights", weights});
  require_same_sizes(op, {"old", old}, {"weights", weights});
  require_same_dtypes(op, {"old", old}, {"weights", weights});
  require_writables(op, {"weights", weights});
  require_dtype(op, "vector", vector, weights[0].dtype);
  const auto count = static_cast<std::int64_t>(parts.size());
  require(count > 0 && vector.size % count == 0, op, ": vector must have a multiple of ", count, " elements, got ",
          vector.size);
  Overlap overlap(op);
  overlap.reads("vector", vector);
  overlap.reads({"old", old}, true);
  overlap.writes({"weights", weights}, true);
  const Views beside = require_halves(op, halves, weights, true, overlap);
  overlap.check();

  const std::int64_t h = vector.size / count;
  const Sizes sizes = sizes_of(weights);
  Views from, sum, to, narrow;
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t part = parts[static_cast<std::size_t>(i)];
    if (part < 0) continue;
    const auto pieces = pieces_of(sizes, part * h, (part + 1) * h);
    const Views olds = slices(old, pieces), sums = slices(slice(vector, i * h, h), pieces);
    const Views news = slices(weights, pieces);
    from.insert(from.end(), olds.begin(), olds.end());
    sum.insert(sum.end(), sums.begin(), sums.end());
    to.insert(to.end(), news.begin(), news.end());
    for (const Piece& p : pieces) {
      const View& half = beside[static_cast<std::size_t>(p.tensor)];
      narrow.push_back(half.size > 0 ? slice(half, p.in_tensor, p.count) : half);
      found += p.count;
    }
  }
  require(found == total(sizes), op, ": parts must hold each of the ", total(sizes), " elements once, got ", found);
  if (!to.empty()) BOOST_EXT_CPU(adasum_part_apply)(context, sum, from, to, narrow);
}

}  // namespace boost_ext
