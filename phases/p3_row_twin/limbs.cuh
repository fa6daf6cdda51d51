// Quantises activations to 23-bit integers (contracts/arithmetic.md, items 1 to 4), split into
// three int8 limbs. The layout is the order in which lanes read the B fragments of the tensor
// cores. Every source that writes or reads quantised activations includes this file after
// device.cuh.
//   limbs   u32[group][NT][j][limb][8 rows][t][half]    PACK_LIMBS: [group][j][8 columns][t][half]
//           17 rows and more: u32[group][NT / 4][j][limb][4 of NT][half][8 rows][t]
//   sums    u32[group][NT][limb][8 rows][2]             PACK_LIMBS: [group][8 columns][2]
//           sums over 32 columns (sub-block j), in limbs
//   scales  f32[group][NT * 8]
// NT is the number of n-tiles of eight rows: 1, 2, 4 or 8. With PACK_LIMBS, for one or two rows,
// column row * 4 + limb of B holds one limb of one row.

#define GROUP 256  // columns that share a scale

#define CHUNK 64   // rows of one layout block; the next 64 rows follow it in memory

struct QuantisedActivations {
  u32* limbs;
  u32* sums;
  float* scales;
  int groups, n_tiles, pack_limbs;
};

// Quantises one group of one row and stores it. Each lane has columns 8 * lane to 8 * lane + 7.
__device__ __forceinline__ void quantize_group(const float value[8], int group_in_row, int row,
                                               const QuantisedActivations& out) {
  const int lane = threadIdx.x % 32, row_in_chunk = row % CHUNK;
  const i64 group = (i64)(row / CHUNK) * out.groups + group_in_row;
  int max_bits = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) max_bits = max(max_bits, __float_as_int(value[i]) & 0x7fffffff);
#pragma unroll
  for (int step = 16; step; step >>= 1)
    max_bits = max(max_bits, __shfl_xor_sync(~0u, max_bits, step));
  const bool not_finite = max_bits >= 0x7f800000;
  const int exponent = not_finite ? 0 : max(((max_bits + 0x010101) >> 23) - 126, -77);
  const float inverse_scale = __int_as_float((150 - exponent) << 23);
  u32 limb_words[4][2] = {{0, 0}, {0, 0}, {0, 0}, {0, 0}};
  int sub_block_sum = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float y = __fmul_rn(value[i], inverse_scale);
    int quantised = __float_as_int(__fadd_rn(fabsf(y), 8388608.0f)) & 0x7fffff;
    quantised = not_finite ? 0 : (__float_as_int(value[i]) < 0 ? -quantised : quantised);
    sub_block_sum += quantised;
#pragma unroll
    for (int limb = 0; limb < 3; limb++) {
      const int low = ((quantised + 128) & 255) - 128;
      limb_words[limb][i / 4] |= (u32)(low & 255) << (8 * (i % 4));
      quantised = (quantised - low) >> 8;
    }
  }
  // column 8 * lane is 32 j + 16 half + 4 t
  const int n_tile = row_in_chunk / 8, row_in_tile = row_in_chunk % 8;
  const int j = lane / 4, half = lane % 4 / 2, t = lane % 2 * 2;
  const i64 tile_index = group * out.n_tiles + n_tile;
#pragma unroll
  for (int limb = 0; limb < 4; limb++)  // with pack_limbs the mma also reads limb 3: zero
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (limb == 3 && !out.pack_limbs) continue;
      i64 index;
      if (out.pack_limbs)
        index = (group * 8 + j) * 64 + ((row_in_chunk * 4 + limb) * 4 + t + i) * 2 + half;
      else if (out.n_tiles < 4)
        index = ((tile_index * 8 + j) * 3 + limb) * 64 + (row_in_tile * 4 + t + i) * 2 + half;
      else
        index = ((tile_index / 4 * 8 + j) * 12 + limb * 4 + n_tile % 4) * 64 + half * 32 +
                row_in_tile * 4 + t + i;
      out.limbs[index] = limb_words[limb][i];
    }
  sub_block_sum += __shfl_xor_sync(~0u, sub_block_sum, 1);
  sub_block_sum += __shfl_xor_sync(~0u, sub_block_sum, 2);
  if (lane % 4 == 0) {  // one lane per sub-block of 32 columns
    unsigned char* sum_bytes = (unsigned char*)out.sums;
#pragma unroll
    for (int limb = 0; limb < 4; limb++) {
      const int low = ((sub_block_sum + 128) & 255) - 128;
      const i64 column_in_tile = out.pack_limbs ? group * 8 + row_in_chunk * 4 + limb
                                                : (tile_index * 4 + limb) * 8 + row_in_tile;
      sum_bytes[column_in_tile * 8 + j] = low & 255;
      sub_block_sum = (sub_block_sum - low) >> 8;
    }
  }
  if (lane == 0)
    out.scales[tile_index * 8 + row_in_tile] =
        not_finite ? __int_as_float(0x7fc00000) : __int_as_float((exponent + 104) << 23);
}
