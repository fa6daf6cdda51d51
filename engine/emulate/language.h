// CUDA C++ language extensions: qualifiers, vector types and thread indices.
#pragma once

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __host__
#define __constant__
#define __noinline__ __attribute__((noinline))
#define __align__(n) alignas(n)
#define __shared__ static __attribute__((section("simt_shared")))

#define SIMT_VECTORS(T, NAME, TWO, FOUR)                                       \
  struct alignas(TWO) NAME##2 { T x, y; };                                     \
  struct NAME##3 { T x, y, z; };                                               \
  struct alignas(FOUR) NAME##4 { T x, y, z, w; };                              \
  static inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }            \
  static inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }    \
  static inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIMT_VECTORS(signed char, char, 2, 4)
SIMT_VECTORS(unsigned char, uchar, 2, 4)
SIMT_VECTORS(short, short, 4, 8)
SIMT_VECTORS(unsigned short, ushort, 4, 8)
SIMT_VECTORS(int, int, 8, 16)
SIMT_VECTORS(unsigned, uint, 8, 16)
SIMT_VECTORS(float, float, 8, 16)

static uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;
