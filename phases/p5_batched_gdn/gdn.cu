// The recurrent part of a GDN layer for m rows: causal convolution, gates, gated delta rule.
//
// Row i has tokens starts[i] to starts[i + 1] of all, and its own state behind pointer i. A row
// without tokens touches nothing, its pointer included. Every operation rounds once, in the order
// of arithmetic.md (items 11 to 16 and 20 to 22); the program is compiled without contraction.

typedef unsigned long long u64;
typedef long long i64;

constexpr int DIM = 128;     // width of a key and of a value head
constexpr int KEYS = 16;     // keys that a thread holds
constexpr int CHANNELS = 256;  // channels of a block of the convolution
constexpr int AHEAD = 4;     // tokens whose inputs the convolution loads together

__device__ __forceinline__ float exp_of(float x) {
  float y = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  y = x != x ? 0.0f : y;
  const float n = (y * __int_as_float(0x3fb8aa3b) + 12582912.0f) - 12582912.0f;
  const float t = (y - n * __int_as_float(0x3f318000)) - n * __int_as_float(0xb95e8083);
  float p = t * __int_as_float(0x394f83af) + __int_as_float(0x3ab6c737);
  p = p * t + __int_as_float(0x3c08893a);
  p = p * t + __int_as_float(0x3d2aaa46);
  p = p * t + __int_as_float(0x3e2aaaaa);
  p = p * t + __int_as_float(0x3f000000);
  const float power = __int_as_float((__float2int_rn(n) + 127) << 23);
  float e = ((((p * t) * t) + t) + 1.0f) * power;
  e = x < -87.0f ? 0.0f : e;
  e = x > 88.0f ? __int_as_float(0x7f800000) : e;
  return x != x ? x : e;
}

__device__ __forceinline__ float log1p_of(float t) {
  const float u = __fdiv_rn(t, t + 2.0f);
  const float z = u * u;
  float p = z * __int_as_float(0x3df8e5e4) + __int_as_float(0x3ddb67d5);
  p = p * z + __int_as_float(0x3e1284de);
  p = p * z + __int_as_float(0x3e4ccb53);
  p = p * z + __int_as_float(0x3eaaaaac);
  const float w = u + u;
  return w + w * (z * p);
}

__device__ __forceinline__ float softplus_of(float x) {
  const float y = (x > 0.0f ? x : 0.0f) + log1p_of(exp_of(-fabsf(x)));
  return x != x ? x : y;
}

__device__ __forceinline__ float sigmoid_of(float x) {
  const float t = exp_of(-fabsf(x));
  const float y = __fdiv_rn(x < 0.0f ? t : 1.0f, t + 1.0f);
  return x != x ? x : y;
}

extern "C" __global__ void __launch_bounds__(CHANNELS) conv_step(
    const float* __restrict__ x, i64 x_stride, const float4* __restrict__ taps,
    const u64* __restrict__ windows, const int* __restrict__ starts, int channels,
    float* __restrict__ out, i64 out_stride) {
  __shared__ float held[3 * CHANNELS];
  int at = starts[blockIdx.y];
  const int end = starts[blockIdx.y + 1];
  if (at >= end) return;
  const int first = blockIdx.x * CHANNELS, lane = threadIdx.x, channel = first + lane;
  const int values = 3 * min(CHANNELS, channels - first);
  float* window = reinterpret_cast<float*>(windows[blockIdx.y]) + 3 * (i64)first;
  for (int i = lane; i < values; i += CHANNELS) held[i] = window[i];
  __syncthreads();
  if (channel < channels) {
    const float4 w = taps[channel];
    float a = held[3 * lane], b = held[3 * lane + 1], c = held[3 * lane + 2];
    for (; at < end; at += AHEAD) {
      float next[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; i++)
        next[i] = at + i < end ? x[(at + i) * x_stride + channel] : 0.0f;
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        if (at + i < end) {
          const float y = ((w.x * a + w.y * b) + w.z * c) + w.w * next[i];
          out[(at + i) * out_stride + channel] = y * sigmoid_of(y);
          a = b;
          b = c;
          c = next[i];
        }
      }
    }
    held[3 * lane] = a;
    held[3 * lane + 1] = b;
    held[3 * lane + 2] = c;
  }
  __syncthreads();
  for (int i = lane; i < values; i += CHANNELS) window[i] = held[i];
}

extern "C" __global__ void gates(
    const float* __restrict__ a, i64 a_stride, const float* __restrict__ b, i64 b_stride,
    const float* __restrict__ decay, const float* __restrict__ bias, int heads, int count,
    float* __restrict__ g, float* __restrict__ beta) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int token = i / heads, head = i - token * heads;
  g[i] = exp_of(decay[head] * softplus_of(a[token * a_stride + head] + bias[head]));
  beta[i] = sigmoid_of(b[token * b_stride + head]);
}

// What one token brings to a warp's sixteen columns of a head.
struct Token {
  float q[KEYS], k[KEYS];  // the thread's keys
  float4 v;                // its columns
  float g, beta;
};

__device__ __forceinline__ void load_keys(float* into, const float* from) {
#pragma unroll
  for (int i = 0; i < KEYS / 4; i++) {
    const float4 four = reinterpret_cast<const float4*>(from)[i];
    into[4 * i] = four.x;
    into[4 * i + 1] = four.y;
    into[4 * i + 2] = four.z;
    into[4 * i + 3] = four.w;
  }
}

// The sum of the thread's sixteen products, adjacent pairs first.
__device__ __forceinline__ float own_sum(const float* p) {
  return (((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))) +
         (((p[8] + p[9]) + (p[10] + p[11])) + ((p[12] + p[13]) + (p[14] + p[15])));
}

// The sum over all keys in every lane: lanes four apart hold neighbouring keys, and an addition of
// two gives the same bits from either side. SUM begins at +0, which tells only where all addends
// are -0, so adding it last is the same.
__device__ __forceinline__ float whole_sum(const float* p) {
  float sum = own_sum(p);
  sum = sum + __shfl_xor_sync(~0u, sum, 4);
  sum = sum + __shfl_xor_sync(~0u, sum, 8);
  sum = sum + __shfl_xor_sync(~0u, sum, 16);
  return sum + 0.0f;
}

__device__ __forceinline__ float unit_of(const float* x) {
  float square[KEYS];
#pragma unroll
  for (int i = 0; i < KEYS; i++) square[i] = x[i] * x[i];
  return __fdiv_rn(1.0f, __fsqrt_rn(whole_sum(square) + 1e-6f));
}

__device__ __forceinline__ float& column(float4& x, int c) {
  return c == 0 ? x.x : c == 1 ? x.y : c == 2 ? x.z : x.w;
}

__device__ __forceinline__ float read_of(float4* state, const float* by, int c) {
  float product[KEYS];
#pragma unroll
  for (int i = 0; i < KEYS; i++) product[i] = column(state[i], c) * by[i];
  return whole_sum(product);
}

// A warp has sixteen columns of a value head, eight warps a head: four lanes stand side by side
// with four columns each, eight times, each time with the next sixteen keys. So a sum over keys is
// made of registers and three shuffles, and state passes through registers once a call.
extern "C" __global__ void __launch_bounds__(WARPS * 32, 16 / WARPS) delta_step(
    const float* __restrict__ q, i64 q_stride, const float* __restrict__ k, i64 k_stride,
    const float* __restrict__ v, i64 v_stride, const float* __restrict__ g,
    const float* __restrict__ beta, const u64* __restrict__ states,
    const int* __restrict__ starts, int key_heads, int heads, float scale,
    float* __restrict__ out) {
  int at = starts[blockIdx.y];
  const int end = starts[blockIdx.y + 1];
  if (at >= end) return;
  const int lane = threadIdx.x & 31, warp = blockIdx.x * WARPS + (threadIdx.x >> 5);
  const int head = warp >> 3, key = (lane >> 2) * KEYS, value = (warp & 7) * 16 + (lane & 3) * 4;
  q += head % key_heads * DIM + key;
  k += head % key_heads * DIM + key;
  v += head * DIM + value;
  out += head * DIM + value;

  const auto load = [&](Token& token) {
    load_keys(token.k, k + at * k_stride);
    load_keys(token.q, q + at * q_stride);
    token.v = *reinterpret_cast<const float4*>(v + at * v_stride);
    token.g = g[(i64)at * heads + head];
    token.beta = beta[(i64)at * heads + head];
  };
  Token token;
  load(token);
  float4* held = reinterpret_cast<float4*>(
      reinterpret_cast<float*>(states[blockIdx.y]) + ((i64)head * DIM + key) * DIM + value);
  float4 state[KEYS];
#pragma unroll
  for (int i = 0; i < KEYS; i++) state[i] = held[i * (DIM / 4)];

  while (true) {
    const float unit_k = unit_of(token.k), unit_q = unit_of(token.q);
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
      token.k[i] = token.k[i] * unit_k;
      token.q[i] = (token.q[i] * unit_q) * scale;
    }
    float4 read;
#pragma unroll
    for (int c = 0; c < 4; c++) {
#pragma unroll
      for (int i = 0; i < KEYS; i++) column(state[i], c) = column(state[i], c) * token.g;
      const float change =
          token.beta * (column(token.v, c) - read_of(state, token.k, c));
#pragma unroll
      for (int i = 0; i < KEYS; i++)
        column(state[i], c) = column(state[i], c) + token.k[i] * change;
      column(read, c) = read_of(state, token.q, c);
    }
    if (lane < 4) *reinterpret_cast<float4*>(out + (i64)at * heads * DIM) = read;
    if (++at == end) break;
    load(token);
  }
#pragma unroll
  for (int i = 0; i < KEYS; i++) held[i * (DIM / 4)] = state[i];
}
