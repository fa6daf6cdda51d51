// Emulates the CUDA C++ features that this project's kernels use, for a host compiler. The threads
// of a block are fibers that run one at a time and switch at barriers. Blocks run one after
// another. Warp-level instructions are computed lane by lane, and every operation rounds as on a
// device.
//
// Stricter than a device: an asynchronous copy completes at its wait, not before. Shared memory is
// NaN at the start of a block. Threads run in ascending order in one block, in descending order in
// the next. A lane that does not take part returns NaN. Lanes that wait at different barriers are
// an error.
#pragma once

#include "blocks.h"
#include "functions.h"
