// RMS norm and rotary embedding of queries and keys in one launch; one warp per head of a token.
// It writes both the normed and the rotated values, so a step that reports both runs this kernel
// too. Included after device.cuh. Numbers in brackets are items of contracts/arithmetic.md; each
// + - * / rounds once. An earlier kernel may still write the inputs, so they are read after
// `pdl_wait` and bypass L1; weights are read before.

#define DIM 256
#define DIMS_PER_LANE 8   // a lane has dimensions lane, lane + 32, ...

struct HeadSet {  // queries or keys f32[tokens, n_heads, DIM] and their outputs
  const float* x;
  i64 token_stride, head_stride;  // strides of x
  const float* weight;
  float* normed;       // f32[tokens, n_heads, DIM], contiguous, as is `out`
  float* out;
  int n_heads;
};

// Grid: x tokens, y query heads, then key heads.
extern "C" __global__ void __launch_bounds__(32)
norm_rotate(HeadSet queries, HeadSet keys, float eps, const float* table, int pairs,
            const i64* positions) {
  __shared__ float normed_head[DIM];
  const int lane = threadIdx.x, head_index = blockIdx.y;
  const bool is_query = head_index < queries.n_heads;
  const HeadSet set = is_query ? queries : keys;
  const i64 token = blockIdx.x, head = is_query ? head_index : head_index - queries.n_heads;
  float w[DIMS_PER_LANE], v[DIMS_PER_LANE], cosine[DIMS_PER_LANE], sine[DIMS_PER_LANE];
  float thread_sums[DIMS_PER_LANE / 2];
#pragma unroll
  for (int i = 0; i < DIMS_PER_LANE; i++) w[i] = set.weight[lane + 32 * i];
  pdl_wait();
  pdl_launch_dependents();
  const float* const from = set.x + token * set.token_stride + head * set.head_stride + lane;
  const i64 position = __ldcg(positions + token);
#pragma unroll
  for (int i = 0; i < DIMS_PER_LANE; i++) v[i] = __ldcg(from + 32 * i);
  const float* const table_row = table + position * (2 * pairs);
#pragma unroll
  for (int i = 0; i < DIMS_PER_LANE; i++) {  // d rotates with d + pairs; d >= 2 * pairs is copied
    const int d = lane + 32 * i, pair = d < pairs ? d : d - pairs;
    cosine[i] = d < 2 * pairs ? __ldcg(table_row + pair) : 1.0f;
    sine[i] = d < 2 * pairs ? __ldcg(table_row + pairs + pair) : 0.0f;
  }
  // SUM of squares [11]: SUM lane d % 128 adds two squares, then adjacent pairs
#pragma unroll
  for (int i = 0; i < DIMS_PER_LANE / 2; i++)
    thread_sums[i] = __fadd_rn(__fmul_rn(v[i], v[i]),
                               __fmul_rn(v[i + DIMS_PER_LANE / 2], v[i + DIMS_PER_LANE / 2]));
#pragma unroll
  for (int step = 1; step < 32; step *= 2)
#pragma unroll
    for (int i = 0; i < DIMS_PER_LANE / 2; i++)
      thread_sums[i] = __fadd_rn(thread_sums[i], __shfl_xor_sync(~0u, thread_sums[i], step));
  const float warp_sum = __fadd_rn(__fadd_rn(thread_sums[0], thread_sums[1]),
                                   __fadd_rn(thread_sums[2], thread_sums[3]));
  const float mean_square = __fadd_rn(__fdiv_rn(warp_sum, (float)DIM), eps);
  const float scale = __fdiv_rn(1.0f, __fsqrt_rn(mean_square));  // [12]
  const i64 offset = (token * set.n_heads + head) * DIM + lane;
#pragma unroll
  for (int i = 0; i < DIMS_PER_LANE; i++) {
    v[i] = __fmul_rn(__fmul_rn(v[i], scale), w[i]);
    set.normed[offset + 32 * i] = normed_head[lane + 32 * i] = v[i];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < DIMS_PER_LANE; i++) {  // [19]
    const int d = lane + 32 * i;
    if (d < 2 * pairs) {
      const float cosine_term = __fmul_rn(v[i], cosine[i]);
      const float sine_term = __fmul_rn(normed_head[d < pairs ? d + pairs : d - pairs], sine[i]);
      v[i] = d < pairs ? __fsub_rn(cosine_term, sine_term) : __fadd_rn(cosine_term, sine_term);
    }
    set.out[offset + 32 * i] = v[i];
  }
}
