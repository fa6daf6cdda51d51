// exact-23 product of 17 activation rows and more on warpgroups (wgmma, sm_90a).
//
// A warp has a tile of 16 weight rows, a warpgroup 64 rows. A warpgroup processes one segment [6],
// four groups of 256 columns, for a chunk of up to 64 activation rows, and loads each packed weight
// word once per chunk. Scales are folded into the weights, so one integer sum over 256 columns
// serves all rows. The groups of a segment are added in registers. The segment sum goes to global
// memory; the last warp to finish a tile adds all segments in order.
//
// A block copies the activations of SHARED_GROUPS groups, a slice of K, to shared memory; the
// blocks of a slice share its (tile, segment) items. Grid: x blocks of the launch parts, y chunks
// of CHUNK rows. NVRTC options: -DKIND_A, -DKIND_B, -DKIND_C (weight types; 0 is none), -DTEAMS
// (warpgroups per block), -DTHREADS, -DSHARED_GROUPS and -DN_TILES (n-tiles of eight activation
// rows: 4 or 8). Included after limbs.cuh and tiles.cuh. B columns past row m are uninitialised;
// their products are never read.

#define SEGMENT 4             // groups
#define TILES_AT_ONCE 4       // n-tiles per pass over the folded weights
// Activation bytes of a sub-block: [limb][TILES_AT_ONCE][half][8][16].
#define SUB_BLOCK_BYTES (3 * TILES_AT_ONCE * 256)
#define LIMB_BYTES (N_TILES * 6144)  // limbs of a group
#define SUM_WORDS (N_TILES * 64)     // u32 words of a group's sums
#define SEGMENTS_IN_FLIGHT 4  // partial sums that a lane loads together

// d = A B, or d += A B with `accumulate`. A is 64 x 32 in registers; B is 96 x 32 in shared memory
// at descriptor b. Asynchronous: `a` and `d` must not change before the matching `wgmma_wait`.
#define OPERANDS_4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define OPERANDS_16(i) OPERANDS_4(i), OPERANDS_4(i + 4), OPERANDS_4(i + 8), OPERANDS_4(i + 12)

__device__ __forceinline__ void wgmma(int (&d)[48], const u32 a[4], u64 b, int accumulate) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %53, 0;"
      "wgmma.mma_async.sync.aligned.m64n96k32.s32.u8.s8 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
      "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
      "%46,%47},{%48,%49,%50,%51},%52,p;}" : OPERANDS_16(0), OPERANDS_16(16), OPERANDS_16(32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

// Shared-memory descriptor of B: no swizzle, core matrices of 8 rows x 16 bytes. The second half of
// the 32 columns is 128 bytes further, the next eight rows 256 bytes further.
__device__ __forceinline__ u64 shared_descriptor(u32 at) {
  return (u64)(at >> 4) | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32;
}

__device__ __forceinline__ u32 shared_address(const void* at) {
  return (u32)__cvta_generic_to_shared(at);
}

__device__ __forceinline__ void mbarrier_expect_tx(u64* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Copies `bytes`, a multiple of 16, to shared memory and counts them on `barrier`.
__device__ __forceinline__ void bulk_copy_async(void* to, const void* from, int bytes,
                                                u64* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0],[%1],%2,[%3];" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Waits for phase 0; each barrier is used once.
__device__ __forceinline__ void mbarrier_wait(const u64* barrier) {
  for (u32 done = 0; !done;)
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;"
                 "selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(shared_address(barrier)) : "memory");
}

// Returns sub-block j's quants times their scales, split into low and high bytes: low + 256 * high.
// One 32-bit multiply scales two quants, 16 bits apart. Q6_K scales may be negative, so 4096 is
// added to each product; `group_values` subtracts it.
template <int KIND>
__device__ __forceinline__ void fold_scales(u32 low[4], u32 high[4], const Tile<KIND>& tile,
                                            int j) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 quants, scale, offset = 0;
    if constexpr (KIND == 6) {
      const int n = j / 4, quarter = j % 4;
      const u32 bits =
          (word_of(tile.q[n * 2 + quarter % 2], i) >> (4 * (quarter / 2))) & 0x0f0f0f0f;
      const u32 high_bits = (word_of(tile.q[4 + n], i) >> (2 * quarter)) & 0x03030303;
      quants = (bits | high_bits << 4) ^ 0x20202020;  // `pack` flipped the top bit
      scale = (u32)signed_byte_of(tile.scale[i % 2], 2 * j + i / 2);
      offset = 0x10001000 - 0x00200020 * scale;
    } else {
      quants = (word_of(tile.q[j / 2], i) >> (4 * (j % 2))) & 0x0f0f0f0f;
      if constexpr (KIND == 5) quants |= ((word_of(tile.q[4], i) >> j) & 0x01010101) << 4;
      scale = byte_of(tile.scale[i % 2], j);
    }
    const u32 even = (quants & 0x00ff00ff) * scale + offset;
    const u32 odd = (quants >> 8 & 0x00ff00ff) * scale + offset;
    low[i] = __byte_perm(even, odd, 0x6240);
    high[i] = __byte_perm(even, odd, 0x7351);
  }
}

// f32 products of one group, 64 weight rows and TILES_AT_ONCE n-tiles. v[n][i] is the warp's weight
// row g + 8 * (i / 2), activation row 2t + i % 2. `b`, `sums`, `scales` point to shared memory.
template <int KIND>
__device__ __forceinline__ void group_values(float v[TILES_AT_ONCE][4], const Tile<KIND>& tile,
                                             const u32* b, const u32* sums, const float* scales,
                                             int lane) {
  const int g = lane / 4, t = lane % 4;
  int low[12 * TILES_AT_ONCE], high[12 * TILES_AT_ONCE];  // [limb][n-tile][4]
  const u64 descriptor = shared_descriptor(shared_address(b));
  u32 a[2][2][4];
#pragma unroll
  for (int j = 0; j < 8; j++) {
    u32(&fragment)[2][4] = a[j % 2];
    if (j > 1) wgmma_wait<1>();  // the wgmma that read these registers is complete
    fold_scales(fragment[0], fragment[1], tile, j);
    wgmma_fence();
    wgmma(low, fragment[0], descriptor + j * (SUB_BLOCK_BYTES >> 4), j);
    wgmma(high, fragment[1], descriptor + j * (SUB_BLOCK_BYTES >> 4), j);
    wgmma_commit();
  }
  u32 m[2];
  minimum_fragment(m, tile, lane);
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < 12 * TILES_AT_ONCE; i++) asm volatile("" : "+r"(low[i]), "+r"(high[i]));
#pragma unroll
  for (int n = 0; n < TILES_AT_ONCE; n++) {
    int minimum_sums[4][4];
#pragma unroll
    for (int limb = 0; limb < 4; limb++)
      mma16(minimum_sums[limb], m[0], m[1], t < 2 ? sums[n * 64 + (limb * 8 + g) * 2 + t] : 0);
#pragma unroll
    for (int i = 0; i < 4; i++) {  // a high-byte product has the weight of the next limb
      const int* const low_sums = low + n * 4 + i;
      const int* const high_sums = high + n * 4 + i;
      i64 p = join_limbs(low_sums[0], low_sums[4 * TILES_AT_ONCE] + high_sums[0],
                         low_sums[8 * TILES_AT_ONCE] + high_sums[4 * TILES_AT_ONCE]) +
              ((i64)high_sums[8 * TILES_AT_ONCE] << 24);
      const i64 q = join_limbs(minimum_sums[0][i], minimum_sums[1][i], minimum_sums[2][i]) +
                    ((i64)minimum_sums[3][i] << 24);
      const u32 d_dmin = tile.d[i / 2];
      const float s = scales[n * 8 + 2 * t + i % 2];
      if constexpr (KIND == 6) {
        p -= q << 12;  // the offset of `fold_scales`
        v[n][i] = __fmul_rn(__fmul_rn(half_to_float(d_dmin), __ll2float_rn(p)), s);
      } else {
        v[n][i] = __fmul_rn(__fsub_rn(__fmul_rn(half_to_float(d_dmin), __ll2float_rn(p)),
                                      __fmul_rn(half_to_float(d_dmin >> 16), __ll2float_rn(q))), s);
      }
    }
  }
}

// The same for Q8_0, which has an f16 scale per sub-block.
template <>
__device__ __forceinline__ void group_values<8>(float v[TILES_AT_ONCE][4], const Tile<8>& tile,
                                                const u32* b, const u32* sums, const float* scales,
                                                int lane) {
#pragma unroll 1
  for (int n = 0; n < TILES_AT_ONCE; n++) {
    float even[4], pair[4], four[4], y[4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      u32 a[4];
      a_fragment(a, tile, j);
      int c[3][4];
#pragma unroll
      for (int l = 0; l < 3; l++) {
        const u32* const w = b + ((j * 3 + l) * TILES_AT_ONCE + n) * 64 + lane;
        mma32<8>(c[l], a, w[0], w[32]);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float d = half_to_float(word_of(tile.scale[i / 2], j / 2) >> (16 * (j % 2)));
        const float x = __fmul_rn(d, __ll2float_rn(join_limbs(c[0][i], c[1][i], c[2][i])));
        if (j % 2 == 0) even[i] = x;
        else if (j % 4 == 1) pair[i] = __fadd_rn(even[i], x);
        else if (j == 3) four[i] = __fadd_rn(pair[i], __fadd_rn(even[i], x));
        else y[i] = __fadd_rn(four[i], __fadd_rn(pair[i], __fadd_rn(even[i], x)));
      }
    }
#pragma unroll
    for (int k = 0; k < TILES_AT_ONCE; k++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (k == n) v[k][i] = __fmul_rn(y[i], scales[n * 8 + lane % 4 * 2 + i % 2]);
  }
}

template <int KIND>
__device__ __forceinline__ void multiply(const LaunchPart& part, const QuantisedActivations& x,
                                         int groups, int m, int first_chunk) {
  constexpr int QUADS = Tile<KIND>::TILE_QUADS;
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int block = blockIdx.x - part.first_block, segments = (groups + SEGMENT - 1) / SEGMENT;
  const int chunk = first_chunk + blockIdx.y, rows_left = m - chunk * CHUNK;
  const i64 tiles_before = (i64)blockIdx.y * part.tiles;
  float4* const partial = (float4*)part.partial_sums + tiles_before * segments * N_TILES * 32;
  int* const counters = part.arrival_counters + tiles_before;
  // A slice gets blocks in proportion to its groups.
  int slice = 0, first_block = 0, end_block = part.blocks;
  for (int s = 1; s * SHARED_GROUPS < groups; s++) {
    const int boundary = s * SHARED_GROUPS * part.blocks / groups;
    if (boundary <= block) slice = s, first_block = boundary;
    else if (boundary < end_block) end_block = boundary;
  }
  const int first_group = slice * SHARED_GROUPS;
  const int slice_groups = min(SHARED_GROUPS, groups - first_group);
  const int tile_quads = (part.tiles + 3) / 4;  // the last segment may be short and comes last
  const int items = tile_quads * ((slice_groups + SEGMENT - 1) / SEGMENT);
  const int step = (end_block - first_block) * TEAMS;
  u32* const limbs = (u32*)shared;                                   // [SHARED_GROUPS][LIMB_BYTES]
  u32* const sums = limbs + SHARED_GROUPS * (LIMB_BYTES / 4);        // [SHARED_GROUPS][N_TILES][64]
  float* const scales = (float*)(sums + SHARED_GROUPS * SUM_WORDS);  // [SHARED_GROUPS][N_TILES][8]
  __shared__ u64 barriers[SHARED_GROUPS];  // mbarriers: a group's activations have arrived
  const auto tile_of = [&](int item) { return item % tile_quads * 4 + warp % 4; };
  const auto address_of = [&](int item) {  // a warp past the last tile repeats it
    const int tile = min(tile_of(item), part.tiles - 1);
    return part.weights + ((i64)tile * groups + first_group + item / tile_quads * SEGMENT) * QUADS;
  };
  int item = warp / 4 * (end_block - first_block) + block - first_block;
  const uint4* address = address_of(item);
  Tile<KIND> weight_tile;
  if (item < items) load_tile(weight_tile, address, lane);
  if (threadIdx.x < SHARED_GROUPS)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                 :: "r"(shared_address(barriers + threadIdx.x)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
  pdl_wait();
  pdl_launch_dependents();
  if (threadIdx.x < slice_groups) {
    const int k = threadIdx.x;
    mbarrier_expect_tx(barriers + k, LIMB_BYTES + SUM_WORDS * 4 + N_TILES * 32);
    const i64 group = (i64)chunk * groups + first_group + k;
    bulk_copy_async(limbs + k * (LIMB_BYTES / 4), (const char*)x.limbs + group * LIMB_BYTES,
                    LIMB_BYTES, barriers + k);
    bulk_copy_async(sums + k * SUM_WORDS, x.sums + group * SUM_WORDS, SUM_WORDS * 4, barriers + k);
    bulk_copy_async(scales + k * N_TILES * 8, x.scales + group * N_TILES * 8, N_TILES * 32,
                    barriers + k);
  }
  for (; item < items; item += step) {
    const int tile = tile_of(item), segment = item / tile_quads;
    const int segment_groups = min(SEGMENT, slice_groups - segment * SEGMENT);
    float segment_sum[N_TILES][4];
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) segment_sum[n][i] = 0.0f;
    for (int k = 0; k < segment_groups; k++) {
      const bool has_next = k + 1 < segment_groups || item + step < items;
      const uint4* const next_address =
          k + 1 < segment_groups ? address + QUADS : address_of(item + step);
      if (has_next && lane * 8 < QUADS)
        asm volatile("prefetch.global.L2 [%0];" :: "l"(next_address + lane * 8));
      const int shared_group = segment * SEGMENT + k;
      mbarrier_wait(barriers + shared_group);
#pragma unroll
      for (int n = 0; n < N_TILES; n += TILES_AT_ONCE) {
        float v[TILES_AT_ONCE][4];
        group_values<KIND>(v, weight_tile, limbs + shared_group * (LIMB_BYTES / 4) + n * 1536,
                           sums + shared_group * SUM_WORDS + n * 64,
                           scales + (shared_group * N_TILES + n) * 8, lane);
#pragma unroll
        for (int j = 0; j < TILES_AT_ONCE; j++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            segment_sum[n + j][i] = __fadd_rn(segment_sum[n + j][i], v[j][i]);
      }
      address = next_address;
      if (has_next) load_tile(weight_tile, address, lane);
    }
    if (tile >= part.tiles) continue;
    if (segments > 1) {
      const i64 position = (i64)(first_group / SEGMENT + segment) * part.tiles + tile;
      float4* const to = partial + position * N_TILES * 32 + lane;
#pragma unroll
      for (int n = 0; n < N_TILES; n++) __stcg(to + n * 32, *(const float4*)segment_sum[n]);
      __threadfence();
      __syncwarp();
      int arrived_before = 0;
      if (lane == 0) arrived_before = atomicAdd(counters + tile, 1);
      if (__shfl_sync(~0u, arrived_before, 0) < segments - 1) continue;
      __threadfence();
      if (lane == 0) counters[tile] = 0;
    }
#pragma unroll 1
    for (int n = 0; n < N_TILES; n++) {
      float y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (segments > 1) {
        const float4* const from = partial + ((i64)tile * N_TILES + n) * 32 + lane;
        for (int first = 0; first < segments; first += SEGMENTS_IN_FLIGHT) {
          float v[SEGMENTS_IN_FLIGHT][4];
#pragma unroll
          for (int k = 0; k < SEGMENTS_IN_FLIGHT; k++)
            *(float4*)v[k] = first + k < segments
                                 ? __ldcg(from + (i64)(first + k) * part.tiles * N_TILES * 32)
                                 : make_float4(0, 0, 0, 0);
#pragma unroll
          for (int k = 0; k < SEGMENTS_IN_FLIGHT; k++)  // a missing segment adds +0
#pragma unroll
            for (int i = 0; i < 4; i++) y[i] = __fadd_rn(y[i], v[k][i]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
          for (int j = 0; j < N_TILES; j++)
            if (j == n) y[i] = __fadd_rn(0.0f, segment_sum[j][i]);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int column = n * 8 + 2 * t + i % 2;
        if (column < rows_left)
          store_output(part.outputs, tile, g + i / 2 * 8, chunk * CHUNK + column, y[i]);
      }
    }
  }
  if (threadIdx.x < slice_groups)
    mbarrier_wait(barriers + threadIdx.x);  // copies must not outlive the block
}
