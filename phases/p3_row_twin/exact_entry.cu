// The kernel of the exact product: the blocks of a launch, up to three types of weights. It stands
// behind exact_few.cu or exact_wide.cu, one of which says how a block multiplies.

extern "C" __global__ void __launch_bounds__(THREADS)
gemv(const __grid_constant__ Parts parts, Integers x, int groups, int m, int chunk) {
#if KIND_C
  if (blockIdx.x >= parts.c.first) return multiply<KIND_C>(parts.c, x, groups, m, chunk);
#endif
#if KIND_B
  if (blockIdx.x >= parts.b.first) return multiply<KIND_B>(parts.b, x, groups, m, chunk);
#endif
  multiply<KIND_A>(parts.a, x, groups, m, chunk);
}
