// Elementwise kernels between two matrix products: residual sum + RMS norm, SiLU * up, gated norm.
// Unlike separate kernels, each also quantises its result for the next product (`quantised`),
// unless quantised.limbs is null. Included after limbs.cuh. Numbers in brackets are items of
// contracts/arithmetic.md; each + - * / rounds once. NVRTC option: -DWARPS (warps of `add_norm`).
//
// A warp processes groups of 256 columns, a lane eight adjacent columns. An earlier kernel may
// still write the inputs, so they are read after `pdl_wait` and bypass L1; weights are read before.

#define LANES 128  // lanes of SUM [11]

__device__ __forceinline__ float rms_scale(float sum, float n, float eps) {  // [12]
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, n), eps)));
}

// Loads eight values from column c on; values past n are +0.
__device__ __forceinline__ void load8(float v[8], const float* from, int c, int n) {
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = c + i < n ? __ldcg(from + c + i) : 0.0f;
}

__device__ __forceinline__ void load_weights(float w[8], const float* from, int c, int n) {
#pragma unroll
  for (int i = 0; i < 8; i++)
    w[i] = c + i < n ? from[c + i] : 0.0f;  // not __ldg: the compiler moves it after pdl_wait
}

__device__ __forceinline__ void store8(float* out, const float v[8], int c, int n) {
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (c + i < n) out[c + i] = v[i];
}

// total = x + y, out = rms(total) weight. Grid: x rows. The block keeps its row in shared memory.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
add_norm(const float* x, const float* y, const float* weight, int n, float eps, float* total,
         float* out, QuantisedActivations quantised) {
  extern __shared__ float row_values[];  // [n], zero-padded to a multiple of LANES
  __shared__ float warp_sums[4];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const i64 row_start = (i64)blockIdx.x * n;
  float w[8];
  load_weights(w, weight, warp * GROUP + lane * 8, n);
  pdl_wait();
  pdl_launch_dependents();
  const int padded_n = (n + LANES - 1) / LANES * LANES;
  for (int start = tid; start < padded_n; start += WARPS * 32 * 4) {
    float a[4], b[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int c = start + i * WARPS * 32;
      a[i] = c < n ? __ldcg(x + row_start + c) : 0.0f;
      b[i] = c < n ? __ldcg(y + row_start + c) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int c = start + i * WARPS * 32;
      const float residual = __fadd_rn(a[i], b[i]);
      if (c < n) total[row_start + c] = residual;
      if (c < padded_n) row_values[c] = c < n ? residual : 0.0f;
    }
  }
  __syncthreads();
  if (warp < LANES / 32) {  // SUM of squares [11]: one thread per lane, then adjacent pairs
    float thread_sum = 0.0f;
#pragma unroll 8
    for (int c = tid; c < padded_n; c += LANES)
      thread_sum = __fadd_rn(thread_sum, __fmul_rn(row_values[c], row_values[c]));
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
      thread_sum = __fadd_rn(thread_sum, __shfl_xor_sync(~0u, thread_sum, step));
    if (lane == 0) warp_sums[warp] = thread_sum;
  }
  __syncthreads();
  const float block_sum =
      __fadd_rn(__fadd_rn(warp_sums[0], warp_sums[1]), __fadd_rn(warp_sums[2], warp_sums[3]));
  const float scale = rms_scale(block_sum, (float)n, eps);
  for (int group = warp; group * GROUP < n; group += WARPS) {
    const int c = group * GROUP + lane * 8;
    if (group > warp) load_weights(w, weight, c, n);
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
      v[i] = c + i < n ? __fmul_rn(__fmul_rn(row_values[c + i], scale), w[i]) : 0.0f;
    store8(out + row_start, v, c, n);
    if (quantised.limbs) quantize_group(v, group, blockIdx.x, quantised);
  }
}

// out = SILU(gate) up. Grid: x groups of 256 columns, y rows. One warp per block.
extern "C" __global__ void __launch_bounds__(32)
silu_mul(const float* gate, i64 gate_stride, const float* up, i64 up_stride, int n, float* out,
         QuantisedActivations quantised) {
  const int row = blockIdx.y, c = blockIdx.x * GROUP + threadIdx.x * 8;
  pdl_wait();
  pdl_launch_dependents();
  float values[8], u[8];
  load8(values, gate + row * gate_stride, c, n);
  load8(u, up + row * up_stride, c, n);
#pragma unroll
  for (int i = 0; i < 8; i++) values[i] = __fmul_rn(silu_of(values[i]), u[i]);
  store8(out + (i64)row * n, values, c, n);
  if (quantised.limbs) quantize_group(values, blockIdx.x, row, quantised);
}

// out = rms(x) weight SILU(z) per head of 128. Grid: x groups of two heads, y rows. One warp each.
extern "C" __global__ void __launch_bounds__(32)
gated_norm(const float* x, const float* z, const float* weight, int n, float eps, float* out,
           QuantisedActivations quantised) {
  const int row = blockIdx.y, lane = threadIdx.x, c = blockIdx.x * GROUP + lane * 8;
  float w[8], v[8], z_values[8], square[8];
#pragma unroll
  for (int i = 0; i < 8; i++) w[i] = weight[lane % 16 * 8 + i];
  pdl_wait();
  pdl_launch_dependents();
  load8(v, x + (i64)row * n, c, n);
  load8(z_values, z + (i64)row * n, c, n);
#pragma unroll
  for (int i = 0; i < 8; i++) square[i] = __fmul_rn(v[i], v[i]);
  float head_sum =
      __fadd_rn(__fadd_rn(__fadd_rn(square[0], square[1]), __fadd_rn(square[2], square[3])),
                __fadd_rn(__fadd_rn(square[4], square[5]), __fadd_rn(square[6], square[7])));
#pragma unroll
  for (int step = 1; step < 16; step *= 2)
    head_sum = __fadd_rn(head_sum, __shfl_xor_sync(~0u, head_sum, step));
  const float scale = rms_scale(head_sum, 128.0f, eps);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    v[i] = __fmul_rn(__fmul_rn(__fmul_rn(v[i], scale), w[i]), silu_of(z_values[i]));
    if (c + i >= n) v[i] = 0.0f;
  }
  store8(out + (i64)row * n, v, c, n);
  if (quantised.limbs) quantize_group(v, blockIdx.x, row, quantised);
}
