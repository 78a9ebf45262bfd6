// The graph-mode door of dropout. Its outputs are MindSpore's to allocate, so there is no bool at the end.
#include "doors/graph.h"
#include "ops/dropout.h"
#include "ops/runtime.h"

using namespace boost_ext;

// state, stream, key out
extern "C" __attribute__((visibility("default"))) int boost_ext_dropout_key(int nparam, void** params, int* ndims,
                                                                            int64_t** shapes, const char** dtypes,
                                                                            void*, void*) {
  return guarded([&] {
    Params p("dropout_key", nparam + 1, params, ndims, shapes, dtypes);
    const View state = p.take();
    const std::int32_t stream = p.integer();
    dropout_key(state, stream, p.take());
  });
}

// x, key, p and whether rows go as one as float64 (2,), out
extern "C" __attribute__((visibility("default"))) int boost_ext_dropout(int nparam, void** params, int* ndims,
                                                                        int64_t** shapes, const char** dtypes, void*,
                                                                        void*) {
  return guarded([&] {
    Params p("dropout", nparam + 1, params, ndims, shapes, dtypes);
    const View x = p.take(), key = p.take(), settings = p.take();
    require_dtype("dropout", "settings", settings, DType::f64);
    require_size("dropout", "settings", settings, 2);
    const auto* s = static_cast<const double*>(settings.data);
    dropout(cpu_context(), x, s[0], read_dropout_key("dropout", key), s[1] != 0 ? x.width : 1, p.take());
  });
}
