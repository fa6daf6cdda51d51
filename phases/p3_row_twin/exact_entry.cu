// Entry point of the exact product. A launch covers up to three weight types; each type has a range
// of blocks. Included after exact_few.cu or exact_wide.cu, which define `multiply` for one block.

extern "C" __global__ void __launch_bounds__(THREADS)
gemv(const __grid_constant__ LaunchParts parts, QuantisedActivations x, int groups, int m,
     int chunk) {
#if KIND_C
  if (blockIdx.x >= parts.c.first_block) return multiply<KIND_C>(parts.c, x, groups, m, chunk);
#endif
#if KIND_B
  if (blockIdx.x >= parts.b.first_block) return multiply<KIND_B>(parts.b, x, groups, m, chunk);
#endif
  multiply<KIND_A>(parts.a, x, groups, m, chunk);
}
