// CUDA C++ on the CPU: what this project's kernels need of a device, for a host compiler. Threads of a
// block are fibers, run one after another and held where they must meet; blocks follow one another.
// What lanes do together is done here lane by lane, and every operation rounds as a device's does.
// Harsher than a device: an asynchronous copy is made when it is awaited and not before, shared memory
// is NaN when a block begins, threads take turns in one order and in the other, a lane that did not
// come tells NaN, and lanes that meet in different places are an error.
#pragma once

#include "blocks.h"
#include "functions.h"
