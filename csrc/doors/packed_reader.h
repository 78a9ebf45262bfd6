// How a packed call is read: array by array, in the order of packed_step.h.
#pragma once

#include "ops/optimizer_step.h"

namespace boost_ext {

constexpr std::int64_t kHeader = 7, kPerTensor = 4;

class Reader {
 public:
  Reader(const char* op, const Views& arrays) : op_(op), arrays_(arrays) {}
  const View& take(const char* arg, DType dtype, std::int64_t size) {
    const View& v = take(arg);
    require_dtype(op_, arg, v, dtype);
    if (size >= 0) require_size(op_, arg, v, size);
    return v;
  }
  const View& take(const char* arg) {
    require(next_ < arrays_.size(), op_, ": ", arg, " is missing, got ", arrays_.size(), " arrays");
    return arrays_[next_++];
  }
  const View& at_least(const char* arg, DType dtype, std::int64_t size) {
    const View& v = take(arg, dtype, -1);
    require(v.size >= size, op_, ": ", arg, " must have at least ", size, " elements, got ", v.size);
    return v;
  }
  template <class T> T* data(const char* arg, DType dtype, std::int64_t size) {
    return static_cast<T*>(take(arg, dtype, size).data);
  }
  template <class T> T* written(const char* arg, DType dtype) {
    const View& v = take(arg);
    require_result(op_, arg, v, dtype);
    return static_cast<T*>(v.data);
  }
  Views list(const char* arg, std::int64_t count) {
    const auto left = static_cast<std::int64_t>(arrays_.size() - next_);
    require(count >= 0 && count <= left, op_, ": ", arg, " must be ", count, " arrays, got ", left);
    Views views;
    views.reserve(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) views.push_back(take(arg));
    return views;
  }
  const std::int32_t* layout() {
    const View& v = take("layout", DType::i32, -1);
    const auto* header = static_cast<const std::int32_t*>(v.data);
    require(v.size > kHeader && v.size == kHeader + kPerTensor * header[5], op_, ": layout must fit its tensors, got ",
            v.size, " numbers");
    const auto from_0_to = [&](int at, const char* what, std::int64_t last) {
      require(header[at] >= 0 && header[at] <= last, op_, ": layout must hold a number of ", what, " from 0 to ", last,
              ", got ", header[at]);
    };
    from_0_to(0, "rule", static_cast<std::int64_t>(rule_names().size()));  // one more than there are: adafactor
    from_0_to(1, "groups", static_cast<std::int64_t>(arrays_.size()));
    from_0_to(2, "states", kMaxStates);
    return header;
  }
  // `count` numbers of groups, times a factor.
  std::vector<float> numbers(const char* arg, std::int64_t count, double factor) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>(factor * *data<float>(arg, DType::f32, 1)));
    }
    return values;
  }
  void require_end() const {
    require(next_ == arrays_.size(), op_, ": must get as many arrays as the layout says, got ", arrays_.size());
  }

 protected:
  const char* op() const { return op_; }

 private:
  const char* op_;
  const Views& arrays_;
  std::size_t next_ = 0;
};

// What a number of each group is for tensor i.
inline float of_group(const char* op, const std::vector<float>& groups, const std::int32_t* header, std::int64_t i) {
  const std::int32_t group = header[kHeader + kPerTensor * i];
  require(group >= 0 && static_cast<std::size_t>(group) < groups.size(), op, ": layout must name one of ",
          groups.size(), " groups, got ", group);
  return groups[static_cast<std::size_t>(group)];
}

inline std::string shape_text(const View& v) {
  if (v.ndim < 2) return v.ndim == 0 ? "()" : text("(", v.rows, ",)");
  if (v.ndim == 2) return text("(", v.rows, ", ", v.width, ")");
  return text("(", v.rows, v.ndim > 3 ? ", ..., " : ", ", v.height, ", ", v.width, ")");
}

// Of the same size, gradients have the same shape, too: as far as views know it, all of up to four axes. Those with
// `indices` hold some rows only. The op says where sizes differ.
inline void require_shapes(const char* op, const Views& grads, const Views& weights, const Views& indices = {}) {
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const View &g = grads[i], &w = weights[i];
    if (g.size != w.size || (!indices.empty() && indices[i].ndim > 0)) continue;
    if (g.ndim == w.ndim && g.rows == w.rows && g.height == w.height && g.width == w.width) continue;
    throw std::invalid_argument(
        text(op, ": grads[", i, "] must have the shape of its weight, ", shape_text(w), ", got ", shape_text(g)));
  }
}

// What packed_step begins with for every rule, up to the numbers of the groups.
struct PackedHead {
  const std::int32_t* header;
  std::int64_t groups, states, n;
  const View& hyper;  // the last one is own_scale
  double own_scale;
  bool skip;
  double scale = 1;  // 1 / all loss scales
  std::int32_t* step = nullptr;
  const View* ratio = nullptr;
  std::vector<float> lr, decay;

  explicit PackedHead(Reader& in)
      : header(in.layout()),
        groups(header[1]),
        states(header[2]),
        n(header[5]),
        hyper(in.at_least("hyper", DType::f64, 1)),
        own_scale(numbers()[hyper.size - 1]),
        skip(*in.data<bool>("skip", DType::b8, 1)) {
    if (skip) return;
    scale = 1 / (static_cast<double>(*in.data<float>("scale", DType::f32, 1)) * own_scale);
    step = in.written<std::int32_t>("step", DType::i32);
    ratio = &in.take("ratio", DType::f32, -1);
    lr = in.numbers("lr", groups, 1);
    decay = in.numbers("weight_decay", groups, 1 / own_scale);
  }
  const double* numbers() const { return static_cast<const double*>(hyper.data); }
  // What the layout says of tensor i: 0 its group, 1 whether it is centralized, 2 has a master, 3 some rows only.
  std::int32_t of_tensor(std::int64_t i, int what) const { return header[kHeader + kPerTensor * i + what]; }
  // The next arrays, as many as there are half weights; in a list of all weights, empty beside the others.
  Views masters(Reader& in) const {
    Views all;
    bool some = false;
    for (std::int64_t i = 0; i < n; ++i) {
      all.emplace_back();
      all.back().size = 0;
      if (of_tensor(i, 2)) all.back() = in.take("masters"), some = true;
    }
    return some ? all : Views();
  }
};

// packed_step, from there on, for Adafactor.
void packed_adafactor(Reader& in, const PackedHead& head);

}  // namespace boost_ext
