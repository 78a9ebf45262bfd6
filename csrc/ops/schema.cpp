#include "ops/schema.h"

#include <cmath>
#include <cstring>

namespace boost_ext {
namespace {

struct AnyOf {
  DTypes dtypes;
};

std::ostream& operator<<(std::ostream& s, const AnyOf& any) {
  DTypes left = any.dtypes;
  for (DType t : kNamedDTypes) {
    if ((left & only(t)) == 0) continue;
    if (left != any.dtypes) s << ((left & (left - 1)) == 0 ? " or " : ", ");
    s << name(t);
    left &= ~only(t);
  }
  return s;
}

void require_range(const char* op, const Arg& arg, double x) {
  const bool is_finite = std::isfinite(x);
  switch (arg.range) {
    case Range::any:
      return;
    case Range::finite:
      return require(is_finite, op, ": ", arg.name, " must be finite, got ", x);
    case Range::non_negative:
      return require(is_finite && x >= 0, op, ": ", arg.name, " must be finite and >= 0, got ", x);
    case Range::positive:
      return require(is_finite && x > 0, op, ": ", arg.name, " must be finite and > 0, got ", x);
  }
}

}  // namespace

class Checker {
 public:
  Checker(const Schema& schema, const Value* values) : schema_(schema), values_(values), overlap_(schema.op) {}

  Device run() {
    const Device device = where();
    for (std::size_t i = 0; i < schema_.count; ++i) {
      if (schema_.args[i].like_name == nullptr) check_one(i);
    }
    for (std::size_t i = 0; i < schema_.count; ++i) {
      if (schema_.args[i].like_name != nullptr) check_one(i);
    }
    overlap_.check();
    return device;
  }

 private:
  const char* op() const { return schema_.op; }

  // One array as a list of it; nothing for what is no array, or left out.
  Tensors views_of(std::size_t i) const {
    const Value& v = values_[i];
    if (v.views_ != nullptr) return *v.views_;
    if (v.view_ != nullptr) { return {v.view_, schema_.args[i].is_optional && is_none(*v.view_) ? 0 : 1}; }
    if (v.number_ != nullptr && v.number_->on_device()) return {&v.number_->at, 1};
    return {nullptr, 0};
  }

  Device where() const {
    std::vector<Tensors> lists;
    for (std::size_t i = 0; i < schema_.count; ++i) {
      if (values_[i].lists_ == nullptr) lists.push_back(views_of(i));
    }
    for (std::size_t i = 0; i < schema_.count; ++i) {
      if (values_[i].lists_ != nullptr) lists.insert(lists.end(), values_[i].lists_->begin(), values_[i].lists_->end());
    }
    return require_one_device(op(), lists, schema_.devices);
  }

  Tensors views_of(const char* name) const { return views_of(schema_.place_of(name)); }

  bool is_written(const Arg& arg) const {
    if (arg.written_by == nullptr) return arg.is_written;
    const Value& by = values_[schema_.place_of(arg.written_by)];
    return by.number_ == nullptr ? by.real_ != 0 : by.number_->on_device() || changes(by.number_->value);
  }

  void check_one(std::size_t at) {
    const Arg& arg = schema_.args[at];
    const Value& value = values_[at];
    if (arg.kind == Kind::real) return require_range(op(), arg, value.real_);
    if (arg.kind == Kind::number && !value.number_->on_device()) return require_range(op(), arg, value.number_->value);
    if (value.has_no_array()) return;
    const bool is_written = this->is_written(arg);
    if (arg.kind == Kind::lists) return check_lists(arg, *value.lists_, is_written);
    const bool is_list = arg.kind == Kind::arrays;
    const Tensors views = views_of(at);
    if (is_list && !arg.is_optional && arg.like_name == nullptr) {
      require(views.count > 0, op(), ": ", arg.name, " must hold at least one array, got an empty list");
    }
    if (arg.is_optional && views.count == 0) return;
    Tensors like{nullptr, 0};
    if (arg.like_name != nullptr) {
      like = views_of(arg.like_name);
      require(views.count == like.count, op(), ": ", arg.name, " must hold as many arrays as ", arg.like_name, " (",
              like.count, "), got ", views.count);
    }
    for (std::int64_t i = 0; i < views.count; ++i) {
      const Name name(arg.name, is_list ? i : -1);
      const View& v = views[i];
      if (arg.dtypes != 0 && (arg.dtypes & only(v.dtype)) == 0) {
        throw TypeError(text(op(), ": ", name, " must be ", AnyOf{arg.dtypes}, ", got ", boost_ext::dtype_name(v)));
      }
      if (arg.size >= 0) require_size(op(), name, v, arg.size);
      if (like.count > 0) {
        require_size(op(), name, v, like[i].size);
        require_layout(op(), name, v, {arg.like_name, is_list ? i : -1}, like[i]);
      }
      if (arg.dtype_name != nullptr) {
        const Tensors others = views_of(arg.dtype_name);
        require_dtype(op(), name, v, others[others.count == views.count ? i : 0].dtype);
      }
      if (is_written) require_writable(op(), name, v);
    }
    add_to_overlap(arg, views, is_list, is_written);
  }

  // As many lists as `like` has arrays; all of the sizes of the first one.
  void check_lists(const Arg& arg, const std::vector<Views>& lists, bool is_written) {
    const Tensors like = views_of(arg.like_name);
    require(static_cast<std::int64_t>(lists.size()) == like.count, op(), ": ", arg.name,
            " must hold one list for each of the ", like.count, " ", arg.like_name, ", got ", lists.size());
    labels_.resize(lists.size());
    for (std::size_t j = 0; j < lists.size(); ++j) {
      labels_[j] = text(arg.name, "[", j, "]");
      const List list{labels_[j].c_str(), lists[j]};
      require_floats(op(), list);
      if (is_written) require_writables(op(), list);
      require_same_sizes(op(), list, {labels_[0].c_str(), lists[0]});
      if (is_written)
        overlap_.writes(list);
      else
        overlap_.reads(list);
    }
  }

  void add_to_overlap(const Arg& arg, const Tensors& views, bool is_list, bool is_written) {
    for (std::int64_t i = 0; i < views.count; ++i) {
      const Name name(arg.name, is_list ? i : -1);
      std::int64_t twin = arg.is_twin ? i : kNoTwin;
      if (arg.may_repeat) twin = repeated(views[i].dtype);
      if (is_written)
        overlap_.writes(name, views[i], twin);
      else
        overlap_.reads(name, views[i], twin);
    }
  }

  const Schema& schema_;
  const Value* values_;
  Overlap overlap_;
  std::vector<std::string> labels_;  // of lists in a list, for as long as names of them are used
};

std::size_t Schema::place_of(const char* arg) const {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::strcmp(args[i].name, arg) == 0) return i;
  }
  throw std::logic_error(text(op, ": a schema without ", arg));
}

void Schema::require_count(std::size_t n) const {
  if (n != count) throw std::logic_error(text(op, ": a schema of another number of arguments"));
}

Device check(const Schema& schema, const Value* values, std::size_t count) {
  schema.require_count(count);
  return Checker(schema, values).run();
}

}  // namespace boost_ext
