// Built-in functions of CUDA C++, each with the bits of a device.
#pragma once

#include "instructions.h"

namespace {  // kernels are in it too, so these shadow the host's functions
inline float fminf(float x, float y) {  // a number wins over NaN; -0 < +0
  return x != x                                      ? (y != y ? __builtin_nanf("0x3fffff") : y)
         : y != y || x < y || (x == y && signbit(x)) ? x
                                                     : y;
}
inline float fmaxf(float x, float y) { return x != x || y != y ? fminf(x, y) : -fminf(-x, -y); }
inline float min(float x, float y) { return fminf(x, y); }
inline float max(float x, float y) { return fmaxf(x, y); }
#define SIMT_MIN_MAX(T)                \
  inline T min(T x, T y) { return x < y ? x : y; } \
  inline T max(T x, T y) { return x > y ? x : y; }
SIMT_MIN_MAX(int)
SIMT_MIN_MAX(unsigned)
SIMT_MIN_MAX(long)
SIMT_MIN_MAX(unsigned long)
SIMT_MIN_MAX(long long)
SIMT_MIN_MAX(unsigned long long)
inline unsigned min(int x, unsigned y) { return min((unsigned)x, y); }
inline unsigned min(unsigned x, int y) { return min(x, (unsigned)y); }
inline unsigned max(int x, unsigned y) { return max((unsigned)x, y); }
inline unsigned max(unsigned x, int y) { return max(x, (unsigned)y); }
}  // namespace

static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
static inline float __ll2float_rn(long long x) { return x; }
static inline float __int2float_rn(int x) { return x; }
static inline float __uint2float_rn(unsigned x) { return x; }
static inline float __uint_as_float(unsigned x) { return simt::bits<float>(&x); }
static inline unsigned __float_as_uint(float x) { return simt::bits<unsigned>(&x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __mulhi(int x, int y) { return (long long)x * y >> 32; }
static inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned long long)x * y >> 32; }
static inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
  return r;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return ((unsigned long long)high << 32 | low) << (by & 31) >> 32;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return ((unsigned long long)high << 32 | low) >> (by & 31);
}
static inline int __dp4a(int a, int b, int c) {
  return (unsigned)simt::dot<int8_t, int8_t>(a, b) + c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  return simt::dot<uint8_t, uint8_t>(a, b) + c;
}
static inline float __int_as_float(int x) { return simt::bits<float>(&x); }
static inline int __float_as_int(float x) { return simt::bits<int>(&x); }
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  return simt::byte_permute(a, b, s);
}
static inline int __float2int_rz(float x) {  // saturates
  return x != x               ? 0
         : x >= 2147483648.0f ? 2147483647
         : x < -2147483648.0f ? -2147483647 - 1
                              : (int)x;
}
static inline int __float2int_rn(float x) { return __float2int_rz(nearbyintf(x)); }
static inline int __float2int_rd(float x) { return __float2int_rz(floorf(x)); }
static inline int __float2int_ru(float x) { return __float2int_rz(ceilf(x)); }

template <class T> static T __ldg(const T* at) { return *at; }
template <class T> static T __ldcg(const T* at) { return *at; }
template <class T> static void __stcg(T* at, T value) { *at = value; }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __trap() { __builtin_trap(); }

// Integers only: float atomics add in an undefined order, so their bits are undefined.
#define SIMT_ATOMIC(NAME, T, NEW)                                        \
  static inline T atomic##NAME(T* at, std::common_type_t<T> x) {         \
    const T old = *at;                                                   \
    *at = NEW;                                                           \
    return old;                                                          \
  }
#define SIMT_ATOMICS(T)                      \
  SIMT_ATOMIC(Add, T, old + x)               \
  SIMT_ATOMIC(Min, T, x < old ? x : old)     \
  SIMT_ATOMIC(Max, T, x > old ? x : old)     \
  SIMT_ATOMIC(And, T, old & x)               \
  SIMT_ATOMIC(Or, T, old | x)                \
  SIMT_ATOMIC(Xor, T, old ^ x)               \
  SIMT_ATOMIC(Exch, T, x)                    \
  static inline T atomicCAS(T* at, std::common_type_t<T> old, std::common_type_t<T> x) { \
    const T was = *at;                       \
    if (was == old) *at = x;                 \
    return was;                              \
  }
SIMT_ATOMICS(int)
SIMT_ATOMICS(unsigned)
SIMT_ATOMICS(unsigned long long)
SIMT_ATOMIC(Sub, int, old - x)
SIMT_ATOMIC(Sub, unsigned, old - x)
template <class T> T atomicAdd(T*, std::enable_if_t<std::is_floating_point<T>::value, T>) {
  static_assert(!sizeof(T),
                "atomicAdd of floats adds in no defined order on a device, and is refused");
  return 0;
}
static inline size_t __cvta_generic_to_shared(const void* at) {
  return (const unsigned char*)at - simt::shared_memory;
}
static inline void __syncthreads() { simt::arrive_and_wait(simt::block, "__syncthreads"); }
static inline int __syncthreads_count(bool counts) {
  return simt::arrive_and_wait(simt::block, "__syncthreads_count", counts);
}
static inline int __syncthreads_or(bool predicate) {
  return simt::arrive_and_wait(simt::block, "__syncthreads_or", predicate) != 0;
}
static inline int __syncthreads_and(bool predicate) {
  return simt::arrive_and_wait(simt::block, "__syncthreads_and", !predicate) == 0;
}
static inline void __syncwarp(unsigned mask = ~0u) {
  simt::arrive_and_wait(simt::lane_group(mask, "__syncwarp"), "__syncwarp");
}

template <class T> static T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int first = simt::lane() & -width;
  return simt::shuffle(mask, value, first | (from & (width - 1)), true, "__shfl_sync");
}
template <class T> static T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
  const int self = simt::lane(), from = self ^ (by & 31);
  return simt::shuffle(mask, value, from, from < (self & -width) + width, "__shfl_xor_sync");
}
template <class T> static T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int self = simt::lane(), from = self - (int)(by & 31);
  return simt::shuffle(mask, value, from, from >= (self & -width), "__shfl_up_sync");
}
template <class T> static T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int self = simt::lane(), from = self + (int)(by & 31);
  return simt::shuffle(mask, value, from, from < (self & -width) + width, "__shfl_down_sync");
}

static inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  return simt::ballot(mask, predicate, "__ballot_sync");
}
static inline int __any_sync(unsigned mask, bool predicate) {
  return simt::ballot(mask, predicate, "__any_sync") != 0;
}
static inline int __all_sync(unsigned mask, bool predicate) {
  return simt::ballot(mask, !predicate, "__all_sync") == 0;
}
#define SIMT_REDUCE(NAME, T, NEW)                                     \
  static inline T __reduce_##NAME##_sync(unsigned mask, T value) {    \
    return simt::reduce_lanes(mask, value, "__reduce_" #NAME "_sync", \
                              [](T x, T y) { return NEW; });          \
  }
SIMT_REDUCE(add, unsigned, x + y)
SIMT_REDUCE(add, int, (int)((unsigned)x + (unsigned)y))
SIMT_REDUCE(min, unsigned, x < y ? x : y)
SIMT_REDUCE(min, int, x < y ? x : y)
SIMT_REDUCE(max, unsigned, x > y ? x : y)
SIMT_REDUCE(max, int, x > y ? x : y)
SIMT_REDUCE(and, unsigned, x & y)
SIMT_REDUCE(or, unsigned, x | y)
SIMT_REDUCE(xor, unsigned, x ^ y)
