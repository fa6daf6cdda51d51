// What kernels of the exact product share: tiles of packed weights, and where products go.
// limbs.cuh stands before this source.
//
// Fragments are those of mma.m16n8k16/k32 for 8-bit integers: lane = 4 * g + t holds of A the rows
// g and g + 8, columns 4t..4t+3 (and 16 more), of B column g, of C columns 2t and 2t + 1.

#define MMA32(A_TYPE) \
  asm("mma.sync.aligned.m16n8k32.row.col.s32." A_TYPE ".s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7}," \
      "{%8,%9},{%10,%10,%10,%10};" : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0))

template <int KIND>
__device__ __forceinline__ void mma32(int c[4], const u32 a[4], u32 b0, u32 b1) {
  if constexpr (KIND == 8) MMA32("s8");
  else MMA32("u8");
}

__device__ __forceinline__ void mma16(int c[4], u32 a0, u32 a1, u32 b0) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},"
      "{%7,%7,%7,%7};" : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a0), "r"(a1), "r"(b0), "r"(0));
}

template <int KIND>
struct Tile {  // everything a lane holds of 16 rows and one group
  static constexpr int QUADS = KIND;  // 16-byte loads of quants a lane, a row tile and a group
  static constexpr bool HEADER = KIND != 8;  // packed scales of 16 bytes a row, not eight f16
  // Packed: QUADS * 32 quads of quants, 16 quads of scales and (not for Q8_0) 4 quads of d.
  static constexpr int PACKED = QUADS * 32 + 16 + 4 * HEADER;
  uint4 q[QUADS];
  uint4 scale[2];  // rows g and g + 8
  u32 d[2];        // d and dmin as two f16
};

__device__ __forceinline__ float half_of(u32 bits) {
  float f;
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(bits));
  return f;
}

__device__ __forceinline__ uint4 stream(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}

template <int KIND>
__device__ __forceinline__ void fetch(Tile<KIND>& tile, const uint4* at, int lane) {
  constexpr int QUADS = Tile<KIND>::QUADS;
#pragma unroll
  for (int i = 0; i < QUADS; i++) tile.q[i] = stream(at + i * 32 + lane);
  const int g = lane / 4;
  tile.scale[0] = stream(at + QUADS * 32 + g);
  tile.scale[1] = stream(at + QUADS * 32 + g + 8);
  if constexpr (Tile<KIND>::HEADER) {
    const u32* d = (const u32*)(at + QUADS * 32 + 16);
    tile.d[0] = __ldg(d + g);
    tile.d[1] = __ldg(d + g + 8);
  }
}

__device__ __forceinline__ u32 word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ __forceinline__ u32 byte_of(const uint4& v, int i) {
  return (word_of(v, i / 4) >> (8 * (i % 4))) & 255;
}

__device__ __forceinline__ int signed_byte_of(const uint4& v, int i) {
  const int b = i % 4, sign = b | 8;  // a selector with its top bit set repeats the byte's sign
  int r;
  asm("prmt.b32 %0, %1, 0, %2;"
      : "=r"(r) : "r"(word_of(v, i / 4)), "r"(b | sign << 4 | sign << 8 | sign << 12));
  return r;
}

__device__ __forceinline__ i64 joined(int p0, int p1, int p2) {
  return (i64)p1 * 256 + p0 + ((i64)p2 << 16);
}

// The A fragment of sub-block j.
template <int KIND>
__device__ __forceinline__ void fragment(u32 a[4], const Tile<KIND>& tile, int j) {
  const int n = j / 4, turn = j % 4;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if constexpr (KIND == 8) {
      a[i] = word_of(tile.q[j], i);
    } else if constexpr (KIND == 6) {
      const u32 low = (word_of(tile.q[n * 2 + turn % 2], i) >> (4 * (turn / 2))) & 0x0f0f0f0f;
      const u32 high = (word_of(tile.q[4 + n], i) >> (2 * turn)) & 0x03030303;
      a[i] = (low << 2) | (high << 6);  // four times the quant, its top bit turned when packed
    } else {
      a[i] = (word_of(tile.q[j / 2], i) >> (4 * (j % 2))) & 0x0f0f0f0f;
      if constexpr (KIND == 5) a[i] |= ((word_of(tile.q[4], i) >> j) & 0x01010101) << 4;
    }
  }
}

// What a lane's words of sums are multiplied with: minima of rows g and g + 8, for Q6_K ones.
template <int KIND>
__device__ __forceinline__ void minima(u32 m[2], const Tile<KIND>& tile, int lane) {
  const int t = lane % 4;
#pragma unroll
  for (int i = 0; i < 2; i++)
    m[i] = t > 1 ? 0 : KIND == 6 ? 0x01010101 : t ? tile.scale[i].w : tile.scale[i].z;
}

struct Out {  // where one matrix's products go
  float* out;
  i64 stride;
  int n, first;  // its rows, and the tile that it begins with
};

struct Outs {  // of up to three matrices whose tiles stand one behind the other
  Out a, b, c;
};

struct Part {  // of a launch: matrices of one type, and the blocks that they have
  const uint4* weights;
  float* partial;
  int* arrived;
  Outs outs;
  int tiles, first, blocks;
};

struct Parts {
  Part a, b, c;
};

__device__ __forceinline__ void put(const Outs& outs, int tile, int row, int column, float y) {
  const bool b = tile >= outs.b.first, c = tile >= outs.c.first;
  float* const out = c ? outs.c.out : b ? outs.b.out : outs.a.out;
  const i64 stride = c ? outs.c.stride : b ? outs.b.stride : outs.a.stride;
  const int n = c ? outs.c.n : b ? outs.b.n : outs.a.n;
  const int at = (tile - (c ? outs.c.first : b ? outs.b.first : 0)) * 16 + row;
  if (at < n) out[column * stride + at] = y;
}

// Copy whole quads into shared memory, the block's threads side by side; they arrive later.
__device__ __forceinline__ void fill(void* to, const void* from, int bytes) {
  const u32 at = (u32)__cvta_generic_to_shared(to);
  for (int i = threadIdx.x * 16; i < bytes; i += THREADS * 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"(at + i), "l"((const char*)from + i) : "memory");
}

