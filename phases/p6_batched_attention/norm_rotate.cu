// The norms and the rotations of queries and keys in one launch, a warp a head of a token. device.cuh
// stands before this source; items in brackets are those of contracts/arithmetic.md. Each + - * /
// rounds once. Inputs may be those of a kernel that still runs, so they are read after the wait and
// past L1; weights are read before.

#define DIM 256
#define HELD 8   // dimensions of a lane: lane, lane + 32, ...

struct Part {  // queries or keys f32[tokens, heads, DIM], and where they go
  const float* x;
  i64 token, head;     // how far apart tokens and heads of x stand
  const float* weight;
  float* normed;       // contiguous, like out
  float* out;
  int heads;
};

// Grid: x tokens, y heads, those of the queries first.
extern "C" __global__ void __launch_bounds__(32)
norm_rotate(Part queries, Part keys, float eps, const float* table, int pairs,
            const i64* positions) {
  __shared__ float row[DIM];
  const int lane = threadIdx.x, number = blockIdx.y;
  const bool of_queries = number < queries.heads;
  const Part part = of_queries ? queries : keys;
  const i64 token = blockIdx.x, head = of_queries ? number : number - queries.heads;
  float w[HELD], v[HELD], cosine[HELD], sine[HELD], sum[HELD / 2];
#pragma unroll
  for (int i = 0; i < HELD; i++) w[i] = part.weight[lane + 32 * i];
  wait_for_inputs();
  let_the_next_start();
  const float* const from = part.x + token * part.token + head * part.head + lane;
  const i64 position = __ldcg(positions + token);
#pragma unroll
  for (int i = 0; i < HELD; i++) v[i] = __ldcg(from + 32 * i);
  const float* const entry = table + position * (2 * pairs);
#pragma unroll
  for (int i = 0; i < HELD; i++) {  // dimension d turns with d + pairs, those from 2 pairs on pass
    const int d = lane + 32 * i, pair = d < pairs ? d : d - pairs;
    cosine[i] = d < 2 * pairs ? __ldcg(entry + pair) : 1.0f;
    sine[i] = d < 2 * pairs ? __ldcg(entry + pairs + pair) : 0.0f;
  }
  // SUM of squares [11]: lane d mod 128 of the text has two, then adjacent pairs
#pragma unroll
  for (int i = 0; i < HELD / 2; i++)
    sum[i] = __fadd_rn(__fmul_rn(v[i], v[i]), __fmul_rn(v[i + HELD / 2], v[i + HELD / 2]));
#pragma unroll
  for (int step = 1; step < 32; step *= 2)
#pragma unroll
    for (int i = 0; i < HELD / 2; i++)
      sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], step));
  const float total = __fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3]));
  const float mean = __fadd_rn(__fdiv_rn(total, (float)DIM), eps);
  const float scale = __fdiv_rn(1.0f, __fsqrt_rn(mean));  // [12]
  const i64 at = (token * part.heads + head) * DIM + lane;
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    v[i] = __fmul_rn(__fmul_rn(v[i], scale), w[i]);
    part.normed[at + 32 * i] = row[lane + 32 * i] = v[i];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < HELD; i++) {  // [19]
    const int d = lane + 32 * i;
    if (d < 2 * pairs) {
      const float own = __fmul_rn(v[i], cosine[i]);
      const float other = __fmul_rn(row[d < pairs ? d + pairs : d - pairs], sine[i]);
      v[i] = d < pairs ? __fsub_rn(own, other) : __fadd_rn(own, other);
    }
    part.out[at + 32 * i] = v[i];
  }
}
