// Recurrent ops of a gated DeltaNet (GDN) layer for m rows: causal convolution, gates, gated delta
// rule. Row i has tokens starts[i]..starts[i + 1] - 1 of the packed batch and its own state at
// pointer i. A row without tokens reads and writes nothing, not even its pointer.
//
// Operations follow contracts/arithmetic.md (items 11 to 16 and 20 to 22) and round once each;
// NVRTC compiles with contraction off. Options: -DWARPS (warps per block of `delta_step`),
// -DMULTI_TOKEN (a row has more than one token). Included after device.cuh.
//
// An earlier kernel may still write the inputs. Everything but the weights is therefore read after
// `pdl_wait`, and those pointers are not __restrict__: the compiler would move read-only loads up.

constexpr int DIM = 128;              // width of a key head and of a value head
constexpr int KEYS_PER_THREAD = 16;   // state rows per thread
constexpr int COLUMNS_PER_THREAD = MULTI_TOKEN ? 2 : 4;
constexpr int CONV_CHANNELS = 256;    // channels per block of `conv_step`
constexpr int TOKENS_PER_LOAD = 4;    // tokens whose inputs `conv_step` loads together
constexpr int CONV_SPAN = 64;         // tokens of a row per block of `conv_step`

// out = SILU(conv(x)), kernel width 4 [20]. windows[row] f32[channels, 3] is updated.
// Grid: x spans times channel blocks, y rows. A block of a later span takes the three inputs before
// the span from x. Only the first span's block reads and writes the window, so there is no race.
extern "C" __global__ void __launch_bounds__(CONV_CHANNELS) conv_step(
    const float* x, i64 x_stride, const float4* __restrict__ taps, const u64* windows,
    const int* starts, int channels, float* out, i64 out_stride) {
  __shared__ float shared_window[3 * CONV_CHANNELS];
  const int blocks = (channels + CONV_CHANNELS - 1) / CONV_CHANNELS, span = blockIdx.x / blocks;
  const int first_channel = blockIdx.x % blocks * CONV_CHANNELS;
  const int lane = threadIdx.x, channel = first_channel + lane;
  const float4 w = channel < channels ? taps[channel] : float4();
  pdl_wait();
  pdl_launch_dependents();
  const int row_end = starts[blockIdx.y + 1];
  int token = starts[blockIdx.y] + span * CONV_SPAN;
  if (token >= row_end) return;
  const int span_end = min(row_end, token + CONV_SPAN);
  const int window_values = 3 * min(CONV_CHANNELS, channels - first_channel);
  float* window = reinterpret_cast<float*>(windows[blockIdx.y]) + 3 * (i64)first_channel;
  if (span == 0) {
    for (int i = lane; i < window_values; i += CONV_CHANNELS) shared_window[i] = window[i];
    __syncthreads();
  }
  if (channel < channels) {
    const auto previous = [&](int from, int back) { return x[(from - back) * x_stride + channel]; };
    float a = span ? previous(token, 3) : shared_window[3 * lane];
    float b = span ? previous(token, 2) : shared_window[3 * lane + 1];
    float c = span ? previous(token, 1) : shared_window[3 * lane + 2];
    for (; token < span_end; token += TOKENS_PER_LOAD) {
      float inputs[TOKENS_PER_LOAD];
#pragma unroll
      for (int i = 0; i < TOKENS_PER_LOAD; i++)
        inputs[i] = token + i < span_end ? x[(token + i) * x_stride + channel] : 0.0f;
#pragma unroll
      for (int i = 0; i < TOKENS_PER_LOAD; i++) {
        if (token + i < span_end) {
          const float y = ((w.x * a + w.y * b) + w.z * c) + w.w * inputs[i];
          out[(token + i) * out_stride + channel] = y * sigmoid_of(y);
          a = b;
          b = c;
          c = inputs[i];
        }
      }
    }
    const bool more_spans = span_end < row_end;
    shared_window[3 * lane] = more_spans ? previous(row_end, 3) : a;
    shared_window[3 * lane + 1] = more_spans ? previous(row_end, 2) : b;
    shared_window[3 * lane + 2] = more_spans ? previous(row_end, 1) : c;
  }
  if (span) return;
  __syncthreads();
  for (int i = lane; i < window_values; i += CONV_CHANNELS) window[i] = shared_window[i];
}

// alpha = EXP(neg_exp_a SOFTPLUS(a + dt_bias)), beta = SIGMOID(b) [21]. neg_exp_a is GGUF `ssm_a`,
// which stores -exp(A_log). One thread per (token, head).
extern "C" __global__ void gates(const float* a, i64 a_stride, const float* b, i64 b_stride,
                                 const float* __restrict__ neg_exp_a,
                                 const float* __restrict__ dt_bias, int heads, int count,
                                 float* alpha, float* beta) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int token = i / heads, head = i - token * heads;
  const float head_neg_exp_a = neg_exp_a[head], head_dt_bias = dt_bias[head];
  pdl_wait();
  pdl_launch_dependents();
  alpha[i] = exp_of(head_neg_exp_a * softplus_of(a[token * a_stride + head] + head_dt_bias));
  beta[i] = sigmoid_of(b[token * b_stride + head]);
}

struct alignas(4 * COLUMNS_PER_THREAD) Columns {
  float of[COLUMNS_PER_THREAD];
};

// One token's inputs of a thread.
struct Token {
  float q[KEYS_PER_THREAD], k[KEYS_PER_THREAD];
  Columns v;
  float alpha, beta;
};

__device__ __forceinline__ void load_keys(float* keys, const float* from) {
#pragma unroll
  for (int i = 0; i < KEYS_PER_THREAD / 4; i++) {
    const float4 key_quad = reinterpret_cast<const float4*>(from)[i];
    keys[4 * i] = key_quad.x;
    keys[4 * i + 1] = key_quad.y;
    keys[4 * i + 2] = key_quad.z;
    keys[4 * i + 3] = key_quad.w;
  }
}

// Sum of sixteen products, adjacent pairs first.
__device__ __forceinline__ float thread_sum(const float* p) {
  return (((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))) +
         (((p[8] + p[9]) + (p[10] + p[11])) + ((p[12] + p[13]) + (p[14] + p[15])));
}

// SUM over all 128 keys [11], the same bits in every lane. Lanes 4, 8 and 16 apart hold adjacent
// key ranges, and a + b == b + a. SUM starts at +0; that only matters if all addends are -0, so
// adding +0 last gives the same bits.
__device__ __forceinline__ float warp_sum(const float* p) {
  float sum = thread_sum(p);
  sum = sum + __shfl_xor_sync(~0u, sum, 4);
  sum = sum + __shfl_xor_sync(~0u, sum, 8);
  sum = sum + __shfl_xor_sync(~0u, sum, 16);
  return sum + 0.0f;
}

__device__ __forceinline__ float inverse_l2_norm(const float* x) {
  float squares[KEYS_PER_THREAD];
#pragma unroll
  for (int i = 0; i < KEYS_PER_THREAD; i++) squares[i] = x[i] * x[i];
  return __fdiv_rn(1.0f, __fsqrt_rn(warp_sum(squares) + 1e-6f));
}

// Column `column` of the state times a key or query vector, summed over keys.
__device__ __forceinline__ float read_state(const Columns* state, const float* vector, int column) {
  float products[KEYS_PER_THREAD];
#pragma unroll
  for (int i = 0; i < KEYS_PER_THREAD; i++) products[i] = state[i].of[column] * vector[i];
  return warp_sum(products);
}

__device__ __forceinline__ void l2_normalise(Token& token, float scale) {
  const float inverse_norm_k = inverse_l2_norm(token.k), inverse_norm_q = inverse_l2_norm(token.q);
#pragma unroll
  for (int i = 0; i < KEYS_PER_THREAD; i++) {
    token.k[i] = token.k[i] * inverse_norm_k;
    token.q[i] = (token.q[i] * inverse_norm_q) * scale;
  }
}

// Gated delta rule [22] for each row's tokens in order: S = alpha S; v_new = beta (v - S^T k);
// S = S + k v_new; out = S^T q. Grid: x groups of WARPS warps over heads and columns, y rows.
//
// A lane has KEYS_PER_THREAD keys of COLUMNS_PER_THREAD columns: lane % 4 selects the columns,
// lane / 4 the keys. A sum over keys needs 15 register additions and three shuffles. The state is
// loaded and stored once per launch. With MULTI_TOKEN a head has twice the warps, and the next
// token is loaded and normalised while the present one is processed.
extern "C" __global__ void __launch_bounds__(WARPS * 32, 16 / WARPS) delta_step(
    const float* q, i64 q_stride, const float* k, i64 k_stride, const float* v, i64 v_stride,
    const float* alpha, const float* beta, const u64* states, const int* starts, int key_heads,
    int heads, float scale, float* out) {
  constexpr int columns_per_warp = 4 * COLUMNS_PER_THREAD, warps_per_head = DIM / columns_per_warp;
  pdl_wait();
  pdl_launch_dependents();
  int index = starts[blockIdx.y];
  const int row_end = starts[blockIdx.y + 1];
  if (index >= row_end) return;
  const int lane = threadIdx.x & 31, warp = blockIdx.x * WARPS + (threadIdx.x >> 5);
  const int head = warp / warps_per_head, key = (lane >> 2) * KEYS_PER_THREAD;
  const int value = warp % warps_per_head * columns_per_warp + (lane & 3) * COLUMNS_PER_THREAD;
  q += head % key_heads * DIM + key;
  k += head % key_heads * DIM + key;
  v += head * DIM + value;
  out += head * DIM + value;

  const auto load = [&](Token& token, int index) {
    load_keys(token.k, k + index * k_stride);
    load_keys(token.q, q + index * q_stride);
    token.v = *reinterpret_cast<const Columns*>(v + index * v_stride);
    token.alpha = alpha[(i64)index * heads + head];
    token.beta = beta[(i64)index * heads + head];
  };
  Token token, next;
  load(token, index);
  Columns* state_in_memory = reinterpret_cast<Columns*>(
      reinterpret_cast<float*>(states[blockIdx.y]) + ((i64)head * DIM + key) * DIM + value);
  Columns state[KEYS_PER_THREAD];
#pragma unroll
  for (int i = 0; i < KEYS_PER_THREAD; i++)
    state[i] = state_in_memory[i * (DIM / COLUMNS_PER_THREAD)];

  if (MULTI_TOKEN) l2_normalise(token, scale);
  while (true) {
    if (MULTI_TOKEN) load(next, min(index + 1, row_end - 1));
    else l2_normalise(token, scale);
    Columns result;
#pragma unroll
    for (int column = 0; column < COLUMNS_PER_THREAD; column++) {
#pragma unroll
      for (int i = 0; i < KEYS_PER_THREAD; i++)
        state[i].of[column] = state[i].of[column] * token.alpha;
      const float v_new = token.beta * (token.v.of[column] - read_state(state, token.k, column));
#pragma unroll
      for (int i = 0; i < KEYS_PER_THREAD; i++)
        state[i].of[column] = state[i].of[column] + token.k[i] * v_new;
      result.of[column] = read_state(state, token.q, column);
    }
    if (MULTI_TOKEN) l2_normalise(next, scale);
    if (lane < 4) *reinterpret_cast<Columns*>(out + (i64)index * heads * DIM) = result;
    if (++index == row_end) break;
    if (MULTI_TOKEN) token = next;
    else load(token, index);
  }
#pragma unroll
  for (int i = 0; i < KEYS_PER_THREAD; i++)
    state_in_memory[i * (DIM / COLUMNS_PER_THREAD)] = state[i];
}
