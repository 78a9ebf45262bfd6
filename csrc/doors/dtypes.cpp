#include "doors/dtypes.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace boost_ext {

// The names live as long as the process; they are few.
void set_other(View& v, const std::string& label) {
  static auto* const names = new std::set<std::string>();
  v.dtype = DType::other;
  v.other_dtype = names->insert(label).first->c_str();
}

void set_dtype(View& v, const char* op, const Name& arg, const py::array& array) {
  const py::dtype dtype = array.dtype();
  if (dtype.byteorder() == '>') {  // NumPy puts the name together each time: not for every array
    const auto got = py::str(dtype.attr("str")).cast<std::string>();
    throw std::invalid_argument(text(op, ": ", arg, " must be in native byte order, got ", got));
  }
  static const std::pair<int, DType> numbers[] = {{11, DType::f32}, {12, DType::f64}, {23, DType::f16},
                                                  {5, DType::i32},  {0, DType::b8},   {2, DType::u8},
                                                  {1, DType::i8},   {3, DType::i16}};
  for (const auto& [number, t] : numbers) {
    if (dtype.num() == number) {
      v.dtype = t;
      return;
    }
  }
  const auto label = py::str(dtype.attr("name")).cast<std::string>();
  if (label == "bfloat16" && dtype.itemsize() == 2) {  // ml_dtypes, or MindSpore's own
    v.dtype = DType::bf16;
  } else {
    set_other(v, label);
  }
}

void set_dtype(View& v, py::object mindspore_dtype) {
  static auto* known = new std::vector<std::pair<py::object, DType>>();  // MindSpore's dtypes are singletons
  for (const auto& [object, t] : *known) {
    if (object.ptr() == mindspore_dtype.ptr()) {
      v.dtype = t;
      return;
    }
  }
  const auto label = py::str(mindspore_dtype).cast<std::string>();
  static const std::pair<const char*, DType> names[] = {
      {"Float32", DType::f32}, {"Float16", DType::f16}, {"BFloat16", DType::bf16},
      {"Float64", DType::f64}, {"Int32", DType::i32},   {"Bool", DType::b8},
      {"UInt8", DType::u8},    {"Int8", DType::i8},     {"Int16", DType::i16}};
  for (const auto& [n, t] : names) {
    if (label == n) {
      known->emplace_back(std::move(mindspore_dtype), t);
      v.dtype = t;
      return;
    }
  }
  set_other(v, label);
}

void set_dtype(View& v, dlpack::DataType got) {
  struct Known {
    std::uint8_t code, bits;
    DType t;
  };
  for (const Known& k :
       {Known{dlpack::kFloat, 32, DType::f32}, Known{dlpack::kFloat, 16, DType::f16},
        Known{dlpack::kFloat, 64, DType::f64}, Known{dlpack::kBfloat, 16, DType::bf16},
        Known{dlpack::kInt, 32, DType::i32}, Known{dlpack::kBool, 8, DType::b8}, Known{dlpack::kUInt, 8, DType::u8},
        Known{dlpack::kInt, 8, DType::i8}, Known{dlpack::kInt, 16, DType::i16}}) {
    if (got.lanes == 1 && got.code == k.code && got.bits == k.bits) {
      v.dtype = k.t;
      return;
    }
  }
  const char* kind = got.code == dlpack::kInt       ? "int"
                     : got.code == dlpack::kUInt    ? "uint"
                     : got.code == dlpack::kFloat   ? "float"
                     : got.code == dlpack::kComplex ? "complex"
                                                    : "DLPack type";
  set_other(v, text(kind, int{got.bits}));
}

}  // namespace boost_ext
