#include "ops/pca_back_project.h"

#include "ascend/call.h"

namespace boost_ext::ascend {

constexpr std::int64_t kMaxRows = 2048;

void pca_back_project(const Context& context, const View& P, Tensors vectors, Tensors out, std::int64_t tensors,
                      std::int64_t n) {
  const char* op = "pca_back_project";
  require(P.rows <= kMaxRows, op, ": P must have at most ", kMaxRows, " rows on Ascend, got ", P.rows);
  for (std::int64_t i = 0; i < out.count; ++i) {
    const std::string list = text("out[", i / tensors, "]");
    require_same_dtype(op, {list.c_str(), i % tensors}, out[i], "P", P.dtype);
  }
  const Call call(op, context);
  const void* matrix = call.at(P);
  // Two vectors share a pass over P.
  for (std::int64_t j = 0; j < vectors.count; j += 2) {
    const bool two = j + 1 < vectors.count;
    const void* first = call.at(vectors[j]);
    const void* second = two ? call.at(vectors[j + 1]) : nullptr;
    std::int64_t column = 0;
    for (std::int64_t i = 0; i < tensors; ++i) {
      const View& to = out[j * tensors + i];
      void* other = two ? call.at(out[(j + 1) * tensors + i]) : nullptr;
      const auto run = BOOST_EXT_ASCEND_BY_DTYPE(pca_back_project, P.dtype);
      call.check(run(matrix, first, second, call.at(to), other, P.rows, n, column, to.size, call.stream()), "P");
      column += to.size;
    }
  }
}

}  // namespace boost_ext::ascend
