// Split-KV attention (flash-decoding) of each token over its row's slot (contracts/arithmetic.md,
// item 24). Splits have a fixed size of 64 keys and are merged in order, so a row's bits depend
// only on its own length, not on the batch.
//
// `split` computes one split for one token, one KV head and all Q_PER_KV query heads, and appends
// the token's key and value to the cache. `merge` combines a query head's splits, applies the gate
// and quantises the result; a head is one group of 256 columns.
//
// NVRTC options: -DQ_PER_KV (query heads per KV head); -DNARROW_KV, the PTX type name of a cache
// narrower than f32. Contraction is off; each + - * / rounds once. Included after limbs.cuh. An
// earlier kernel may still run, so nothing is read before `pdl_wait`.
//
// No block reads what this launch writes. Keys from `length` on, those of this step, are read from
// the arguments k and v. The tokens of a chunk are therefore independent. A narrow cache rounds
// these keys, so they are rounded here too.

#define DIM 256
#define SPLIT_KEYS 64
#define SUM_LANES 8          // key j of a split goes to lane j % 8
#define THREADS 256
#define WARPS 8
#define KEYS_PER_WARP 4      // keys that a warp has in registers at once
#define KEY_ROUNDS (SPLIT_KEYS / WARPS / KEYS_PER_WARP)
#define PADDED_HEADS ((Q_PER_KV + 3) / 4 * 4)  // row of `scores`, a multiple of float4
#define NEG_INFINITY __int_as_float(0xff800000)
#define SCORES_PER_WARP (Q_PER_KV * KEYS_PER_WARP)  // per round

__device__ __forceinline__ void copy_16(float* to, const float* from, bool valid) {
  // asynchronous, bypasses L1; if not `valid`, writes +0 and reads nothing
  const u32 shared_address = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(shared_address), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

#ifdef NARROW_KV
typedef unsigned short CacheValue;  // bits of f16 or bf16

__device__ __forceinline__ CacheValue to_cache(float x) {  // nearest even; overflow gives infinity
  CacheValue y;
  asm("cvt.rn." NARROW_KV ".f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float from_cache(CacheValue x) {  // exact
  float y;
  asm("cvt.f32." NARROW_KV " %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
#else
typedef float CacheValue;

__device__ __forceinline__ float to_cache(float x) { return x; }
__device__ __forceinline__ float from_cache(float x) { return x; }
#endif

struct RowInfo {  // packed rows of a step
  const int* starts;   // i32[m + 1], first token of each row; null if every row has one token
  const int* lengths;  // i32[m], keys in each row's cache before this step
  int m;
};

struct TokenInfo {
  int row, start, length, n_keys;  // n_keys: visible keys, including its own
};

// Finds a token's row; a row without tokens matches none. All threads of the block must call it.
__device__ __forceinline__ TokenInfo locate_token(int token, const RowInfo& rows) {
  TokenInfo info;
  info.row = token, info.start = token;
  if (rows.starts) {
    info.row = 0;
    for (int i = 0; i < rows.m; i += THREADS) {
      const int next_row = i + threadIdx.x;
      info.row += __syncthreads_count(next_row < rows.m && rows.starts[next_row + 1] <= token);
    }
    info.start = rows.starts[info.row];
  }
  info.length = rows.lengths[info.row];
  info.n_keys = info.length + (token - info.start) + 1;
  return info;
}

struct KvSource {  // keys or values of one head: `length` from the cache, then those of this step
  const CacheValue* cached;
  const float* new_rows;  // the step's keys, offset so that index `length` is the first
  i64 cached_stride, new_stride;
  int length;

#ifdef NARROW_KV
  // Loads four values, rounded as in the cache.
  static __device__ __forceinline__ ushort4 load_four(const float* from) {
    const float4 x = __ldg((const float4*)from);
    return make_ushort4(to_cache(x.x), to_cache(x.y), to_cache(x.z), to_cache(x.w));
  }

  // Loads a lane's dimensions of a key: 4 * lane..4 * lane + 3, and the same + 128.
  __device__ __forceinline__ void load(float4 out[2], int key, int lane) const {
    const bool is_cached = key < length;
    const ushort4* const cached_row = (const ushort4*)(cached + key * cached_stride) + lane;
    const float* const new_row = new_rows + key * new_stride + 4 * lane;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const ushort4 x = is_cached ? __ldg(cached_row + 32 * i) : load_four(new_row + 128 * i);
      out[i] = make_float4(from_cache(x.x), from_cache(x.y), from_cache(x.z), from_cache(x.w));
    }
  }

  // Copies four values to shared memory, rounded as in the cache; +0 if not `valid`.
  __device__ __forceinline__ void copy(CacheValue* out, int key, int dim, bool valid) const {
    if (key < length) {
      const u32 shared_address = (u32)__cvta_generic_to_shared(out);
      asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                   :: "r"(shared_address), "l"(cached + key * cached_stride + dim),
                      "r"(valid ? 8 : 0) : "memory");
    } else {
      *(ushort4*)out =
          valid ? load_four(new_rows + key * new_stride + dim) : make_ushort4(0, 0, 0, 0);
    }
  }
#else
  __device__ __forceinline__ const float* operator[](int key) const {
    const bool is_cached = key < length;
    return (is_cached ? cached : new_rows) + key * (is_cached ? cached_stride : new_stride);
  }
  __device__ __forceinline__ void load(float4 out[2], int key, int lane) const {
    const float4* const cached_row = (const float4*)(*this)[key] + lane;
    out[0] = __ldg(cached_row);  // read-only path: the launch writes no address that it reads
    out[1] = __ldg(cached_row + 32);
  }
  __device__ __forceinline__ void copy(CacheValue* out, int key, int dim, bool valid) const {
    copy_16(out, (*this)[key] + dim, valid);
  }
#endif
};

struct Strides {
  i64 token, head;
};

// Grid: x splits, y tokens times KV heads. Writes per split and query head: the largest score and
// the sum of weights to `stats`, and the weighted values to `partials`.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
split(const float* q, const float* k, const float* v, const u64* keys, const u64* values,
      const int* starts, const int* lengths, int m, int first_token, int kv_heads,
      Strides q_strides, Strides k_strides, Strides v_strides, Strides key_strides,
      Strides value_strides, float* stats, float* partials) {
  extern __shared__ float4 shared[];
  CacheValue* const v_rows = (CacheValue*)shared;             // [SPLIT_KEYS][DIM]
  float* const q_rows = (float*)(v_rows + SPLIT_KEYS * DIM);  // [Q_PER_KV][DIM]
  float* const scores = q_rows + Q_PER_KV * DIM;  // [SPLIT_KEYS][PADDED_HEADS]; later the weights
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int local_token = blockIdx.y / kv_heads, kv_head = blockIdx.y % kv_heads;
  const int token = first_token + local_token;
  pdl_wait();
  pdl_launch_dependents();
  const TokenInfo token_info = locate_token(token, RowInfo{starts, lengths, m});
  const int first_key = blockIdx.x * SPLIT_KEYS;
  const int split_keys = min(token_info.n_keys - first_key, SPLIT_KEYS);
  if (split_keys <= 0) return;

  CacheValue* const slot_k = (CacheValue*)keys[token_info.row] + kv_head * key_strides.head;
  CacheValue* const slot_v = (CacheValue*)values[token_info.row] + kv_head * value_strides.head;
  const float* const new_k = k + token_info.start * k_strides.token + kv_head * k_strides.head;
  const float* const new_v = v + token_info.start * v_strides.token + kv_head * v_strides.head;
  const KvSource k_source = {slot_k, new_k - token_info.length * k_strides.token, key_strides.token,
                             k_strides.token, token_info.length};
  const KvSource v_source = {slot_v, new_v - token_info.length * v_strides.token,
                             value_strides.token, v_strides.token, token_info.length};

  // Loads in flight together: the first round's keys, all values, then the second round's keys. A
  // lane has dimensions 4 * lane..4 * lane + 3 of a key, and the same + 128.
  float4 k_values[KEY_ROUNDS][KEYS_PER_WARP][2];
#pragma unroll
  for (int round = 0; round < KEY_ROUNDS; round++) {
#pragma unroll
    for (int i = 0; i < KEYS_PER_WARP; i++) {
      const int j = (round * KEYS_PER_WARP + i) * WARPS + warp;
      k_values[round][i][0] = k_values[round][i][1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (j < split_keys) k_source.load(k_values[round][i], first_key + j, lane);
    }
    if (round == 0) {
      for (int i = tid; i < Q_PER_KV * DIM / 4; i += THREADS) {
        const int h = i / (DIM / 4), d = i % (DIM / 4) * 4;
        copy_16(q_rows + h * DIM + d,
                q + token * q_strides.token + (kv_head * Q_PER_KV + h) * q_strides.head + d, true);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
      const int padded_keys = (split_keys + SUM_LANES - 1) / SUM_LANES * SUM_LANES;
      for (int j = tid / (DIM / 4); j < padded_keys; j += THREADS / (DIM / 4)) {
        const int d = tid % (DIM / 4) * 4;
        v_source.copy(v_rows + j * DIM + d, first_key + min(j, split_keys - 1), d, j < split_keys);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
  }
  if (first_key + split_keys == token_info.n_keys) {  // append this token's key and value
    const i64 position = token_info.n_keys - 1;
    slot_k[position * key_strides.token + tid] =
        to_cache(new_k[(token - token_info.start) * k_strides.token + tid]);
    slot_v[position * value_strides.token + tid] =
        to_cache(new_v[(token - token_info.start) * v_strides.token + tid]);
  }
  // The queries have arrived; the values may not have.
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  __syncthreads();

  // Scores. SUM has 128 lanes: lane i adds x_i and x_(i + 128), then adjacent pairs are added, two
  // levels within a thread and five across the warp. The order of the two addends changes no bit.
  // SUM starts at +0, omitted here: only the sign of a zero sum can differ, and later steps treat a
  // score of -0 as +0. Each exchange halves the sums that a thread still adds; afterwards
  // `first_score` is the index of the first of the SCORES_PER_WARP that the thread has.
#pragma unroll
  for (int round = 0; round < KEY_ROUNDS; round++) {
    float sum[SCORES_PER_WARP];
#pragma unroll
    for (int h = 0; h < Q_PER_KV; h++) {
      const float4 a = ((const float4*)(q_rows + h * DIM))[lane];
      const float4 b = ((const float4*)(q_rows + h * DIM))[lane + 32];
#pragma unroll
      for (int i = 0; i < KEYS_PER_WARP; i++) {
        const float4 x = k_values[round][i][0], y = k_values[round][i][1];
        const float l0 = __fadd_rn(__fmul_rn(a.x, x.x), __fmul_rn(b.x, y.x));
        const float l1 = __fadd_rn(__fmul_rn(a.y, x.y), __fmul_rn(b.y, y.y));
        const float l2 = __fadd_rn(__fmul_rn(a.z, x.z), __fmul_rn(b.z, y.z));
        const float l3 = __fadd_rn(__fmul_rn(a.w, x.w), __fmul_rn(b.w, y.w));
        sum[i * Q_PER_KV + h] = __fadd_rn(__fadd_rn(l0, l1), __fadd_rn(l2, l3));
      }
    }
    int first_score = 0, remaining = SCORES_PER_WARP;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const bool upper = lane & step;
      if (remaining % 2 == 0) {
        remaining /= 2;
#pragma unroll
        for (int i = 0; i < SCORES_PER_WARP / 2; i++)
          if (i < remaining) {
            const float keep = upper ? sum[i + remaining] : sum[i];
            const float send = upper ? sum[i] : sum[i + remaining];
            sum[i] = __fadd_rn(keep, __shfl_xor_sync(~0u, send, step));
          }
        first_score += upper ? remaining : 0;
      } else {
#pragma unroll
        for (int i = 0; i < SCORES_PER_WARP; i++)
          if (i < remaining) sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], step));
      }
    }
#pragma unroll
    for (int i = 0; i < SCORES_PER_WARP; i++)
      if (i < remaining) {
        const int score_index = first_score + i;
        const int j = (round * KEYS_PER_WARP + score_index / Q_PER_KV) * WARPS + warp;
        scores[j * PADDED_HEADS + score_index % Q_PER_KV] = __fmul_rn(sum[i], 0.0625f);
      }
  }
  __syncthreads();

  // Weights: one warp per query head; a lane has keys `lane` and `lane + 32`. The maximum ignores a
  // NaN score; its weight makes the head's sums NaN.
  const i64 partial_index =
      ((i64)local_token * kv_heads + kv_head) * Q_PER_KV * gridDim.x + blockIdx.x;
  for (int h = warp; h < Q_PER_KV; h += WARPS) {
    float* const score = scores + lane * PADDED_HEADS + h;
    const bool first_valid = lane < split_keys, second_valid = lane + 32 < split_keys;
    float max_score = fmaxf(first_valid ? score[0] : NEG_INFINITY,
                            second_valid ? score[32 * PADDED_HEADS] : NEG_INFINITY);
#pragma unroll
    for (int step = 16; step; step /= 2)
      max_score = fmaxf(max_score, __shfl_xor_sync(~0u, max_score, step));
    score[0] = first_valid ? exp_of(__fsub_rn(score[0], max_score)) : 0.0f;
    score[32 * PADDED_HEADS] =
        second_valid ? exp_of(__fsub_rn(score[32 * PADDED_HEADS], max_score)) : 0.0f;
    __syncwarp();
    float exp_sum = 0.0f;  // threads l, l + 8, l + 16 and l + 24 all compute SUM lane l
#pragma unroll
    for (int j = 0; j < SPLIT_KEYS; j += SUM_LANES)
      exp_sum = __fadd_rn(exp_sum, scores[(j + lane % SUM_LANES) * PADDED_HEADS + h]);
#pragma unroll
    for (int step = 1; step < SUM_LANES; step *= 2)
      exp_sum = __fadd_rn(exp_sum, __shfl_xor_sync(~0u, exp_sum, step));
    if (lane == 0) {
      float* const split_stats = stats + 2 * (partial_index + (i64)h * gridDim.x);
      split_stats[0] = max_score, split_stats[1] = exp_sum;
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();

  // Weighted values: a thread has one dimension, and SUM_LANES sums per query head.
  float acc[Q_PER_KV][SUM_LANES];
#pragma unroll
  for (int h = 0; h < Q_PER_KV; h++)
#pragma unroll
    for (int l = 0; l < SUM_LANES; l++) acc[h][l] = 0.0f;
  for (int j = 0; j < split_keys; j += SUM_LANES) {
#pragma unroll
    for (int l = 0; l < SUM_LANES; l++) {
      const float value = from_cache(v_rows[(j + l) * DIM + tid]);
      float weight[PADDED_HEADS];
#pragma unroll
      for (int i = 0; i < PADDED_HEADS / 4; i++)
        ((float4*)weight)[i] = ((const float4*)(scores + (j + l) * PADDED_HEADS))[i];
#pragma unroll
      for (int h = 0; h < Q_PER_KV; h++)
        acc[h][l] = __fadd_rn(acc[h][l], __fmul_rn(weight[h], value));
    }
  }
#pragma unroll
  for (int h = 0; h < Q_PER_KV; h++) {
    const float* a = acc[h];
    const float low = __fadd_rn(__fadd_rn(a[0], a[1]), __fadd_rn(a[2], a[3]));
    const float high = __fadd_rn(__fadd_rn(a[4], a[5]), __fadd_rn(a[6], a[7]));
    partials[(partial_index + (i64)h * gridDim.x) * DIM + tid] = __fadd_rn(low, high);
  }
}

#define SPLITS_IN_FLIGHT 32   // splits that a thread loads together

__device__ __forceinline__ void load_splits(float values[SPLITS_IN_FLIGHT], const float* partial,
                                            int count) {
#pragma unroll
  for (int u = 0; u < SPLITS_IN_FLIGHT; u++) values[u] = u < count ? partial[(i64)u * DIM] : 0.0f;
}

// Grid: x query heads, y tokens. A thread has one dimension.
extern "C" __global__ void __launch_bounds__(THREADS)
merge(const float* gate, const int* starts, const int* lengths, int m, int first_token,
      int max_splits, const float* stats, const float* partials, float* out, Strides gate_strides,
      Strides out_strides, QuantisedActivations quantised) {
  __shared__ float split_weight[THREADS], weighted_exp_sum[THREADS], warp_max[WARPS], result[DIM];
  const int tid = threadIdx.x, head = blockIdx.x, token = first_token + blockIdx.y;
  pdl_wait();
  pdl_launch_dependents();
  const TokenInfo token_info = locate_token(token, RowInfo{starts, lengths, m});
  const int n_splits = (token_info.n_keys + SPLIT_KEYS - 1) / SPLIT_KEYS;
  const i64 partial_index = ((i64)blockIdx.y * gridDim.x + head) * max_splits;
  const float2* const split_stats = (const float2*)stats + partial_index;
  const float* const partial = partials + partial_index * DIM + tid;
  const float gate_value =
      sigmoid_of(gate[token * gate_strides.token + head * gate_strides.head + tid]);

  float values[SPLITS_IN_FLIGHT];  // in flight while the split weights are computed
  load_splits(values, partial, n_splits);
  float max_score = NEG_INFINITY;
  for (int i = tid; i < n_splits; i += THREADS) max_score = fmaxf(max_score, split_stats[i].x);
#pragma unroll
  for (int step = 16; step; step /= 2)
    max_score = fmaxf(max_score, __shfl_xor_sync(~0u, max_score, step));
  if (tid % 32 == 0) warp_max[tid / 32] = max_score;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < WARPS; w++) max_score = fmaxf(max_score, warp_max[w]);

  float denominator = 0.0f, numerator = 0.0f;
  for (int i = 0; i < n_splits; i += SPLITS_IN_FLIGHT) {
    if (i % THREADS == 0) {
      __syncthreads();
      split_weight[tid] = weighted_exp_sum[tid] = 0.0f;  // a missing split adds +0
      if (i + tid < n_splits) {
        const float2 stat = split_stats[i + tid];
        split_weight[tid] = exp_of(__fsub_rn(stat.x, max_score));
        weighted_exp_sum[tid] = __fmul_rn(split_weight[tid], stat.y);
      }
      __syncthreads();
    }
#pragma unroll
    for (int u = 0; u < SPLITS_IN_FLIGHT; u++) {
      denominator = __fadd_rn(denominator, weighted_exp_sum[i % THREADS + u]);
      numerator = __fadd_rn(numerator, __fmul_rn(split_weight[i % THREADS + u], values[u]));
    }
    load_splits(values, partial + (i64)(i + SPLITS_IN_FLIGHT) * DIM,
                n_splits - i - SPLITS_IN_FLIGHT);
  }
  const float value = __fmul_rn(__fdiv_rn(numerator, denominator), gate_value);
  out[token * out_strides.token + head * out_strides.head + tid] = value;
  if (!quantised.limbs) return;
  result[tid] = value;
  __syncthreads();
  if (tid >= 32) return;
  float group_values[8];  // adjacent columns, as `quantize_group` expects
#pragma unroll
  for (int i = 0; i < 8; i++) group_values[i] = result[tid * 8 + i];
  quantize_group(group_values, head, token, quantised);
}
