// Common header of every CUDA C++ source: integer types, programmatic dependent launch (PDL), and
// the pinned functions of contracts/arithmetic.md. Numbers in brackets are items of that document.
// NVRTC compiles with contraction off, so each + - * / rounds once.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// A kernel launched with PDL starts before the previous kernel ends. It calls `pdl_wait` before it
// reads or writes memory that an earlier kernel writes or reads.
__device__ __forceinline__ void pdl_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Allows the next kernel in the stream to start.
__device__ __forceinline__ void pdl_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ float exp_of(float x) {  // EXP [14]
  float y = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  y = x != x ? 0.0f : y;
  const float n = (y * __int_as_float(0x3fb8aa3b) + 12582912.0f) - 12582912.0f;
  const float t = (y - n * __int_as_float(0x3f318000)) - n * __int_as_float(0xb95e8083);
  float p = t * __int_as_float(0x394f83af) + __int_as_float(0x3ab6c737);
  p = p * t + __int_as_float(0x3c08893a);
  p = p * t + __int_as_float(0x3d2aaa46);
  p = p * t + __int_as_float(0x3e2aaaaa);
  p = p * t + __int_as_float(0x3f000000);
  const float power = __int_as_float((__float2int_rn(n) + 127) << 23);
  float e = ((((p * t) * t) + t) + 1.0f) * power;
  e = x < -87.0f ? 0.0f : e;
  e = x > 88.0f ? __int_as_float(0x7f800000) : e;
  return x != x ? x : e;
}

__device__ __forceinline__ float log1p_of(float t) {  // LOG1P [15]
  const float u = __fdiv_rn(t, t + 2.0f);
  const float z = u * u;
  float p = z * __int_as_float(0x3df8e5e4) + __int_as_float(0x3ddb67d5);
  p = p * z + __int_as_float(0x3e1284de);
  p = p * z + __int_as_float(0x3e4ccb53);
  p = p * z + __int_as_float(0x3eaaaaac);
  const float w = u + u;
  return w + w * (z * p);
}

__device__ __forceinline__ float softplus_of(float x) {  // SOFTPLUS [16]
  const float y = (x > 0.0f ? x : 0.0f) + log1p_of(exp_of(-fabsf(x)));
  return x != x ? x : y;
}

__device__ __forceinline__ float sigmoid_of(float x) {  // SIGMOID [16]
  const float t = exp_of(-fabsf(x));
  const float y = __fdiv_rn(x < 0.0f ? t : 1.0f, t + 1.0f);
  return x != x ? x : y;
}

__device__ __forceinline__ float silu_of(float x) {  // SILU [16]
  return x * sigmoid_of(x);
}
