// pca_back_project: from coordinates in the subspace back to tensors, several vectors in one pass over P.
//
//   out[j] = P^T . vectors[j],   j = 0 .. J-1,   split over the tensors of out[j] in list order
//
// P        (k, n) float32, float16, bfloat16, or int8 codes with a `scale`, see pca_project.h
// vectors  J >= 1 arrays (k,), float32
// out      J lists of tensors, n elements a list, each float32, float16 or bfloat16, written; all lists have the same
//          sizes in the same order; none may overlap anything else
// Sums: over the rows of P in their order, float32; of codes each term is (vectors[j][r] * scale[r, i / 256]) * P[r,
// i], which CUDA adds without rounding it before: the same bits on every card, but not the CPU's. n = 0 does nothing;
// inf and nan propagate. On CUDA one pass over P serves four vectors.
#pragma once

#include "ops/pca_project.h"

namespace boost_ext {

inline constexpr Arg kPcaBackProjectArgs[] = {array("P", kProjections), arrays("vectors", kF32),
                                              lists("out", kFloats).like("vectors").written(),
                                              array("scale", 0).optional()};
inline constexpr Schema kPcaBackProject{"pca_back_project", kPcaBackProjectArgs, Devices::all};

void pca_back_project(const Context& context, const View& P, const Views& vectors, const std::vector<Views>& out,
                      const View& scale = {});

// Of two vectors.
inline constexpr Arg kPcaBackProjectTwoArgs[] = {array("P", kProjections),
                                                 array("v", kF32),
                                                 array("w", kF32),
                                                 arrays("out_v", kFloats).written(),
                                                 arrays("out_w", kFloats).written(),
                                                 array("scale", 0).optional()};
inline constexpr Schema kPcaBackProjectTwo{"pca_back_project", kPcaBackProjectTwoArgs, Devices::cpu};
void pca_back_project_two(const Context& context, const View& P, const View& v, const View& w, const Views& out_v,
                          const Views& out_w, const View& scale);

// out <- factor * vector, cut into the sizes of out, as those of `like` are: a projection with one row.
inline constexpr Arg kUnflattenArgs[] = {array("factor", kF32), array("vector", kF32), arrays("like", kFloats),
                                         arrays("out", kFloats).written()};
inline constexpr Schema kUnflatten{"parted", kUnflattenArgs, Devices::cpu};
void unflatten(const Context& context, const View& factor, const View& vector, const Views& like, const Views& out);

// weights <- the first row of origin (2, n) + P^T . coordinates, which the second row holds meanwhile: two projections,
// so that the sum is one of float32 whatever the weights are stored as.
inline constexpr Arg kSubspacePointArgs[] = {array("P", kProjections), array("coordinates", kF32),
                                             array("origin", kF32).written(), arrays("weights", kFloats).written()};
inline constexpr Schema kSubspacePoint{"subspace_point", kSubspacePointArgs, Devices::cpu};
void subspace_point(const Context& context, const View& P, const View& coordinates, const View& origin,
                    const Views& weights);

// `out` is the lists one after the other, `tensors` a list.
BOOST_EXT_CPU_KERNEL(void, pca_back_project, const Context&, const View& P, const float* scale, Tensors vectors,
                     Tensors out, std::int64_t tensors, std::int64_t n)

BOOST_EXT_ASCEND_KERNEL(pca_back_project, const Context&, const View& P, Tensors vectors, Tensors out,
                        std::int64_t tensors, std::int64_t n)
BOOST_EXT_CUDA_KERNEL(pca_back_project, const Context&, const View& P, const float* scale, Tensors vectors, Tensors out,
                      std::int64_t tensors, std::int64_t n)

}  // namespace boost_ext
