// Attention of every row's tokens over the row's own slot (contracts/arithmetic.md, item 24).
// `split` makes one split of 64 keys of one token and one KV head, and appends the token's key and
// value; `merge` joins a head's splits in order, and makes the integers of its result, of which a
// head is a group. Compiled by NVRTC with -DSHARING (query heads that share a KV head), and for
// caches narrower than f32 with -DNARROW, their type's name in PTX. Contraction is off; each
// + - * / below rounds once. limbs.cuh stands before this source, and device.cuh before that; a
// kernel may start before the one before it has ended, and reads nothing until then.
//
// Nothing reads what a launch writes: keys from `length` on, those of this very step, come from
// k and v as they were handed in, so tokens of a chunk need not wait for one another; a narrow
// cache would have rounded them, so they are rounded here too.

#define DIM 256
#define SPLIT 64
#define LANES 8          // of a split's keys
#define THREADS 256
#define WARPS 8
#define KEYS 4           // of a warp, in registers at once
#define ROUNDS (SPLIT / WARPS / KEYS)
#define WIDE ((SHARING + 3) / 4 * 4)   // weights of a key's query heads, in whole float4
#define NO_SCORE __int_as_float(0xff800000)  // minus infinity
#define VALUES (SHARING * KEYS)        // scores that a warp makes in a round

__device__ __forceinline__ void copy_16(float* to, const float* from, bool there) {
  // asynchronous, past L1; an absent row becomes +0 and is not read
  const u32 at = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
}

#ifdef NARROW
typedef unsigned short Held;  // a value of a cache

__device__ __forceinline__ Held rounded(float x) {  // to nearest even; what is too large, to inf
  Held y;
  asm("cvt.rn." NARROW ".f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float widened(Held x) {  // exact
  float y;
  asm("cvt.f32." NARROW " %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
#else
typedef float Held;

__device__ __forceinline__ float rounded(float x) { return x; }
__device__ __forceinline__ float widened(float x) { return x; }
#endif

struct Rows {  // where a step's rows begin among its tokens, and what their slots held before
  const int* starts;   // i32[m + 1]; null when every row has one token
  const int* lengths;  // i32[m]
  int m;
};

struct Place {  // of one token
  int row, start, length, keys;  // keys: how many it sees, itself among them
};

// Call with all threads of a block. A row of no tokens ends where it begins, so no token is its.
__device__ __forceinline__ Place place_of(int token, const Rows& rows) {
  Place p;
  p.row = token, p.start = token;
  if (rows.starts) {
    p.row = 0;
    for (int i = 0; i < rows.m; i += THREADS) {
      const int at = i + threadIdx.x;
      p.row += __syncthreads_count(at < rows.m && rows.starts[at + 1] <= token);
    }
    p.start = rows.starts[p.row];
  }
  p.length = rows.lengths[p.row];
  p.keys = p.length + (token - p.start) + 1;
  return p;
}

struct Source {  // a head's keys or values: those of the slot, then those of this step
  const Held* held;
  const float* fresh;  // where the step's would begin if key 0 were among them
  i64 held_row, fresh_row;
  int length;

#ifdef NARROW
  static __device__ __forceinline__ ushort4 four(const float* from) {  // as a cache holds them
    const float4 x = __ldg((const float4*)from);
    return make_ushort4(rounded(x.x), rounded(x.y), rounded(x.z), rounded(x.w));
  }

  // A lane's dimensions of a key: 4 lane..4 lane + 3, and those 128 further on.
  __device__ __forceinline__ void load(float4 to[2], int key, int lane) const {
    const bool old = key < length;
    const ushort4* const at = (const ushort4*)(held + key * held_row) + lane;
    const float* const own = fresh + key * fresh_row + 4 * lane;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const ushort4 x = old ? __ldg(at + 32 * i) : four(own + 128 * i);
      to[i] = make_float4(widened(x.x), widened(x.y), widened(x.z), widened(x.w));
    }
  }

  // Four values on their way to shared memory, as a cache holds them; +0 for an absent key.
  __device__ __forceinline__ void copy(Held* to, int key, int d, bool there) const {
    if (key < length) {
      const u32 at = (u32)__cvta_generic_to_shared(to);
      asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                   :: "r"(at), "l"(held + key * held_row + d), "r"(there ? 8 : 0) : "memory");
    } else {
      *(ushort4*)to = there ? four(fresh + key * fresh_row + d) : make_ushort4(0, 0, 0, 0);
    }
  }
#else
  __device__ __forceinline__ const float* operator[](int key) const {
    const bool old = key < length;
    return (old ? held : fresh) + key * (old ? held_row : fresh_row);
  }
  __device__ __forceinline__ void load(float4 to[2], int key, int lane) const {
    const float4* const at = (const float4*)(*this)[key] + lane;
    to[0] = __ldg(at);  // read-only: what the launch writes lies elsewhere
    to[1] = __ldg(at + 32);
  }
  __device__ __forceinline__ void copy(Held* to, int key, int d, bool there) const {
    copy_16(to, (*this)[key] + d, there);
  }
#endif
};

struct Strides {
  i64 token, head;
};

// Grid: x splits, y tokens times KV heads.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
split(const float* q, const float* k, const float* v, const u64* keys, const u64* values,
      const int* starts, const int* lengths, int m, int first, int groups, Strides q_at,
      Strides k_at, Strides v_at, Strides key_at, Strides value_at, float* tops, float* parts) {
  extern __shared__ float4 shared[];
  Held* const v_rows = (Held*)shared;                // [SPLIT][DIM]
  float* const q_rows = (float*)(v_rows + SPLIT * DIM);  // [SHARING][DIM]
  float* const scores = q_rows + SHARING * DIM;        // [SPLIT][WIDE], then their weights
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int local = blockIdx.y / groups, group = blockIdx.y % groups, token = first + local;
  wait_for_inputs();
  let_the_next_start();
  const Place place = place_of(token, Rows{starts, lengths, m});
  const int start = blockIdx.x * SPLIT, here = min(place.keys - start, SPLIT);
  if (here <= 0) return;

  Held* const slot_k = (Held*)keys[place.row] + group * key_at.head;
  Held* const slot_v = (Held*)values[place.row] + group * value_at.head;
  const float* const own_k = k + place.start * k_at.token + group * k_at.head;
  const float* const own_v = v + place.start * v_at.token + group * v_at.head;
  const Source from_k = {slot_k, own_k - place.length * k_at.token, key_at.token, k_at.token,
                         place.length};
  const Source from_v = {slot_v, own_v - place.length * v_at.token, value_at.token, v_at.token,
                         place.length};

  // The first round's keys, then every value, then the second round's keys: all in flight at once.
  // A lane holds dimensions 4 lane..4 lane + 3 of a key, and those 128 further on.
  float4 held[ROUNDS][KEYS][2];
#pragma unroll
  for (int round = 0; round < ROUNDS; round++) {
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
      const int j = (round * KEYS + i) * WARPS + warp;
      held[round][i][0] = held[round][i][1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (j < here) from_k.load(held[round][i], start + j, lane);
    }
    if (round == 0) {
      for (int i = tid; i < SHARING * DIM / 4; i += THREADS) {
        const int h = i / (DIM / 4), d = i % (DIM / 4) * 4;
        copy_16(q_rows + h * DIM + d,
                q + token * q_at.token + (group * SHARING + h) * q_at.head + d, true);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
      const int whole = (here + LANES - 1) / LANES * LANES;  // up to a full round of lanes
      for (int j = tid / (DIM / 4); j < whole; j += THREADS / (DIM / 4)) {
        const int d = tid % (DIM / 4) * 4;
        from_v.copy(v_rows + j * DIM + d, start + min(j, here - 1), d, j < here);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
  }
  if (start + here == place.keys) {  // this token's own key and value, which nobody reads here
    const i64 at = place.keys - 1;
    slot_k[at * key_at.token + tid] = rounded(own_k[(token - place.start) * k_at.token + tid]);
    slot_v[at * value_at.token + tid] = rounded(own_v[(token - place.start) * v_at.token + tid]);
  }
  asm volatile("cp.async.wait_group 1;" ::: "memory");  // the queries; values are still on their way
  __syncthreads();

  // Scores: SUM is 128 lanes, lane i with x_i + x_(i + 128), then adjacent pairs: two levels inside
  // a lane, five across the warp. Which of two equal-sized sums stands left changes no bit. A lane
  // of the text begins at +0; without it only the sign of a sum of zeros can differ, and a score
  // of -0 does in every later step what +0 does. Sums travel so that each exchange halves what a
  // lane still has to add: after it, `base` says which of the warp's VALUES it kept.
#pragma unroll
  for (int round = 0; round < ROUNDS; round++) {
    float sum[VALUES];
#pragma unroll
    for (int h = 0; h < SHARING; h++) {
      const float4 a = ((const float4*)(q_rows + h * DIM))[lane];
      const float4 b = ((const float4*)(q_rows + h * DIM))[lane + 32];
#pragma unroll
      for (int i = 0; i < KEYS; i++) {
        const float4 x = held[round][i][0], y = held[round][i][1];
        const float l0 = __fadd_rn(__fmul_rn(a.x, x.x), __fmul_rn(b.x, y.x));
        const float l1 = __fadd_rn(__fmul_rn(a.y, x.y), __fmul_rn(b.y, y.y));
        const float l2 = __fadd_rn(__fmul_rn(a.z, x.z), __fmul_rn(b.z, y.z));
        const float l3 = __fadd_rn(__fmul_rn(a.w, x.w), __fmul_rn(b.w, y.w));
        sum[i * SHARING + h] = __fadd_rn(__fadd_rn(l0, l1), __fadd_rn(l2, l3));
      }
    }
    int base = 0, left = VALUES;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const bool upper = lane & step;
      if (left % 2 == 0) {
        left /= 2;
#pragma unroll
        for (int i = 0; i < VALUES / 2; i++)
          if (i < left) {
            const float kept = upper ? sum[i + left] : sum[i], given = upper ? sum[i] : sum[i + left];
            sum[i] = __fadd_rn(kept, __shfl_xor_sync(~0u, given, step));
          }
        base += upper ? left : 0;
      } else {
#pragma unroll
        for (int i = 0; i < VALUES; i++)
          if (i < left) sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], step));
      }
    }
#pragma unroll
    for (int i = 0; i < VALUES; i++)
      if (i < left) {
        const int number = base + i, j = (round * KEYS + number / SHARING) * WARPS + warp;
        scores[j * WIDE + number % SHARING] = __fmul_rn(sum[i], 0.0625f);
      }
  }
  __syncthreads();

  // Weights of a query head, a warp each: lane has keys `lane` and `lane + 32`. A score that is NaN
  // is passed over by the maximum and makes the head's sums NaN all the same.
  const i64 part_of = ((i64)local * groups + group) * SHARING * gridDim.x + blockIdx.x;
  for (int h = warp; h < SHARING; h += WARPS) {
    float* const at = scores + lane * WIDE + h;
    const bool one = lane < here, two = lane + 32 < here;
    float top = fmaxf(one ? at[0] : NO_SCORE, two ? at[32 * WIDE] : NO_SCORE);
#pragma unroll
    for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    at[0] = one ? exp_of(__fsub_rn(at[0], top)) : 0.0f;
    at[32 * WIDE] = two ? exp_of(__fsub_rn(at[32 * WIDE], top)) : 0.0f;
    __syncwarp();
    float low = 0.0f;  // lane l of the text, in threads l, l + 8, l + 16 and l + 24
#pragma unroll
    for (int j = 0; j < SPLIT; j += LANES)
      low = __fadd_rn(low, scores[(j + lane % LANES) * WIDE + h]);
#pragma unroll
    for (int step = 1; step < LANES; step *= 2)
      low = __fadd_rn(low, __shfl_xor_sync(~0u, low, step));
    if (lane == 0) {
      float* const told = tops + 2 * (part_of + (i64)h * gridDim.x);
      told[0] = top, told[1] = low;
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();

  // Weighted values: a thread has one dimension, for each query head eight lanes of keys.
  float acc[SHARING][LANES];
#pragma unroll
  for (int h = 0; h < SHARING; h++)
#pragma unroll
    for (int l = 0; l < LANES; l++) acc[h][l] = 0.0f;
  for (int j = 0; j < here; j += LANES) {
#pragma unroll
    for (int l = 0; l < LANES; l++) {
      const float value = widened(v_rows[(j + l) * DIM + tid]);
      float weight[WIDE];
#pragma unroll
      for (int i = 0; i < WIDE / 4; i++)
        ((float4*)weight)[i] = ((const float4*)(scores + (j + l) * WIDE))[i];
#pragma unroll
      for (int h = 0; h < SHARING; h++)
        acc[h][l] = __fadd_rn(acc[h][l], __fmul_rn(weight[h], value));
    }
  }
#pragma unroll
  for (int h = 0; h < SHARING; h++) {
    const float* a = acc[h];
    const float low = __fadd_rn(__fadd_rn(a[0], a[1]), __fadd_rn(a[2], a[3]));
    const float high = __fadd_rn(__fadd_rn(a[4], a[5]), __fadd_rn(a[6], a[7]));
    parts[(part_of + (i64)h * gridDim.x) * DIM + tid] = __fadd_rn(low, high);
  }
}

#define AHEAD 32   // partial results that a thread has in flight

__device__ __forceinline__ void ahead(float held[AHEAD], const float* from, int there) {
#pragma unroll
  for (int u = 0; u < AHEAD; u++) held[u] = u < there ? from[(i64)u * DIM] : 0.0f;
}

// Grid: x query heads, y tokens; a thread has one dimension.
extern "C" __global__ void __launch_bounds__(THREADS)
merge(const float* gate, const int* starts, const int* lengths, int m, int first, int splits,
      const float* tops, const float* parts, float* out, Strides gate_at, Strides out_at,
      Integers to) {
  __shared__ float share[THREADS], low[THREADS], largest[WARPS], made[DIM];
  const int tid = threadIdx.x, head = blockIdx.x, token = first + blockIdx.y;
  wait_for_inputs();
  let_the_next_start();
  const Place place = place_of(token, Rows{starts, lengths, m});
  const int own = (place.keys + SPLIT - 1) / SPLIT;
  const i64 part = ((i64)blockIdx.y * gridDim.x + head) * splits;
  const float2* const told = (const float2*)tops + part;
  const float* const from = parts + part * DIM + tid;
  const float opened = sigmoid_of(gate[token * gate_at.token + head * gate_at.head + tid]);

  float held[AHEAD];  // on its way while the shares are found
  ahead(held, from, own);
  float top = NO_SCORE;
  for (int i = tid; i < own; i += THREADS) top = fmaxf(top, told[i].x);
#pragma unroll
  for (int step = 16; step; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  if (tid % 32 == 0) largest[tid / 32] = top;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < WARPS; w++) top = fmaxf(top, largest[w]);

  float bottom = 0.0f, whole = 0.0f;
  for (int i = 0; i < own; i += AHEAD) {
    if (i % THREADS == 0) {
      __syncthreads();
      share[tid] = low[tid] = 0.0f;  // an absent split adds +0
      if (i + tid < own) {
        const float2 mine = told[i + tid];
        share[tid] = exp_of(__fsub_rn(mine.x, top));
        low[tid] = __fmul_rn(share[tid], mine.y);
      }
      __syncthreads();
    }
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      bottom = __fadd_rn(bottom, low[i % THREADS + u]);
      whole = __fadd_rn(whole, __fmul_rn(share[i % THREADS + u], held[u]));
    }
    ahead(held, from + (i64)(i + AHEAD) * DIM, own - i - AHEAD);
  }
  const float value = __fmul_rn(__fdiv_rn(whole, bottom), opened);
  out[token * out_at.token + head * out_at.head + tid] = value;
  if (!to.limbs) return;
  made[tid] = value;
  __syncthreads();
  if (tid >= 32) return;
  float eight[8];  // side by side, as a lane has them
#pragma unroll
  for (int i = 0; i < 8; i++) eight[i] = made[tid * 8 + i];
  store_group(eight, head, token, to);
}
