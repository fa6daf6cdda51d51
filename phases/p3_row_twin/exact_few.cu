// exact-23 for up to 16 rows on int8 tensor cores. A block keeps the activations of up to 16 groups
// of 256 columns in shared memory; a warp has a group and walks down tiles of 16 weight rows: it
// reads each packed weight word once and multiplies it with every activation row while it is in a
// register. Teams of warps share the activations, each on tiles of its own. Matrices of up to three
// types share a launch, some blocks each. Compiled by NVRTC with -DKIND_A, -DKIND_B and -DKIND_C (0
// for none), -DWARPS (of a team), -DTEAMS, -DALONE (one block has all of K) and -DPACK (one or two
// activation rows, their limbs side by side as columns). limbs.cuh and tiles.cuh stand before this
// source. The text of the arithmetic is contracts/arithmetic.md; its items are in brackets.

// Scales are taken out of their words anew for every eight rows: kept over them they would not fit.
template <int KIND>
__device__ __forceinline__ void forget_scales(Tile<KIND>& tile) {
#pragma unroll
  for (int i = 0; i < 2; i++)
    asm volatile("" : "+r"(tile.scale[i].x), "+r"(tile.scale[i].y), "+r"(tile.scale[i].z),
                      "+r"(tile.scale[i].w));
}

#define LIMBS (PACK ? 1 : 3)           // n-tiles of B a sub-block
#define SUMS (PACK ? 1 : 4)
#define B_PAIRS (8 * LIMBS * 32)       // of two words, a group and eight activation rows

// Integer parts of one group, one tile and one n-tile: scaled sums p and minimum sums q. [5]
// `b` is shared memory that each lane filled for itself.
template <int KIND>
__device__ __forceinline__ void sums_of(int p[LIMBS][4], int q[SUMS][4], const Tile<KIND>& tile,
                                        const uint2* b, const u32 minimum[SUMS], int lane) {
#pragma unroll
  for (int l = 0; l < LIMBS; l++)
#pragma unroll
    for (int i = 0; i < 4; i++) p[l][i] = 0;
#pragma unroll
  for (int j = 0; j < 8; j++) {
    u32 a[4];
    fragment(a, tile, j);
#pragma unroll
    for (int l = 0; l < LIMBS; l++) {
      const uint2 w = b[(j * LIMBS + l) * 32 + lane];
      int c[4];
      if constexpr (KIND == 6) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          mma16(c, a[2 * h], a[2 * h + 1], h ? w.y : w.x);
#pragma unroll
          for (int i = 0; i < 4; i++)
            p[l][i] += signed_byte_of(tile.scale[i / 2], 2 * j + h) * c[i];
        }
      } else {
        mma32<KIND>(c, a, w.x, w.y);
#pragma unroll
        for (int i = 0; i < 4; i++) p[l][i] += (int)byte_of(tile.scale[i / 2], j) * c[i];
      }
    }
  }
  if constexpr (KIND == 4 || KIND == 5) {
    const int t = lane % 4;
    const u32 m0 = t == 0 ? tile.scale[0].z : t == 1 ? tile.scale[0].w : 0;
    const u32 m1 = t == 0 ? tile.scale[1].z : t == 1 ? tile.scale[1].w : 0;
#pragma unroll
    for (int l = 0; l < SUMS; l++) mma16(q[l], m0, m1, minimum[l]);
  }
}

template <int KIND>
__device__ __forceinline__ float value_of(i64 p, i64 q, u32 d, float s) {
  if constexpr (KIND == 6)
    return __fmul_rn(__fmul_rn(half_of(d), __fmul_rn(__ll2float_rn(p), 0.25f)), s);
  else
    return __fmul_rn(__fsub_rn(__fmul_rn(half_of(d), __ll2float_rn(p)),
                               __fmul_rn(half_of(d >> 16), __ll2float_rn(q))), s);
}

__device__ __forceinline__ i64 with_neighbour(i64 mine, int lane) {
  const i64 shifted = lane % 2 ? mine << 16 : mine;  // odd lanes hold limbs 2 and 3
  return shifted + __shfl_xor_sync(~0u, shifted, 1);
}

// Values of one group and tile for the eight activation rows of an n-tile, in a lane's places:
// v[i] is row g + 8 * (i / 2) and column 2t + i % 2; with PACK v[0], v[2] are column t / 2.
template <int KIND>
__device__ __forceinline__ void values(float v[4], const Tile<KIND>& tile, const uint2* b,
                                       const u32 minimum[SUMS], float s0, float s1, int lane) {
  if constexpr (KIND == 8) {
    float even[4], pair[4], four[4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      u32 a[4];
      fragment(a, tile, j);
      int c[LIMBS][4];
#pragma unroll
      for (int l = 0; l < LIMBS; l++) {
        const uint2 w = b[(j * LIMBS + l) * 32 + lane];
        mma32<KIND>(c[l], a, w.x, w.y);
      }
#pragma unroll
      for (int i = 0; i < 4; i += PACK ? 2 : 1) {
#if PACK
        const i64 p = with_neighbour((i64)c[0][i + 1] * 256 + c[0][i], lane);
#else
        const i64 p = joined(c[0][i], c[1][i], c[2][i]);
#endif
        const float d = half_of(word_of(tile.scale[i / 2], j / 2) >> (16 * (j % 2)));
        const float x = __fmul_rn(d, __ll2float_rn(p));
        if (j % 2 == 0) even[i] = x;
        else if (j % 4 == 1) pair[i] = __fadd_rn(even[i], x);
        else if (j == 3) four[i] = __fadd_rn(pair[i], __fadd_rn(even[i], x));
        else v[i] = __fadd_rn(four[i], __fadd_rn(pair[i], __fadd_rn(even[i], x)));
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i += PACK ? 2 : 1) v[i] = __fmul_rn(v[i], i % 2 ? s1 : s0);
  } else {
    int p[LIMBS][4], q[SUMS][4];
    sums_of(p, q, tile, b, minimum, lane);
#pragma unroll
    for (int i = 0; i < 4; i += PACK ? 2 : 1) {
      i64 low = 0;
#if PACK
      const i64 whole = with_neighbour((i64)p[0][i + 1] * 256 + p[0][i], lane);
      if constexpr (KIND != 6) low = with_neighbour((i64)q[0][i + 1] * 256 + q[0][i], lane);
#else
      const i64 whole = joined(p[0][i], p[1][i], p[2][i]);
      if constexpr (KIND != 6)
        low = joined(q[0][i], q[1][i], q[2][i]) + ((i64)q[3][i] << 24);
#endif
      v[i] = value_of<KIND>(whole, low, tile.d[i / 2], i % 2 ? s1 : s0);
    }
  }
}

#define SUM_WORDS (SUMS * 16)  // of B, a group and eight activation rows

struct Rest {  // what a lane needs of a group and eight activation rows beside the limbs
  u32 minimum[SUMS];
  float s0, s1;  // scales of columns 2t and 2t + 1; with PACK s0 of column t / 2
};

__device__ __forceinline__ Rest rest_of(const u32* sums, const float* scales, int lane) {
  const int g = lane / 4, t = lane % 4, first = PACK ? t / 2 : 2 * t;
  Rest rest;
#pragma unroll
  for (int l = 0; l < SUMS; l++) rest.minimum[l] = t < 2 ? sums[(l * 8 + g) * 2 + t] : 0;
  rest.s0 = scales[first];
  rest.s1 = PACK ? 0.0f : scales[first + 1];
  return rest;
}

__device__ __forceinline__ void meet(int team) {  // all warps of a team
  asm volatile("bar.sync %0, %1;" :: "r"(team + 1), "n"(WARPS * 32) : "memory");
}

#define AHEAD 12  // segments that a thread reads at once

// out[row][n], row < m. The teams of a part's blocks x walk its tiles in turn; block y takes WARPS
// groups, whole segments of four unless it is alone. Values meet in shared memory and are added in
// order [6]; with several slices the block that comes last for its tiles adds the slices' segments
// in order. Activations may be those of a kernel that still runs: they are copied after the wait.
// Columns of B past row m hold whatever memory held; so do their products, which nobody reads.
template <int KIND>
__device__ __forceinline__ void multiply(const Part& part, const Integers& x, int groups, int m,
                                         int) {
  const int nts = x.nts, tiles = part.tiles, block = blockIdx.x - part.first;
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % 32, team = threadIdx.x / (WARPS * 32);
  const int tid = threadIdx.x % (WARPS * 32), warp = tid / 32, g = lane / 4, t = lane % 4;
  const int front = blockIdx.y * WARPS, group = front + warp, columns = PACK ? 2 : nts * 8;
#if ALONE
  const int mine = WARPS;  // groups of this slice
  const bool busy = true;
#else
  const int mine = min(WARPS, groups - front);
  const bool busy = group < groups;
#endif
  u32* const sums = (u32*)shared;                                  // [WARPS][nts][SUM_WORDS]
  float* const scales = (float*)(sums + WARPS * nts * SUM_WORDS);  // [WARPS][nts][8]
  uint2* const room = (uint2*)(scales + WARPS * nts * 8);          // [WARPS][nts][B_PAIRS], values
  const uint2* const b = room + warp * nts * B_PAIRS;
  float* const values_of = (float*)(room + WARPS * nts * B_PAIRS);
  const int page = WARPS * 16 * columns;  // values of one tile
  float* const value = values_of + team * 2 * page;
  const int first = block * TEAMS + team, step = part.blocks * TEAMS;
  const i64 stride = (i64)step * groups * Tile<KIND>::PACKED;
  const uint4* at = part.weights + ((i64)first * groups + group) * Tile<KIND>::PACKED;
  Tile<KIND> held;
  if (busy && first < tiles) fetch(held, at, lane);
  wait_for_inputs();
  let_the_next_start();
  fill(sums, x.sums + (i64)front * nts * SUM_WORDS, mine * nts * SUM_WORDS * 4);
  fill(scales, x.scales + (i64)front * nts * 8, mine * nts * 32);
  fill(room, (const uint2*)x.limbs + (i64)front * nts * B_PAIRS, mine * nts * B_PAIRS * 8);
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  for (int tile = first, turn = 0; tile < tiles; tile += step, turn ^= page) {
    if (busy) {
      for (int nt = 0; nt < nts; nt++) {
        const int which = warp * nts + nt;
        const Rest own = rest_of(sums + which * SUM_WORDS, scales + which * 8, lane);
        forget_scales(held);
        float v[4];
        values(v, held, b + nt * B_PAIRS, own.minimum, own.s0, own.s1, lane);
        float* place = value + turn + (warp * 16 + g) * columns + (PACK ? t / 2 : nt * 8 + 2 * t);
#if PACK
        if (t % 2 == 0) {
          place[0] = v[0];
          place[8 * columns] = v[2];
        }
#else
        *(float2*)place = make_float2(v[0], v[1]);
        *(float2*)(place + 8 * columns) = make_float2(v[2], v[3]);
#endif
      }
      at += stride;
      if (tile + step < tiles) fetch(held, at, lane);
    }
    meet(team);
    for (int i = tid; i < 16 * m; i += WARPS * 32) {
      const int row = i % 16, column = i / 16;
      const float* from = value + turn + row * columns + column;
      float v[WARPS], y = 0.0f;
#pragma unroll
      for (int k = 0; k < WARPS; k++) v[k] = k < mine ? from[k * 16 * columns] : 0.0f;
#pragma unroll
      for (int k = 0; k < WARPS; k += 4) {
        float s = 0.0f;
#pragma unroll
        for (int l = k; l < k + 4 && l < WARPS; l++) s = __fadd_rn(s, v[l]);
        y = __fadd_rn(y, s);
#if !ALONE
        if (k < mine)
          __stcg(part.partial + (((i64)blockIdx.y * WARPS + k) / 4 * tiles + tile) * m * 16 + i, s);
#endif
      }
#if ALONE
      put(part.outs, tile, row, column, y);
#endif
    }
  }
#if !ALONE
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(part.arrived + block, 1) == (int)gridDim.y - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  const int segments = (groups + 3) / 4;
  for (int i = threadIdx.x;; i += THREADS) {  // all of the block's tiles side by side
    const int j = i / (16 * m), tile = block * TEAMS + j % TEAMS + j / TEAMS * step;
    if (j / TEAMS * step >= tiles) break;
    if (tile >= tiles) continue;
    const int at = i % (16 * m);
    const float* const from = part.partial + (i64)tile * m * 16 + at;
    float y = 0.0f;
    for (int s = 0; s < segments; s += AHEAD) {
      float v[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; k++)
        v[k] = s + k < segments ? __ldcg(from + (i64)(s + k) * tiles * m * 16) : 0.0f;
#pragma unroll
      for (int k = 0; k < AHEAD; k++) y = __fadd_rn(y, v[k]);  // an absent segment adds +0
    }
    put(part.outs, tile, at % 16, at / 16, y);
  }
  if (threadIdx.x == 0) part.arrived[block] = 0;
#endif
}

