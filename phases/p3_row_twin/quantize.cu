// Quantises x f32[rows, k]. Grid: x groups of 256 columns, y rows. One warp per block.
extern "C" __global__ void __launch_bounds__(32)
quantize(const float* x, i64 stride, int k, QuantisedActivations out) {
  pdl_wait();
  pdl_launch_dependents();
  const int group = blockIdx.x, row = blockIdx.y, column = group * GROUP + threadIdx.x * 8;
  const float* from = x + row * stride + column;
  float value[8];
#pragma unroll
  for (int i = 0; i < 8; i++) value[i] = column + i < k ? __ldcg(from + i) : 0.0f;
  quantize_group(value, group, row, out);
}
