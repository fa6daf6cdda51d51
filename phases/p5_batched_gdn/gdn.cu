// The recurrent part of a GDN layer for m rows: causal convolution, gates, gated delta rule.
//
// Row i has tokens starts[i] to starts[i + 1] of all, and its own state behind pointer i. A row
// without tokens touches nothing, its pointer included. Every operation rounds once, in the order
// of arithmetic.md (items 11 to 16 and 20 to 22); the program is compiled without contraction.
// device.cuh stands before this source. A kernel may start before the one before it has ended: what
// is not a weight is read after the wait, by pointers that do not say that nobody writes there.

constexpr int DIM = 128;     // width of a key and of a value head
constexpr int KEYS = 16;     // keys that a thread holds, of as many columns of a value head
constexpr int COLUMNS = RUN ? 2 : 4;
constexpr int CHANNELS = 256;  // channels of a block of the convolution
constexpr int AHEAD = 4;     // tokens whose inputs the convolution loads together
constexpr int SPAN = 64;     // tokens of a row that a block of the convolution takes

// The blocks of a row's later spans begin with the inputs before them. The block of the first span
// alone reads the window and writes what it becomes, so no other block can meet it half written.
extern "C" __global__ void __launch_bounds__(CHANNELS) conv_step(
    const float* x, i64 x_stride, const float4* __restrict__ taps, const u64* windows,
    const int* starts, int channels, float* out, i64 out_stride) {
  __shared__ float held[3 * CHANNELS];
  const int blocks = (channels + CHANNELS - 1) / CHANNELS, span = blockIdx.x / blocks;
  const int first = blockIdx.x % blocks * CHANNELS, lane = threadIdx.x, channel = first + lane;
  const float4 w = channel < channels ? taps[channel] : float4();
  wait_for_inputs();
  let_the_next_start();
  const int end = starts[blockIdx.y + 1];
  int at = starts[blockIdx.y] + span * SPAN;
  if (at >= end) return;
  const int stop = min(end, at + SPAN), values = 3 * min(CHANNELS, channels - first);
  float* window = reinterpret_cast<float*>(windows[blockIdx.y]) + 3 * (i64)first;
  if (span == 0) {
    for (int i = lane; i < values; i += CHANNELS) held[i] = window[i];
    __syncthreads();
  }
  if (channel < channels) {
    const auto before = [&](int token, int back) { return x[(token - back) * x_stride + channel]; };
    float a = span ? before(at, 3) : held[3 * lane];
    float b = span ? before(at, 2) : held[3 * lane + 1];
    float c = span ? before(at, 1) : held[3 * lane + 2];
    for (; at < stop; at += AHEAD) {
      float next[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; i++)
        next[i] = at + i < stop ? x[(at + i) * x_stride + channel] : 0.0f;
#pragma unroll
      for (int i = 0; i < AHEAD; i++) {
        if (at + i < stop) {
          const float y = ((w.x * a + w.y * b) + w.z * c) + w.w * next[i];
          out[(at + i) * out_stride + channel] = y * sigmoid_of(y);
          a = b;
          b = c;
          c = next[i];
        }
      }
    }
    const bool longer = stop < end;
    held[3 * lane] = longer ? before(end, 3) : a;
    held[3 * lane + 1] = longer ? before(end, 2) : b;
    held[3 * lane + 2] = longer ? before(end, 1) : c;
  }
  if (span) return;
  __syncthreads();
  for (int i = lane; i < values; i += CHANNELS) window[i] = held[i];
}

extern "C" __global__ void gates(
    const float* a, i64 a_stride, const float* b, i64 b_stride, const float* __restrict__ decay,
    const float* __restrict__ bias, int heads, int count, float* g, float* beta) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int token = i / heads, head = i - token * heads;
  const float slope = decay[head], shift = bias[head];
  wait_for_inputs();
  let_the_next_start();
  g[i] = exp_of(slope * softplus_of(a[token * a_stride + head] + shift));
  beta[i] = sigmoid_of(b[token * b_stride + head]);
}

struct alignas(4 * COLUMNS) Columns {
  float of[COLUMNS];
};

// What one token brings to a thread.
struct Token {
  float q[KEYS], k[KEYS];
  Columns v;
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

__device__ __forceinline__ float read_of(const Columns* state, const float* by, int c) {
  float product[KEYS];
#pragma unroll
  for (int i = 0; i < KEYS; i++) product[i] = state[i].of[c] * by[i];
  return whole_sum(product);
}

__device__ __forceinline__ void normalise(Token& token, float scale) {
  const float unit_k = unit_of(token.k), unit_q = unit_of(token.q);
#pragma unroll
  for (int i = 0; i < KEYS; i++) {
    token.k[i] = token.k[i] * unit_k;
    token.q[i] = (token.q[i] * unit_q) * scale;
  }
}

// Four lanes of a warp stand side by side, each with its columns, eight times, each time with the
// next sixteen keys. So a sum over keys is made of registers and three shuffles, and state passes
// through registers once a call. With RUN, for rows of many tokens, a head has twice the warps, and
// the next token is loaded and normed beside this one's work.
extern "C" __global__ void __launch_bounds__(WARPS * 32, 16 / WARPS) delta_step(
    const float* q, i64 q_stride, const float* k, i64 k_stride, const float* v, i64 v_stride,
    const float* g, const float* beta, const u64* states, const int* starts, int key_heads,
    int heads, float scale, float* out) {
  constexpr int of_warp = 4 * COLUMNS, of_head = DIM / of_warp;
  wait_for_inputs();
  let_the_next_start();
  int at = starts[blockIdx.y];
  const int end = starts[blockIdx.y + 1];
  if (at >= end) return;
  const int lane = threadIdx.x & 31, warp = blockIdx.x * WARPS + (threadIdx.x >> 5);
  const int head = warp / of_head, key = (lane >> 2) * KEYS;
  const int value = warp % of_head * of_warp + (lane & 3) * COLUMNS;
  q += head % key_heads * DIM + key;
  k += head % key_heads * DIM + key;
  v += head * DIM + value;
  out += head * DIM + value;

  const auto load = [&](Token& token, int at) {
    load_keys(token.k, k + at * k_stride);
    load_keys(token.q, q + at * q_stride);
    token.v = *reinterpret_cast<const Columns*>(v + at * v_stride);
    token.g = g[(i64)at * heads + head];
    token.beta = beta[(i64)at * heads + head];
  };
  Token token, next;
  load(token, at);
  Columns* held = reinterpret_cast<Columns*>(
      reinterpret_cast<float*>(states[blockIdx.y]) + ((i64)head * DIM + key) * DIM + value);
  Columns state[KEYS];
#pragma unroll
  for (int i = 0; i < KEYS; i++) state[i] = held[i * (DIM / COLUMNS)];

  if (RUN) normalise(token, scale);
  while (true) {
    if (RUN) load(next, min(at + 1, end - 1));
    else normalise(token, scale);
    Columns read;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
      for (int i = 0; i < KEYS; i++) state[i].of[c] = state[i].of[c] * token.g;
      const float change = token.beta * (token.v.of[c] - read_of(state, token.k, c));
#pragma unroll
      for (int i = 0; i < KEYS; i++) state[i].of[c] = state[i].of[c] + token.k[i] * change;
      read.of[c] = read_of(state, token.q, c);
    }
    if (RUN) normalise(next, scale);
    if (lane < 4) *reinterpret_cast<Columns*>(out + (i64)at * heads * DIM) = read;
    if (++at == end) break;
    if (RUN) token = next;
    else load(token, at);
  }
#pragma unroll
  for (int i = 0; i < KEYS; i++) held[i * (DIM / COLUMNS)] = state[i];
}
