// The launch files, launched on the emulator.
#include "adasum.asc"
#include "bfgs_update.asc"
#include "optimizer_step.asc"
#include "pca_back_project.asc"
#include "pca_project.asc"
#include "unscale_and_check.asc"

namespace native {
void set_cores(std::int32_t cores) { boost_ext::ascend::emulated_cores = cores; }
}  // namespace native
