#include "ops/tensor.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace boost_ext {

const char* name(DType t) {
  switch (t) {
    case DType::f32:
      return "float32";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::f64:
      return "float64";
    case DType::i32:
      return "int32";
    case DType::b8:
      return "bool";
    case DType::u8:
      return "uint8";
    case DType::i8:
      return "int8";
    case DType::i16:
      return "int16";
    case DType::other:
      break;
  }
  return "another dtype";
}

const char* dtype_name(const View& v) { return v.other_dtype != nullptr ? v.other_dtype : name(v.dtype); }

std::ostream& operator<<(std::ostream& s, const Name& n) {
  s << n.arg;
  if (n.index >= 0) s << '[' << n.index << ']';
  return s;
}

void require_float(const char* op, Name arg, const View& v) {
  const bool ok = v.dtype == DType::f32 || v.dtype == DType::f16 || v.dtype == DType::bf16;
  if (!ok) throw TypeError(text(op, ": ", arg, " must be float32, float16 or bfloat16, got ", dtype_name(v)));
}

void require_dtype(const char* op, Name arg, const View& v, DType expected) {
  if (v.dtype != expected) throw TypeError(text(op, ": ", arg, " must be ", name(expected), ", got ", dtype_name(v)));
}

void require_size(const char* op, Name arg, const View& v, std::int64_t expected) {
  require(v.size == expected, op, ": ", arg, " must have ", expected, " elements, got ", v.size);
}

void require_matrix(const char* op, Name arg, const View& v) {
  require(v.ndim == 2 && v.width > 0, op, ": ", arg, " must have two axes, the last of one element or more, got ",
          v.ndim, " axes and ", v.size, " elements");
}

float* floats(const char* op, Name arg, const View& v, std::int64_t expected) {
  require_size(op, arg, v, expected);
  return static_cast<float*>(v.data);
}

void require_layout(const char* op, Name arg, const View& v, Name other, const View& like) {
  require(v.layout == like.layout, op, ": ", arg, " must have its elements in the order of ", other,
          ", the same shape and strides, got ", v.layout == 0 ? "C order" : "another order");
}

void require_writable(const char* op, Name arg, const View& v) {
  require(v.immutable == nullptr, op, ": ", arg, " must be writable, got a ", v.immutable,
          " array, which is immutable: write to a copy, numpy.array(x), and make a new array of it");
  require(v.writable, op, ": ", arg, " must be writable, got a read-only array");
}

void require_result(const char* op, Name arg, const View& v, DType expected) {
  require_dtype(op, arg, v, expected);
  require_size(op, arg, v, 1);
  require_writable(op, arg, v);
}

void require_finite(const char* op, const char* arg, double value) {
  require(std::isfinite(value), op, ": ", arg, " must be finite, got ", value);
}

void require_non_negative(const char* op, const char* arg, const std::vector<float>& values) {
  for (float x : values) require(x >= 0 && std::isfinite(x), op, ": ", arg, " must be finite and >= 0, got ", x);
}

void require_floats(const char* op, const List& list) {
  require(!list.views.empty(), op, ": ", list.arg, " must hold at least one array, got an empty list");
  for (std::size_t i = 0; i < list.views.size(); ++i) {
    require_float(op, {list.arg, static_cast<std::int64_t>(i)}, list.views[i]);
  }
}

void require_writables(const char* op, const List& list) {
  for (std::size_t i = 0; i < list.views.size(); ++i) {
    require_writable(op, {list.arg, static_cast<std::int64_t>(i)}, list.views[i]);
  }
}

void require_same_count(const char* op, const List& list, const List& other) {
  require(list.views.size() == other.views.size(), op, ": ", list.arg, " must hold as many arrays as ", other.arg, " (",
          other.views.size(), "), got ", list.views.size());
}

void require_same_sizes(const char* op, const List& list, const List& other) {
  require_same_count(op, list, other);
  for (std::size_t i = 0; i < list.views.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    require_size(op, {list.arg, at}, list.views[i], other.views[i].size);
    require_layout(op, {list.arg, at}, list.views[i], {other.arg, at}, other.views[i]);
  }
}

void require_same_dtypes(const char* op, const List& list, const List& other) {
  for (std::size_t i = 0; i < list.views.size(); ++i) {
    require_dtype(op, {list.arg, static_cast<std::int64_t>(i)}, list.views[i], other.views[i].dtype);
  }
}

void Overlap::add(Name arg, const View& v, bool write, std::int64_t twin) {
  if (v.size == 0) return;
  const char* begin = static_cast<const char*>(v.data);
  spans_.push_back({begin, begin + v.bytes(), arg, twin, write});
}

void Overlap::add(const List& list, bool write, bool twins) {
  for (std::size_t i = 0; i < list.views.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    add(Name(list.arg, index), list.views[i], write, twins ? index : kNoTwin);
  }
}

void Overlap::check() {
  const auto is_written = [](const Span& s) { return s.write; };
  const auto first = std::find_if(spans_.begin(), spans_.end(), is_written);
  if (first == spans_.end()) return;
  if (std::find_if(first + 1, spans_.end(), is_written) == spans_.end()) {  // a flag or a number beside lists
    const Span written = *first;
    const auto is_apart = [&](const Span& s) { return s.write || s.end <= written.begin || written.end <= s.begin; };
    if (std::all_of(spans_.begin(), spans_.end(), is_apart)) return;
  }
  // Hundreds of tensors come with each step of an optimizer: what is moved is small.
  struct Begin {
    const char* at;
    std::size_t span;
  };
  std::vector<Begin> order(spans_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = {spans_[i].begin, i};
  std::sort(order.begin(), order.end(), [](const Begin& a, const Begin& b) { return a.at < b.at; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Span& a = spans_[order[i].span];
    for (std::size_t j = i + 1; j < order.size() && order[j].at < a.end; ++j) {
      const Span& b = spans_[order[j].span];
      const bool same = a.begin == b.begin && a.end == b.end && a.twin != kNoTwin && a.twin == b.twin;
      if (!(a.write || b.write) || same) continue;
      const Span& written = b.write ? b : a;
      const Span& other = b.write ? a : b;
      require(false, op_, ": ", written.arg, " is written and must not overlap other arguments, but it overlaps ",
              other.arg);
    }
  }
}

std::vector<std::size_t> first_occurrence(const Views& views) {
  std::vector<std::size_t> first(views.size());
  std::unordered_map<const void*, std::size_t> seen;
  seen.reserve(views.size());
  for (std::size_t i = 0; i < views.size(); ++i) {
    first[i] = i;
    if (views[i].size == 0) continue;
    const auto [it, inserted] = seen.emplace(views[i].data, i);
    const View& v = views[it->second];
    if (!inserted && v.size == views[i].size && v.dtype == views[i].dtype) first[i] = it->second;
  }
  return first;
}

Views without_repeats(const Views& views, const std::vector<std::size_t>& first) {
  Views distinct;
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (first[i] == i) distinct.push_back(views[i]);
  }
  return distinct;
}

namespace {
const char* name(Device d) { return d == Device::cpu ? "CPU" : d == Device::cuda ? "CUDA" : "Ascend"; }

// Where a view lives, as a message says it: written only then, since every view of every call is asked.
struct Place {
  const View& v;
  bool with_id;
};

std::ostream& operator<<(std::ostream& s, const Place& p) {
  s << name(p.v.device);
  if (p.with_id) s << " device " << p.v.device_id;
  return s;
}

bool built(Device d) {
#if defined(BOOST_EXT_WITH_CUDA)
  if (d == Device::cuda) return true;
#endif
#if defined(BOOST_EXT_WITH_ASCEND)
  if (d == Device::ascend) return true;
#endif
  return d == Device::cpu;
}
}  // namespace

Device require_one_device(const char* op, const std::vector<Tensors>& lists, Devices devices) {
  const View* first = nullptr;
  const auto see = [&](const View& v) {
    if (v.size == 0 && v.device == Device::cpu) return;
    if (first == nullptr || (first->size == 0 && first->device == v.device)) first = &v;
    const bool with_id = v.device == first->device;
    require(with_id && (v.size == 0 || v.device_id == first->device_id), op,
            ": all arguments must live on one device, got ", Place{*first, with_id}, " and ", Place{v, with_id});
    if (!built(v.device)) {
      throw std::runtime_error(text(op, ": got ", name(v.device), " arrays, but this build has no ", name(v.device),
                                    " kernels (see boost_ext.build_info())"));
    }
  };
  for (const Tensors& list : lists) {
    for (std::int64_t i = 0; i < list.count; ++i) see(list[i]);
  }
  const Device device = first == nullptr ? Device::cpu : first->device;
  if (device == Device::ascend && devices != Devices::all) {
    throw std::runtime_error(text(op, ": got Ascend arrays, but this op has no Ascend kernel"));
  }
  if (device == Device::cuda && devices == Devices::cpu) {
    throw std::runtime_error(text(op, ": got ", name(device), " arrays, but this op has a CPU kernel only"));
  }
  return device;
}

namespace {
std::vector<Tensors> all_of(const std::initializer_list<const Views*>& lists,
                            const std::initializer_list<View>& views) {
  std::vector<Tensors> all;
  for (const Views* list : lists) all.emplace_back(*list);
  all.emplace_back(views.begin(), static_cast<std::int64_t>(views.size()));
  return all;
}
}  // namespace

Device require_device(const char* op, std::initializer_list<const Views*> lists, std::initializer_list<View> views) {
  return require_one_device(op, all_of(lists, views), Devices::cpu_and_cuda);
}

void require_cpu(const char* op, std::initializer_list<const Views*> lists, std::initializer_list<View> views) {
  require_one_device(op, all_of(lists, views), Devices::cpu);
}

std::int64_t total_size(const Views& views) {
  std::int64_t n = 0;
  for (const View& v : views) n += v.size;
  return n;
}

}  // namespace boost_ext
