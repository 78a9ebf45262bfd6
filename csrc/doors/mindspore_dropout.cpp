// Dropout inside MindSpore: see mindspore.cpp.
#include "doors/graph.h"
#include "ops/dropout.h"

namespace boost_ext {

// state, stream, key out. It counts the pass in the state, and MindSpore allocates the key.
BOOST_EXT_GRAPH_FUNCTION(dropout_key) {
  const View state = in.take("state");
  const std::int32_t stream = in.integer("stream");
  dropout_key(state, stream, in.take("key"));
}

// x, key, p and whether rows go as one as float64 (2,), out
BOOST_EXT_GRAPH_FUNCTION(dropout) {
  const View x = in.take("x"), key = in.take("key");
  const auto* settings = in.data<const double>("settings", DType::f64, 2);
  const DropoutKey k = read_dropout_key(in.op(), key);
  dropout(cpu_context(), x, settings[0], k.seed, Number{static_cast<double>(k.draw), {}}, k.stream,
          settings[1] != 0 ? x.width : 1, in.take("out"));
}

}  // namespace boost_ext
