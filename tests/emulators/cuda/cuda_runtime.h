// CUDA on the host: what a .cu file includes when it is compiled as C++ for tests. Threads of a block are fibers that
// run in a random order, memory of the device is memory of the host, every call has ended when it returns. A launch is
// boost_ext::cuda::emulator::launch(grid, block, stream, kernel, arguments...).
//
// The .cu files need -ffp-contract=off, and the .cpp files beside this one; compiled, but not linked, with
// -fsanitize=thread, races in shared memory are found: see watch.h.
#pragma once

#include "arithmetic.h"
#include "atomics.h"
#include "block.h"
#include "cublas.h"
#include "keywords.h"
#include "launch.h"
#include "runtime_api.h"
#include "vectors.h"
#include "warp.h"
