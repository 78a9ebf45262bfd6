// Our emulator of the part of the Ascend C API that the kernels use, for tests on a host without an NPU. It was written
// from the documentation, not from the toolkit, and stands in the place of CANN's header of this name: kernels include
// it without knowing. A kernel that breaks a documented rule ends with emulator::Error.
//
// What it knows: the sizes and alignments, who may touch memory after whom, and what each operation computes. What it
// does not know: how long anything takes, and what the hardware does that is not documented.
#pragma once

#include "reduce.h"
