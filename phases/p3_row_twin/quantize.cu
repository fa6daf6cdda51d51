// Rows of activations to integers: a warp a (group, row).
extern "C" __global__ void __launch_bounds__(32)
quantize(const float* x, i64 stride, int k, Integers to) {
  wait_for_inputs();
  let_the_next_start();
  const int group = blockIdx.x, row = blockIdx.y, c = group * GROUP + threadIdx.x * 8;
  const float* at = x + row * stride + c;
  float value[8];
#pragma unroll
  for (int i = 0; i < 8; i++) value[i] = c + i < k ? __ldcg(at + i) : 0.0f;
  store_group(value, group, row, to);
}
