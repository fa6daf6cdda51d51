// Code that both kernels of the exact product share: packed weight tiles, tensor-core instructions
// and the output address. Included after limbs.cuh.
//
// Fragments follow mma.m16n8k16/k32 for 8-bit integers. Lane 4 * g + t holds rows g and g + 8 of A
// (columns 4t..4t+3, and the same 16 further), column g of B, and columns 2t and 2t + 1 of C.

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
struct Tile {  // one lane's registers for 16 weight rows and one group
  static constexpr int QUADS = KIND;  // 16-byte loads of quants per lane
  static constexpr bool HAS_D = KIND != 8;  // d, dmin follow the scales; Q8_0 has eight f16 scales
  // 16-byte words of a packed tile: QUADS * 32 of quants, 16 of scales and (not Q8_0) 4 of d, dmin.
  static constexpr int TILE_QUADS = QUADS * 32 + 16 + 4 * HAS_D;
  uint4 q[QUADS];
  uint4 scale[2];  // rows g and g + 8
  u32 d[2];        // d and dmin as two f16
};

__device__ __forceinline__ float half_to_float(u32 bits) {
  float f;
  asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(bits));
  return f;
}

__device__ __forceinline__ uint4 load_streaming(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}

template <int KIND>
__device__ __forceinline__ void load_tile(Tile<KIND>& tile, const uint4* at, int lane) {
  constexpr int QUADS = Tile<KIND>::QUADS;
#pragma unroll
  for (int i = 0; i < QUADS; i++) tile.q[i] = load_streaming(at + i * 32 + lane);
  const int g = lane / 4;
  tile.scale[0] = load_streaming(at + QUADS * 32 + g);
  tile.scale[1] = load_streaming(at + QUADS * 32 + g + 8);
  if constexpr (Tile<KIND>::HAS_D) {
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
  const int b = i % 4, sign = b | 8;  // selector bit 3 replicates the sign bit
  int r;
  asm("prmt.b32 %0, %1, 0, %2;"
      : "=r"(r) : "r"(word_of(v, i / 4)), "r"(b | sign << 4 | sign << 8 | sign << 12));
  return r;
}

__device__ __forceinline__ i64 join_limbs(int p0, int p1, int p2) {
  return (i64)p1 * 256 + p0 + ((i64)p2 << 16);
}

// Unpacks the A fragment of sub-block j.
template <int KIND>
__device__ __forceinline__ void a_fragment(u32 a[4], const Tile<KIND>& tile, int j) {
  const int n = j / 4, turn = j % 4;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if constexpr (KIND == 8) {
      a[i] = word_of(tile.q[j], i);
    } else if constexpr (KIND == 6) {
      const u32 low = (word_of(tile.q[n * 2 + turn % 2], i) >> (4 * (turn / 2))) & 0x0f0f0f0f;
      const u32 high = (word_of(tile.q[4 + n], i) >> (2 * turn)) & 0x03030303;
      a[i] = (low << 2) | (high << 6);  // 4 * quant; `pack` flipped the quant's top bit
    } else {
      a[i] = (word_of(tile.q[j / 2], i) >> (4 * (j % 2))) & 0x0f0f0f0f;
      if constexpr (KIND == 5) a[i] |= ((word_of(tile.q[4], i) >> j) & 0x01010101) << 4;
    }
  }
}

// The A fragment that multiplies the activation sums: minima of rows g and g + 8; ones for Q6_K.
template <int KIND>
__device__ __forceinline__ void minimum_fragment(u32 m[2], const Tile<KIND>& tile, int lane) {
  const int t = lane % 4;
#pragma unroll
  for (int i = 0; i < 2; i++)
    m[i] = t > 1 ? 0 : KIND == 6 ? 0x01010101 : t ? tile.scale[i].w : tile.scale[i].z;
}

struct Output {  // the output of one matrix
  float* out;
  i64 stride;
  int rows, first_tile;  // rows of the matrix, and its first tile in the launch part
};

struct Outputs {  // outputs of up to three matrices with consecutive tiles
  Output a, b, c;
};

struct LaunchPart {  // matrices of one type in a launch, and their range of blocks
  const uint4* weights;
  float* partial_sums;
  int* arrival_counters;
  Outputs outputs;
  int tiles, first_block, blocks;
};

struct LaunchParts {
  LaunchPart a, b, c;
};

__device__ __forceinline__ void store_output(const Outputs& outputs, int tile, int row, int column,
                                             float y) {
  const bool in_b = tile >= outputs.b.first_tile, in_c = tile >= outputs.c.first_tile;
  float* const out = in_c ? outputs.c.out : in_b ? outputs.b.out : outputs.a.out;
  const i64 stride = in_c ? outputs.c.stride : in_b ? outputs.b.stride : outputs.a.stride;
  const int rows = in_c ? outputs.c.rows : in_b ? outputs.b.rows : outputs.a.rows;
  const int first_tile = in_c ? outputs.c.first_tile : in_b ? outputs.b.first_tile : 0;
  const int out_row = (tile - first_tile) * 16 + row;
  if (out_row < rows) out[column * stride + out_row] = y;
}

// Copies 16-byte words to shared memory with all threads of the block. Completes at cp.async.wait.
__device__ __forceinline__ void copy_async(void* to, const void* from, int bytes) {
  const u32 shared_address = (u32)__cvta_generic_to_shared(to);
  for (int i = threadIdx.x * 16; i < bytes; i += THREADS * 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"(shared_address + i), "l"((const char*)from + i) : "memory");
}
