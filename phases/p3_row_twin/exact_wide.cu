// exact-23 for 17 rows and more, on warpgroups (sm_90a). A warpgroup walks down the segments [6] of
// 64 weight rows, a warp a tile of 16, each packed weight word read once for a chunk of rows; it
// folds scales into weights, so that one sum over 256 columns serves all rows, adds the four groups
// of a segment in registers and hands the segment on; the warp that comes last for a tile adds all
// of them in order. Blocks keep the activations of HOLD groups in shared memory, a slice of K; a
// slice's blocks share its segments of all tiles. A block y is a chunk of CHUNK rows. Compiled by
// NVRTC with -DKIND_A, -DKIND_B and -DKIND_C (0 for none), -DTEAMS (warpgroups a block), -DHOLD and
// -DNTS (n-tiles of eight activation rows: 4 or 8). limbs.cuh and tiles.cuh stand before this
// source. Rows of activations past m hold whatever memory held; so do their products, which nobody
// reads.

#define SEGMENT 4                // groups
#define RT 4                     // n-tiles that meet a folded weight at once
#define STEP (3 * RT * 256)      // bytes of the activations of a sub-block: [limb][RT][half][8][16]
#define LIMB_BYTES (NTS * 6144)  // of a group
#define SUM_WORDS (NTS * 64)     // of sums, likewise
#define AHEAD 4                  // partial sums that a lane reads at once

// d += A B (d = A B unless `more`): A is 64 rows of 32 columns, a word of each lane a register, B
// 96 rows of 32 columns in shared memory. It reads a and d until it is awaited.
#define R4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define R16(i) R4(i), R4(i + 4), R4(i + 8), R4(i + 12)

__device__ __forceinline__ void wgmma(int (&d)[48], const u32 a[4], u64 b, int more) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %53, 0;"
      "wgmma.mma_async.sync.aligned.m64n96k32.s32.u8.s8 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
      "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
      "%46,%47},{%48,%49,%50,%51},%52,p;}" : R16(0), R16(16), R16(32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}

__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT>
__device__ __forceinline__ void await() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}

// B in shared memory: core matrices of 8 rows of 16 bytes, the two of 32 columns side by side,
// those of the next eight rows behind them; no swizzle.
__device__ __forceinline__ u64 matrix(u32 at) {
  return (u64)(at >> 4) | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32;
}

// Copies of whole quads that arrive in shared memory by themselves, and are counted as they come.
__device__ __forceinline__ u32 place(const void* at) { return (u32)__cvta_generic_to_shared(at); }

__device__ __forceinline__ void expect(u64* ready, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(place(ready)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void bring(void* to, const void* from, int bytes, u64* ready) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0],[%1],%2,[%3];"
               :: "r"(place(to)), "l"(from), "r"(bytes), "r"(place(ready)) : "memory");
}

__device__ __forceinline__ void arrived(const u64* ready) {
  for (u32 done = 0; !done;)
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;"
                 "selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(place(ready)) : "memory");
}

// Sub-block j's quants times their scales, as bytes: low ones, and high ones that count 256. A
// scale is multiplied with two quants at once, 16 bits apart. Those of Q6_K may be negative, so
// 4096 is added to each product, which `values` takes off again.
template <int KIND>
__device__ __forceinline__ void folded(u32 low[4], u32 high[4], const Tile<KIND>& tile, int j) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 quants, factor, more = 0;
    if constexpr (KIND == 6) {
      const int n = j / 4, turn = j % 4;
      const u32 bits = (word_of(tile.q[n * 2 + turn % 2], i) >> (4 * (turn / 2))) & 0x0f0f0f0f;
      const u32 above = (word_of(tile.q[4 + n], i) >> (2 * turn)) & 0x03030303;
      quants = (bits | above << 4) ^ 0x20202020;  // the top bit was turned when packed
      factor = (u32)signed_byte_of(tile.scale[i % 2], 2 * j + i / 2);
      more = 0x10001000 - 0x00200020 * factor;
    } else {
      quants = (word_of(tile.q[j / 2], i) >> (4 * (j % 2))) & 0x0f0f0f0f;
      if constexpr (KIND == 5) quants |= ((word_of(tile.q[4], i) >> j) & 0x01010101) << 4;
      factor = byte_of(tile.scale[i % 2], j);
    }
    const u32 even = (quants & 0x00ff00ff) * factor + more;
    const u32 odd = (quants >> 8 & 0x00ff00ff) * factor + more;
    low[i] = __byte_perm(even, odd, 0x6240);
    high[i] = __byte_perm(even, odd, 0x7351);
  }
}

// Values of one group, 64 weight rows and RT n-tiles: v[n][i] is row g + 8 * (i / 2) of the warp's
// tile and column 2t + i % 2. `b` is where their limbs stand in shared memory, `sums` and `scales`
// where theirs do.
template <int KIND>
__device__ __forceinline__ void values(float v[RT][4], const Tile<KIND>& tile, const u32* b,
                                       const u32* sums, const float* scales, int lane) {
  const int g = lane / 4, t = lane % 4;
  int low[12 * RT], high[12 * RT];  // [limb][n-tile][4]
  const u64 at = matrix(place(b));
  u32 a[2][2][4];
#pragma unroll
  for (int j = 0; j < 8; j++) {
    u32(&now)[2][4] = a[j % 2];
    if (j > 1) await<1>();  // what read these registers has ended
    folded(now[0], now[1], tile, j);
    fence();
    wgmma(low, now[0], at + j * (STEP >> 4), j);
    wgmma(high, now[1], at + j * (STEP >> 4), j);
    commit();
  }
  u32 m[2];
  minima(m, tile, lane);
  await<0>();
#pragma unroll
  for (int i = 0; i < 12 * RT; i++) asm volatile("" : "+r"(low[i]), "+r"(high[i]));
#pragma unroll
  for (int n = 0; n < RT; n++) {
    int least[4][4];
#pragma unroll
    for (int l = 0; l < 4; l++)
      mma16(least[l], m[0], m[1], t < 2 ? sums[n * 64 + (l * 8 + g) * 2 + t] : 0);
#pragma unroll
    for (int i = 0; i < 4; i++) {  // a weight's high byte times a limb counts with the next limb
      const int* const l = low + n * 4 + i;
      const int* const h = high + n * 4 + i;
      i64 p = joined(l[0], l[4 * RT] + h[0], l[8 * RT] + h[4 * RT]) + ((i64)h[8 * RT] << 24);
      const i64 q = joined(least[0][i], least[1][i], least[2][i]) + ((i64)least[3][i] << 24);
      const u32 d = tile.d[i / 2];
      const float s = scales[n * 8 + 2 * t + i % 2];
      if constexpr (KIND == 6) {
        p -= q << 12;  // what `folded` added
        v[n][i] = __fmul_rn(__fmul_rn(half_of(d), __ll2float_rn(p)), s);
      } else {
        v[n][i] = __fmul_rn(__fsub_rn(__fmul_rn(half_of(d), __ll2float_rn(p)),
                                      __fmul_rn(half_of(d >> 16), __ll2float_rn(q))), s);
      }
    }
  }
}

// The same of Q8_0, each of whose sub-blocks has a float scale.
template <>
__device__ __forceinline__ void values<8>(float v[RT][4], const Tile<8>& tile, const u32* b,
                                          const u32* sums, const float* scales, int lane) {
#pragma unroll 1
  for (int n = 0; n < RT; n++) {
    float even[4], pair[4], four[4], y[4];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      u32 a[4];
      fragment(a, tile, j);
      int c[3][4];
#pragma unroll
      for (int l = 0; l < 3; l++) {
        const u32* const w = b + ((j * 3 + l) * RT + n) * 64 + lane;
        mma32<8>(c[l], a, w[0], w[32]);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float d = half_of(word_of(tile.scale[i / 2], j / 2) >> (16 * (j % 2)));
        const float x = __fmul_rn(d, __ll2float_rn(joined(c[0][i], c[1][i], c[2][i])));
        if (j % 2 == 0) even[i] = x;
        else if (j % 4 == 1) pair[i] = __fadd_rn(even[i], x);
        else if (j == 3) four[i] = __fadd_rn(pair[i], __fadd_rn(even[i], x));
        else y[i] = __fadd_rn(four[i], __fadd_rn(pair[i], __fadd_rn(even[i], x)));
      }
    }
#pragma unroll
    for (int k = 0; k < RT; k++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (k == n) v[k][i] = __fmul_rn(y[i], scales[n * 8 + lane % 4 * 2 + i % 2]);
  }
}

template <int KIND>
__device__ __forceinline__ void multiply(const Part& part, const Integers& x, int groups, int m,
                                         int first_chunk) {
  constexpr int QUADS = Tile<KIND>::PACKED;
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int block = blockIdx.x - part.first, all = (groups + SEGMENT - 1) / SEGMENT;
  const int chunk = first_chunk + blockIdx.y, rows = m - chunk * CHUNK;
  const i64 tiles_before = (i64)blockIdx.y * part.tiles;
  float4* const partial = (float4*)part.partial + tiles_before * all * NTS * 32;
  int* const counters = part.arrived + tiles_before;
  int slice = 0, begin = 0, end = part.blocks;  // a slice has blocks in proportion to its groups
  for (int s = 1; s * HOLD < groups; s++) {
    const int at = s * HOLD * part.blocks / groups;
    if (at <= block) slice = s, begin = at;
    else if (at < end) end = at;
  }
  const int front = slice * HOLD, here = min(HOLD, groups - front);
  const int quads = (part.tiles + 3) / 4;  // the last segment, which may be short, comes last
  const int items = quads * ((here + SEGMENT - 1) / SEGMENT), step = (end - begin) * TEAMS;
  u32* const limbs = (u32*)shared;                            // [HOLD][LIMB_BYTES]
  u32* const sums = limbs + HOLD * (LIMB_BYTES / 4);          // [HOLD][NTS][64]
  float* const scales = (float*)(sums + HOLD * SUM_WORDS);    // [HOLD][NTS][8]
  __shared__ u64 ready[HOLD];  // a group's activations
  const auto tile_of = [&](int item) { return item % quads * 4 + warp % 4; };
  const auto address = [&](int item) {  // a warp past the last tile computes with that one
    const int tile = min(tile_of(item), part.tiles - 1);
    return part.weights + ((i64)tile * groups + front + item / quads * SEGMENT) * QUADS;
  };
  int item = warp / 4 * (end - begin) + block - begin;
  const uint4* at = address(item);
  Tile<KIND> held;
  if (item < items) fetch(held, at, lane);
  if (threadIdx.x < HOLD)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                 :: "r"(place(ready + threadIdx.x)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
  wait_for_inputs();
  let_the_next_start();
  if (threadIdx.x < here) {
    const int k = threadIdx.x;
    expect(ready + k, LIMB_BYTES + SUM_WORDS * 4 + NTS * 32);
    const i64 group = (i64)chunk * groups + front + k;
    bring(limbs + k * (LIMB_BYTES / 4), (const char*)x.limbs + group * LIMB_BYTES, LIMB_BYTES,
          ready + k);
    bring(sums + k * SUM_WORDS, x.sums + group * SUM_WORDS, SUM_WORDS * 4, ready + k);
    bring(scales + k * NTS * 8, x.scales + group * NTS * 8, NTS * 32, ready + k);
  }
  for (; item < items; item += step) {
    const int tile = tile_of(item), segment = item / quads;
    const int many = min(SEGMENT, here - segment * SEGMENT);
    float s[NTS][4];
#pragma unroll
    for (int n = 0; n < NTS; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[n][i] = 0.0f;
    for (int k = 0; k < many; k++) {
      const bool more = k + 1 < many || item + step < items;
      const uint4* const next = k + 1 < many ? at + QUADS : address(item + step);
      if (more && lane * 8 < QUADS)
        asm volatile("prefetch.global.L2 [%0];" :: "l"(next + lane * 8));
      const int which = segment * SEGMENT + k;
      arrived(ready + which);
#pragma unroll
      for (int n = 0; n < NTS; n += RT) {
        float v[RT][4];
        values<KIND>(v, held, limbs + which * (LIMB_BYTES / 4) + n * 1536,
                     sums + which * SUM_WORDS + n * 64, scales + (which * NTS + n) * 8, lane);
#pragma unroll
        for (int j = 0; j < RT; j++)
#pragma unroll
          for (int i = 0; i < 4; i++) s[n + j][i] = __fadd_rn(s[n + j][i], v[j][i]);
      }
      at = next;
      if (more) fetch(held, at, lane);
    }
    if (tile >= part.tiles) continue;
    if (all > 1) {
      const i64 place_of = (i64)(front / SEGMENT + segment) * part.tiles + tile;
      float4* const to = partial + place_of * NTS * 32 + lane;
#pragma unroll
      for (int n = 0; n < NTS; n++) __stcg(to + n * 32, *(const float4*)s[n]);
      __threadfence();
      __syncwarp();
      int others = 0;
      if (lane == 0) others = atomicAdd(counters + tile, 1);
      if (__shfl_sync(~0u, others, 0) < all - 1) continue;
      __threadfence();
      if (lane == 0) counters[tile] = 0;
    }
#pragma unroll 1
    for (int n = 0; n < NTS; n++) {
      float y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (all > 1) {
        const float4* const from = partial + ((i64)tile * NTS + n) * 32 + lane;
        for (int first = 0; first < all; first += AHEAD) {
          float v[AHEAD][4];
#pragma unroll
          for (int k = 0; k < AHEAD; k++)
            *(float4*)v[k] = first + k < all
                ? __ldcg(from + (i64)(first + k) * part.tiles * NTS * 32) : make_float4(0, 0, 0, 0);
#pragma unroll
          for (int k = 0; k < AHEAD; k++)  // an absent segment adds +0
#pragma unroll
            for (int i = 0; i < 4; i++) y[i] = __fadd_rn(y[i], v[k][i]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
          for (int j = 0; j < NTS; j++)
            if (j == n) y[i] = __fadd_rn(0.0f, s[j][i]);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int column = n * 8 + 2 * t + i % 2;
        if (column < rows) put(part.outs, tile, g + i / 2 * 8, chunk * CHUNK + column, y[i]);
      }
    }
  }
  if (threadIdx.x < here) arrived(ready + threadIdx.x);  // a block that ends must not be written to
}
