// Activations to integers (contracts/arithmetic.md, items 1 to 4), in the order in which the tensor
// cores' B fragments are read. Stands before the source of every kernel that makes or takes them,
// behind device.cuh.
//   limbs   word[group][NT][j][limb][8 rows][t][half]    PACK: [group][j][8 columns][t][half]
//           from 17 rows on word[group][NT / 4][j][limb][4 of NT][half][8 rows][t]
//   sums    word[group][NT][limb][8 rows][2]             PACK: [group][8 columns][2]
//           of sums over 32 columns, in limbs
//   scales  f32 [group][NT * 8]
// NT is 1, 2, 4 or 8 tiles of eight rows. With PACK, for one or two rows, a column is
// row * 4 + limb.

#define GROUP 256

#define CHUNK 64  // rows whose integers stand together; those of the next ones stand behind them

struct Integers {
  u32* limbs;
  u32* sums;
  float* scales;
  int groups, nts, pack;
};

// Write one group of one row; a lane of the warp has columns 8 * lane to 8 * lane + 7.
__device__ __forceinline__ void store_group(const float value[8], int column_group, int row_of_all,
                                            const Integers& to) {
  const int lane = threadIdx.x % 32, row = row_of_all % CHUNK;
  const i64 group = (i64)(row_of_all / CHUNK) * to.groups + column_group;
  int size = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) size = max(size, __float_as_int(value[i]) & 0x7fffffff);
#pragma unroll
  for (int step = 16; step; step >>= 1) size = max(size, __shfl_xor_sync(~0u, size, step));
  const bool broken = size >= 0x7f800000;
  const int e = broken ? 0 : max(((size + 0x010101) >> 23) - 126, -77);
  const float r = __int_as_float((150 - e) << 23);
  u32 word[4][2] = {{0, 0}, {0, 0}, {0, 0}, {0, 0}};
  int total = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float y = __fmul_rn(value[i], r);
    int a = __float_as_int(__fadd_rn(fabsf(y), 8388608.0f)) & 0x7fffff;
    a = broken ? 0 : (__float_as_int(value[i]) < 0 ? -a : a);
    total += a;
#pragma unroll
    for (int limb = 0; limb < 3; limb++) {
      const int low = ((a + 128) & 255) - 128;
      word[limb][i / 4] |= (u32)(low & 255) << (8 * (i % 4));
      a = (a - low) >> 8;
    }
  }
  // column 8 * lane of 32 j + 16 half + 4 t
  const int nt = row / 8, n = row % 8, j = lane / 4, half = lane % 4 / 2, t = lane % 2 * 2;
  const i64 at_tile = group * to.nts + nt;
#pragma unroll
  for (int limb = 0; limb < 4; limb++)  // the fourth column of a packed row is read, and zero
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (limb == 3 && !to.pack) continue;
      i64 at;
      if (to.pack) at = (group * 8 + j) * 64 + ((row * 4 + limb) * 4 + t + i) * 2 + half;
      else if (to.nts < 4) at = ((at_tile * 8 + j) * 3 + limb) * 64 + (n * 4 + t + i) * 2 + half;
      else at = ((at_tile / 4 * 8 + j) * 12 + limb * 4 + nt % 4) * 64 + half * 32 + n * 4 + t + i;
      to.limbs[at] = word[limb][i];
    }
  total += __shfl_xor_sync(~0u, total, 1);
  total += __shfl_xor_sync(~0u, total, 2);
  if (lane % 4 == 0) {  // one lane a sub-block of 32 columns
    unsigned char* bytes = (unsigned char*)to.sums;
#pragma unroll
    for (int limb = 0; limb < 4; limb++) {
      const int low = ((total + 128) & 255) - 128;
      const i64 column = to.pack ? group * 8 + row * 4 + limb : (at_tile * 4 + limb) * 8 + n;
      bytes[column * 8 + j] = low & 255;
      total = (total - low) >> 8;
    }
  }
  if (lane == 0)
    to.scales[at_tile * 8 + n] =
        broken ? __int_as_float(0x7fc00000) : __int_as_float((e + 104) << 23);
}
