#include "ops/tensor_statistics.h"

namespace boost_ext {

void tensor_statistics(const Context& context, const Views& tensors, const Number& scale, const View& out) {
  const Device device = check(kTensorStatistics, tensors, scale, out);
  require_size(kTensorStatistics.op, "out", out, kStatistics * static_cast<std::int64_t>(tensors.size()));
  auto* row = static_cast<double*>(out.data);
  if (device == Device::cuda) return BOOST_EXT_CUDA(tensor_statistics)(context, tensors, scale, row);
  std::vector<Statistics> found(tensors.size());
  BOOST_EXT_CPU(tensor_statistics)(context, tensors, found.data());
  for (const Statistics& s : found) {
    row[0] = static_cast<double>(s.inf);
    row[1] = static_cast<double>(s.nan);
    row[2] = static_cast<double>(s.first);
    row[3] = static_cast<double>(s.largest) / scale.value;
    row[4] = static_cast<double>(s.zeros);
    row[5] = s.squares / scale.value / scale.value;
    row += kStatistics;
  }
}

}  // namespace boost_ext
