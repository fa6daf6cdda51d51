// What stands between two products, each with the integers of its result for the second one: the
// residual sum and its norm, the gate of the FFN, the gated norm. limbs.cuh stands before this
// source; its items in brackets are those of contracts/arithmetic.md. Each + - * / rounds once.
// Compiled by NVRTC with -DWARPS, those of a block that adds and norms a row.
//
// A warp works on groups of 256 columns, a lane on eight columns side by side. Inputs may be those
// of a kernel that still runs, so they are read after the wait and past L1; weights are read before.

#define LANES 128  // of SUM [11]

__device__ __forceinline__ float scale_of(float sum, float n, float eps) {  // [12]
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, n), eps)));
}

// Eight values from column c on, those past n as +0.
__device__ __forceinline__ void load8(float v[8], const float* from, int c, int n) {
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = c + i < n ? __ldcg(from + c + i) : 0.0f;
}

__device__ __forceinline__ void load_weights(float w[8], const float* from, int c, int n) {
#pragma unroll
  for (int i = 0; i < 8; i++) w[i] = c + i < n ? from[c + i] : 0.0f;  // __ldg would sink past it
}

__device__ __forceinline__ void store8(float* to, const float v[8], int c, int n) {
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (c + i < n) to[c + i] = v[i];
}

// total = x + y, out = rms(total) weight. A block a row of n values, which it keeps in shared memory.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
add_norm(const float* x, const float* y, const float* weight, int n, float eps, float* total,
         float* out, Integers to) {
  extern __shared__ float row[];  // [n], filled up to a whole number of lanes
  __shared__ float part[4];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const i64 at = (i64)blockIdx.x * n;
  float w[8];
  load_weights(w, weight, warp * GROUP + lane * 8, n);
  wait_for_inputs();
  let_the_next_start();
  const int whole = (n + LANES - 1) / LANES * LANES;
  for (int first = tid; first < whole; first += WARPS * 32 * 4) {
    float a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int c = first + i * WARPS * 32;
      a[i] = c < n ? __ldcg(x + at + c) : 0.0f;
      b[i] = c < n ? __ldcg(y + at + c) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int c = first + i * WARPS * 32;
      const float sum = __fadd_rn(a[i], b[i]);
      if (c < n) total[at + c] = sum;
      if (c < whole) row[c] = c < n ? sum : 0.0f;
    }
  }
  __syncthreads();
  if (warp < LANES / 32) {  // SUM of squares [11]: a thread a lane, then adjacent pairs
    float sum = 0.0f;
#pragma unroll 8
    for (int c = tid; c < whole; c += LANES) sum = __fadd_rn(sum, __fmul_rn(row[c], row[c]));
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
      sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, step));
    if (lane == 0) part[warp] = sum;
  }
  __syncthreads();
  const float scale = scale_of(
      __fadd_rn(__fadd_rn(part[0], part[1]), __fadd_rn(part[2], part[3])), (float)n, eps);
  for (int group = warp; group * GROUP < n; group += WARPS) {
    const int c = group * GROUP + lane * 8;
    if (group > warp) load_weights(w, weight, c, n);
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
      v[i] = c + i < n ? __fmul_rn(__fmul_rn(row[c + i], scale), w[i]) : 0.0f;
    store8(out + at, v, c, n);
    if (to.limbs) store_group(v, group, blockIdx.x, to);
  }
}

// out = SILU(gate) up; a warp a (group, row).
extern "C" __global__ void __launch_bounds__(32)
silu_mul(const float* gate, i64 gate_stride, const float* up, i64 up_stride, int n, float* out,
         Integers to) {
  const int row = blockIdx.y, c = blockIdx.x * GROUP + threadIdx.x * 8;
  wait_for_inputs();
  let_the_next_start();
  float g[8], u[8];
  load8(g, gate + row * gate_stride, c, n);
  load8(u, up + row * up_stride, c, n);
#pragma unroll
  for (int i = 0; i < 8; i++) g[i] = __fmul_rn(silu_of(g[i]), u[i]);
  store8(out + (i64)row * n, g, c, n);
  if (to.limbs) store_group(g, blockIdx.x, row, to);
}

// out = rms(x) weight SILU(z) for heads of 128; a warp two heads, which are a group, of a row.
extern "C" __global__ void __launch_bounds__(32)
gated_norm(const float* x, const float* z, const float* weight, int n, float eps, float* out,
           Integers to) {
  const int row = blockIdx.y, lane = threadIdx.x, c = blockIdx.x * GROUP + lane * 8;
  float w[8], v[8], g[8], square[8];
#pragma unroll
  for (int i = 0; i < 8; i++) w[i] = weight[lane % 16 * 8 + i];
  wait_for_inputs();
  let_the_next_start();
  load8(v, x + (i64)row * n, c, n);
  load8(g, z + (i64)row * n, c, n);
#pragma unroll
  for (int i = 0; i < 8; i++) square[i] = __fmul_rn(v[i], v[i]);
  float sum = __fadd_rn(__fadd_rn(__fadd_rn(square[0], square[1]), __fadd_rn(square[2], square[3])),
                        __fadd_rn(__fadd_rn(square[4], square[5]), __fadd_rn(square[6], square[7])));
#pragma unroll
  for (int step = 1; step < 16; step *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, step));
  const float scale = scale_of(sum, 128.0f, eps);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    v[i] = __fmul_rn(__fmul_rn(__fmul_rn(v[i], scale), w[i]), silu_of(g[i]));
    if (c + i >= n) v[i] = 0.0f;
  }
  store8(out + (i64)row * n, v, c, n);
  if (to.limbs) store_group(v, blockIdx.x, row, to);
}
