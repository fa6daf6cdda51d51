// exact-23 product of 1 to 16 activation rows on int8 tensor cores: out[m, n] = x[m, k] W[n, k]^T.
//
// The activations of up to 16 groups of 256 columns stay in shared memory. A warp owns one group
// and loops over tiles of 16 weight rows. It loads each packed weight word once and multiplies it
// with every activation row from the register. The warps of a team cover K; the teams of a block
// share the activations and take different tiles.
//
// NVRTC options: -DKIND_A, -DKIND_B, -DKIND_C (weight types; 0 is none), -DWARPS (warps per team),
// -DTEAMS, -DTHREADS, -DSINGLE_SLICE (one block covers all of K) and -DPACK_LIMBS (one or two rows,
// whose limbs are the columns of one B tile). Included after limbs.cuh and tiles.cuh. Numbers in
// brackets are items of contracts/arithmetic.md.

// Makes the compiler extract the scales again for each n-tile. If it hoisted the extracted scales
// out of that loop, registers would spill.
template <int KIND>
__device__ __forceinline__ void keep_scales_packed(Tile<KIND>& tile) {
#pragma unroll
  for (int i = 0; i < 2; i++)
    asm volatile("" : "+r"(tile.scale[i].x), "+r"(tile.scale[i].y), "+r"(tile.scale[i].z),
                      "+r"(tile.scale[i].w));
}

#define LIMB_TILES (PACK_LIMBS ? 1 : 3)           // n-tiles of B per sub-block
#define SUM_TILES (PACK_LIMBS ? 1 : 4)
#define B_PAIRS (8 * LIMB_TILES * 32)       // u32 pairs of limbs per group and n-tile

// Integer dot products of one group, one weight tile and one n-tile [5]: p sums scale * quant *
// activation, q sums minimum * activation. `b` points to the n-tile's limbs in shared memory.
template <int KIND>
__device__ __forceinline__ void dot_group(int p[LIMB_TILES][4], int q[SUM_TILES][4],
                                          const Tile<KIND>& tile, const uint2* b,
                                          const u32 minimum[SUM_TILES], int lane) {
#pragma unroll
  for (int l = 0; l < LIMB_TILES; l++)
#pragma unroll
    for (int i = 0; i < 4; i++) p[l][i] = 0;
#pragma unroll
  for (int j = 0; j < 8; j++) {
    u32 a[4];
    a_fragment(a, tile, j);
#pragma unroll
    for (int l = 0; l < LIMB_TILES; l++) {
      const uint2 w = b[(j * LIMB_TILES + l) * 32 + lane];
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
    for (int l = 0; l < SUM_TILES; l++) mma16(q[l], m0, m1, minimum[l]);
  }
}

template <int KIND>
__device__ __forceinline__ float scale_dot(i64 p, i64 q, u32 d, float s) {
  if constexpr (KIND == 6)
    return __fmul_rn(__fmul_rn(half_to_float(d), __fmul_rn(__ll2float_rn(p), 0.25f)), s);
  else
    return __fmul_rn(__fsub_rn(__fmul_rn(half_to_float(d), __ll2float_rn(p)),
                               __fmul_rn(half_to_float(d >> 16), __ll2float_rn(q))), s);
}

__device__ __forceinline__ i64 add_neighbour_limbs(i64 mine, int lane) {
  const i64 shifted = lane % 2 ? mine << 16 : mine;  // odd lanes have limbs 2 and 3
  return shifted + __shfl_xor_sync(~0u, shifted, 1);
}

// f32 products of one group and one weight tile with the eight activation rows of an n-tile.
// v[i] is weight row g + 8 * (i / 2), activation row 2t + i % 2. With PACK_LIMBS only v[0] and v[2]
// are set, for activation row t / 2.
template <int KIND>
__device__ __forceinline__ void group_values(float v[4], const Tile<KIND>& tile, const uint2* b,
                                       const u32 minimum[SUM_TILES], float s0, float s1, int lane) {
  if constexpr (KIND == 8) {
    float even[4], pair[4], four[4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      u32 a[4];
      a_fragment(a, tile, j);
      int c[LIMB_TILES][4];
#pragma unroll
      for (int l = 0; l < LIMB_TILES; l++) {
        const uint2 w = b[(j * LIMB_TILES + l) * 32 + lane];
        mma32<KIND>(c[l], a, w.x, w.y);
      }
#pragma unroll
      for (int i = 0; i < 4; i += PACK_LIMBS ? 2 : 1) {
#if PACK_LIMBS
        const i64 p = add_neighbour_limbs((i64)c[0][i + 1] * 256 + c[0][i], lane);
#else
        const i64 p = join_limbs(c[0][i], c[1][i], c[2][i]);
#endif
        const float d = half_to_float(word_of(tile.scale[i / 2], j / 2) >> (16 * (j % 2)));
        const float x = __fmul_rn(d, __ll2float_rn(p));
        if (j % 2 == 0) even[i] = x;
        else if (j % 4 == 1) pair[i] = __fadd_rn(even[i], x);
        else if (j == 3) four[i] = __fadd_rn(pair[i], __fadd_rn(even[i], x));
        else v[i] = __fadd_rn(four[i], __fadd_rn(pair[i], __fadd_rn(even[i], x)));
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i += PACK_LIMBS ? 2 : 1) v[i] = __fmul_rn(v[i], i % 2 ? s1 : s0);
  } else {
    int p[LIMB_TILES][4], q[SUM_TILES][4];
    dot_group(p, q, tile, b, minimum, lane);
#pragma unroll
    for (int i = 0; i < 4; i += PACK_LIMBS ? 2 : 1) {
      i64 q_total = 0;
#if PACK_LIMBS
      const i64 p_total = add_neighbour_limbs((i64)p[0][i + 1] * 256 + p[0][i], lane);
      if constexpr (KIND != 6)
        q_total = add_neighbour_limbs((i64)q[0][i + 1] * 256 + q[0][i], lane);
#else
      const i64 p_total = join_limbs(p[0][i], p[1][i], p[2][i]);
      if constexpr (KIND != 6)
        q_total = join_limbs(q[0][i], q[1][i], q[2][i]) + ((i64)q[3][i] << 24);
#endif
      v[i] = scale_dot<KIND>(p_total, q_total, tile.d[i / 2], i % 2 ? s1 : s0);
    }
  }
}

#define SUM_WORDS (SUM_TILES * 16)  // u32 words of sums per group and n-tile

struct SumsAndScales {  // one lane's activation sums and scales for a group and an n-tile
  u32 minimum[SUM_TILES];
  float s0, s1;  // rows 2t and 2t + 1; with PACK_LIMBS s0 is row t / 2
};

__device__ __forceinline__ SumsAndScales load_sums_and_scales(const u32* sums, const float* scales,
                                                              int lane) {
  const int g = lane / 4, t = lane % 4, first_column = PACK_LIMBS ? t / 2 : 2 * t;
  SumsAndScales loaded;
#pragma unroll
  for (int l = 0; l < SUM_TILES; l++) loaded.minimum[l] = t < 2 ? sums[(l * 8 + g) * 2 + t] : 0;
  loaded.s0 = scales[first_column];
  loaded.s1 = PACK_LIMBS ? 0.0f : scales[first_column + 1];
  return loaded;
}

__device__ __forceinline__ void team_barrier(int team) {
  asm volatile("bar.sync %0, %1;" :: "r"(team + 1), "n"(WARPS * 32) : "memory");
}

#define SEGMENTS_IN_FLIGHT 12  // partial sums that a thread loads together

// Writes out[row][n] for row < m. Grid: x blocks of the launch parts, y slices of K with WARPS
// groups. A slice is a multiple of four groups (a segment) unless it is the only one.
//
// The warps of a team store their group's products in shared memory; threads then add the groups in
// order [6]. With several slices each block stores segment sums, and the last block to finish a set
// of tiles adds all segments in order.
//
// An earlier kernel may still write the activations, so they are copied after `pdl_wait`. B columns
// past row m are uninitialised; their products are never read.
template <int KIND>
__device__ __forceinline__ void multiply(const LaunchPart& part, const QuantisedActivations& x,
                                         int groups, int m, int) {
  const int n_tiles = x.n_tiles, tiles = part.tiles, block = blockIdx.x - part.first_block;
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % 32, team = threadIdx.x / (WARPS * 32);
  const int tid = threadIdx.x % (WARPS * 32), warp = tid / 32, g = lane / 4, t = lane % 4;
  const int first_group = blockIdx.y * WARPS, group = first_group + warp;
  const int columns = PACK_LIMBS ? 2 : n_tiles * 8;
#if SINGLE_SLICE
  const int slice_groups = WARPS;  // groups in this slice
  const bool has_group = true;
#else
  const int slice_groups = min(WARPS, groups - first_group);
  const bool has_group = group < groups;
#endif
  u32* const sums = (u32*)shared;                                  // [WARPS][n_tiles][SUM_WORDS]
  float* const scales = (float*)(sums + WARPS * n_tiles * SUM_WORDS);  // [WARPS][n_tiles][8]
  uint2* const limbs = (uint2*)(scales + WARPS * n_tiles * 8);          // [WARPS][n_tiles][B_PAIRS]
  const uint2* const b = limbs + warp * n_tiles * B_PAIRS;
  float* const all_values = (float*)(limbs + WARPS * n_tiles * B_PAIRS);
  const int tile_size = WARPS * 16 * columns;  // floats of one tile's products
  float* const team_values = all_values + team * 2 * tile_size;
  const int first_tile = block * TEAMS + team, tile_step = part.blocks * TEAMS;
  const i64 weight_stride = (i64)tile_step * groups * Tile<KIND>::TILE_QUADS;
  const uint4* weights = part.weights + ((i64)first_tile * groups + group) * Tile<KIND>::TILE_QUADS;
  Tile<KIND> weight_tile;
  if (has_group && first_tile < tiles) load_tile(weight_tile, weights, lane);
  pdl_wait();
  pdl_launch_dependents();
  copy_async(sums, x.sums + (i64)first_group * n_tiles * SUM_WORDS,
             slice_groups * n_tiles * SUM_WORDS * 4);
  copy_async(scales, x.scales + (i64)first_group * n_tiles * 8, slice_groups * n_tiles * 32);
  copy_async(limbs, (const uint2*)x.limbs + (i64)first_group * n_tiles * B_PAIRS,
             slice_groups * n_tiles * B_PAIRS * 8);
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  for (int tile = first_tile, buffer = 0; tile < tiles; tile += tile_step, buffer ^= tile_size) {
    if (has_group) {
      for (int n_tile = 0; n_tile < n_tiles; n_tile++) {
        const int n_tile_index = warp * n_tiles + n_tile;
        const SumsAndScales activation =
            load_sums_and_scales(sums + n_tile_index * SUM_WORDS, scales + n_tile_index * 8, lane);
        keep_scales_packed(weight_tile);
        float v[4];
        group_values(v, weight_tile, b + n_tile * B_PAIRS, activation.minimum, activation.s0,
                     activation.s1, lane);
        float* to = team_values + buffer + (warp * 16 + g) * columns +
                    (PACK_LIMBS ? t / 2 : n_tile * 8 + 2 * t);
#if PACK_LIMBS
        if (t % 2 == 0) {
          to[0] = v[0];
          to[8 * columns] = v[2];
        }
#else
        *(float2*)to = make_float2(v[0], v[1]);
        *(float2*)(to + 8 * columns) = make_float2(v[2], v[3]);
#endif
      }
      weights += weight_stride;
      if (tile + tile_step < tiles) load_tile(weight_tile, weights, lane);
    }
    team_barrier(team);
    for (int i = tid; i < 16 * m; i += WARPS * 32) {
      const int row = i % 16, column = i / 16;
      const float* from = team_values + buffer + row * columns + column;
      float v[WARPS], y = 0.0f;
#pragma unroll
      for (int k = 0; k < WARPS; k++) v[k] = k < slice_groups ? from[k * 16 * columns] : 0.0f;
#pragma unroll
      for (int k = 0; k < WARPS; k += 4) {
        float s = 0.0f;
#pragma unroll
        for (int l = k; l < k + 4 && l < WARPS; l++) s = __fadd_rn(s, v[l]);
        y = __fadd_rn(y, s);
#if !SINGLE_SLICE
        if (k < slice_groups)
          __stcg(part.partial_sums + (((i64)blockIdx.y * WARPS + k) / 4 * tiles + tile) * m * 16 +
                     i, s);
#endif
      }
#if SINGLE_SLICE
      store_output(part.outputs, tile, row, column, y);
#endif
    }
  }
#if !SINGLE_SLICE
  __shared__ bool last_block;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0)
    last_block = atomicAdd(part.arrival_counters + block, 1) == (int)gridDim.y - 1;
  __syncthreads();
  if (!last_block) return;
  __threadfence();
  const int segments = (groups + 3) / 4;
  for (int i = threadIdx.x;; i += THREADS) {  // all tiles of this block, interleaved
    const int tile_number = i / (16 * m);
    const int tile = block * TEAMS + tile_number % TEAMS + tile_number / TEAMS * tile_step;
    if (tile_number / TEAMS * tile_step >= tiles) break;
    if (tile >= tiles) continue;
    const int index = i % (16 * m);
    const float* const from = part.partial_sums + (i64)tile * m * 16 + index;
    float y = 0.0f;
    for (int s = 0; s < segments; s += SEGMENTS_IN_FLIGHT) {
      float v[SEGMENTS_IN_FLIGHT];
#pragma unroll
      for (int k = 0; k < SEGMENTS_IN_FLIGHT; k++)
        v[k] = s + k < segments ? __ldcg(from + (i64)(s + k) * tiles * m * 16) : 0.0f;
#pragma unroll
      for (int k = 0; k < SEGMENTS_IN_FLIGHT; k++)
        y = __fadd_rn(y, v[k]);  // a missing segment adds +0
    }
    store_output(part.outputs, tile, index % 16, index / 16, y);
  }
  if (threadIdx.x == 0) part.arrival_counters[block] = 0;
#endif
}
