// Warp-level exchange, and the PTX instructions that kernels use.
#pragma once

#include "threads.h"

namespace simt {

// The operands of all lanes of a warp. `from_lane` of a lane that did not arrive returns NaN bits.
template <class T>
struct LaneValues {
  const unsigned char (*at)[64];
  unsigned arrived;
  T from_lane(unsigned lane) const {
    T value;
    if (arrived >> lane & 1) memcpy(&value, at[lane], sizeof value);
    else memset(&value, 0xff, sizeof value);
    return value;
  }
};

template <class T>
static LaneValues<T> exchange(const T& value, const char* operation, unsigned mask = ~0u) {
  static_assert(sizeof(T) <= 64);
  LaneGroup& g = lane_group(mask, operation);
  const unsigned slot = g.barrier.generation % 2;
  if (!g.barrier.waiting) g.arrived[slot] = 0;
  g.arrived[slot] |= 1u << lane();
  memcpy(g.values[slot][lane()], &value, sizeof value);
  arrive_and_wait(g, operation);
  return {g.values[slot], g.arrived[slot]};
}

// Returns the value of lane `from`, or the own value if `from` is out of range.
template <class T>
static T shuffle(unsigned mask, T value, int from, bool in_range, const char* operation) {
  static_assert(std::is_arithmetic<T>::value, "a shuffle takes a number");
  const LaneValues<T> all = exchange(value, operation, mask);
  return in_range ? all.from_lane(from % WARP) : value;
}

// Combines the values of all lanes of a mask, in lane order.
template <class T, class F>
static T reduce_lanes(unsigned mask, T value, const char* operation, F combine) {
  const LaneValues<T> all = exchange(value, operation, mask);
  T result = value;
  bool first = true;
  for (unsigned i = 0; i < WARP; i++)
    if (all.arrived >> i & 1)
      result = first ? all.from_lane(i) : combine(result, all.from_lane(i)), first = false;
  return result;
}

static unsigned ballot(unsigned mask, bool is, const char* operation) {
  return reduce_lanes<unsigned>(mask, (unsigned)is << lane(), operation,
                                [](unsigned x, unsigned y) { return x | y; });
}

template <class T>
static T bits(const void* from) {
  T value;
  memcpy(&value, from, sizeof value);
  return value;
}

static void poison_static(void* at, size_t bytes) {  // shared memory of a template, once per block
  for (const void* poisoned : poisoned_statics)
    if (poisoned == at) return;
  memset(at, 0xff, bytes);
  poisoned_statics.push_back(at);
}

static void* shared_pointer(unsigned at) { return shared_memory + (int)at; }

// PTX instructions by name; operands in PTX order.

static void cp_async(unsigned to, const void* from, unsigned bytes, unsigned valid_bytes) {
  current->copies.push_back({shared_pointer(to), from, bytes, valid_bytes, current->copy_group});
}

static void cp_async_commit_group() { current->copy_group++; }

static void cp_async_wait(unsigned first_pending) {  // completes the copies of earlier groups
  std::vector<Copy> pending;
  for (const Copy& c : current->copies) {
    if (c.copy_group >= first_pending) { pending.push_back(c); continue; }
    memset(c.to, 0, c.bytes);
    if (c.valid_bytes) memcpy(c.to, c.from, c.valid_bytes);
  }
  current->copies.swap(pending);
}

static void cp_async_wait_group(unsigned pending) {
  if (current->copy_group > pending) cp_async_wait(current->copy_group - pending);
}

static void cp_async_wait_all() { cp_async_wait(~0u); }

static void bar_sync(unsigned number, unsigned threads) {
  named_barriers[number].expected = threads;
  arrive_and_wait(named_barriers[number], "bar.sync");
}

static void mbarrier_init(unsigned at, unsigned arrivals) {
  *(MBarrier*)shared_pointer(at) = {0, (short)arrivals, 0};
}

static void mbarrier_expect(unsigned at, unsigned bytes) {
  MBarrier& c = *(MBarrier*)shared_pointer(at);
  if (c.phase) unsupported("an mbarrier is used for a second phase, which is not emulated");
  c.pending_bytes += bytes, c.pending_arrivals--, idle_turns = 0;
}

static void bulk_copy(unsigned to, const void* from, unsigned bytes, unsigned at) {
  if (bytes % 16 || to % 16 || (uintptr_t)from % 16) fail("a bulk copy is not aligned to 16 bytes");
  bulk_copies.push_back({(MBarrier*)shared_pointer(at), shared_pointer(to), from, (int)bytes});
  idle_turns = 0;
}

static unsigned mbarrier_try_wait(unsigned at, unsigned parity) {
  MBarrier* const c = (MBarrier*)shared_pointer(at);
  for (BulkCopy& b : bulk_copies)
    if (b.barrier == c && b.bytes) {
      memcpy(b.to, b.from, b.bytes);
      c->pending_bytes -= b.bytes, b.bytes = 0, idle_turns = 0;
    }
  if (c->pending_arrivals == 0 && c->pending_bytes == 0)
    c->pending_arrivals = -1, c->phase = 1, idle_turns = 0;
  if ((unsigned)c->phase % 2 != parity) return 1;
  yield_turn(false);
  return 0;
}

template <class A, class B>
static int dot(unsigned a, unsigned b) {
  int sum = 0;
  for (int i = 0; i < 32; i += 8) sum += (int)(A)(a >> i) * (B)(b >> i);
  return sum;
}

struct Fragments { unsigned a[4], b[2]; };

template <class A>
static void mma(int c[4], const Fragments& operands, int words, const char* operation) {
  const LaneValues<Fragments> all = exchange(operands, operation);
  const unsigned g = lane() / 4, t = lane() % 4;
  for (unsigned i = 0; i < 4; i++) {
    const unsigned row = g + i / 2 * 8, column = 2 * t + i % 2;
    unsigned sum = 0;
    for (unsigned k = 0; k < 4; k++) {
      const Fragments left = all.from_lane(row % 8 * 4 + k), right = all.from_lane(column * 4 + k);
      for (int w = 0; w < words; w++)
        sum += dot<A, int8_t>(left.a[row / 8 + 2 * w], right.b[w]);
    }
    c[i] = sum;
  }
}

// c = a b; the addend operand is always 0.
template <class A>
static void mma_m16n8k32(int& c0, int& c1, int& c2, int& c3, unsigned a0, unsigned a1, unsigned a2,
                         unsigned a3, unsigned b0, unsigned b1, int) {
  int c[4];
  mma<A>(c, {{a0, a1, a2, a3}, {b0, b1}}, 2, "mma.m16n8k32");
  c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];
}

static void mma_m16n8k16(int& c0, int& c1, int& c2, int& c3, unsigned a0, unsigned a1, unsigned b0,
                         int) {
  int c[4];
  mma<int8_t>(c, {{a0, a1}, {b0}}, 1, "mma.m16n8k16");
  c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];
}

template <class T, size_t... I>
static void wgmma_apply(T& o, std::index_sequence<I...>) {
  int* const d[48] = {&std::get<I>(o)...};
  const Fragments operands = {{std::get<48>(o), std::get<49>(o), std::get<50>(o), std::get<51>(o)},
                              {}};
  const unsigned long long b = std::get<52>(o);
  const bool accumulate = std::get<53>(o);
  const unsigned char* const at = shared_memory + ((b & 0x3fff) << 4);
  const unsigned across = (b >> 16 & 0x3fff) << 4, down = (b >> 32 & 0x3fff) << 4;
  const LaneValues<Fragments> all = exchange(operands, "wgmma");
  const unsigned g = lane() / 4, t = lane() % 4;
  for (unsigned i = 0; i < 48; i++) {
    const unsigned row = g + i % 4 / 2 * 8, column = i / 4 * 8 + 2 * t + i % 2;
    unsigned sum = accumulate ? *d[i] : 0;
    for (unsigned k = 0; k < 8; k++)  // four columns of A per word
      sum += dot<uint8_t, int8_t>(
          all.from_lane(row % 8 * 4 + k % 4).a[row / 8 + k / 4 * 2],
          bits<unsigned>(at + k / 4 * across + column / 8 * down + column % 8 * 16 + k % 4 * 4));
    *d[i] = sum;
  }
}

// A warp's part of wgmma.m64n96k32: 16 rows of A in registers, B in shared memory at a descriptor
// without swizzle. Operands: 48 words of d, 4 words of A, the descriptor, and whether d is
// accumulated.
template <class... O>
static void wgmma_m64n96k32(O&&... operands) {
  std::tuple<O&&...> o(std::forward<O>(operands)...);
  wgmma_apply(o, std::make_index_sequence<48>());
}

static void load_quad(unsigned& x, unsigned& y, unsigned& z, unsigned& w, const void* from) {
  const uint4 v = bits<uint4>(from);
  x = v.x, y = v.y, z = v.z, w = v.w;
}

static unsigned byte_permute(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long all = a | (unsigned long long)b << 32;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned s = selector >> (4 * i) & 15;
    unsigned byte = all >> (8 * (s & 7)) & 255;
    if (s & 8) byte = byte & 128 ? 255 : 0;
    r |= byte << (8 * i);
  }
  return r;
}

static void prmt(int& to, unsigned a, unsigned selector) { to = byte_permute(a, 0, selector); }

static float half(unsigned short x) { return bits<_Float16>(&x); }
static void cvt_f32_f16(float& to, unsigned short from) { to = half(from); }

static void cvt_f32_bf16(float& to, unsigned short from) {
  const unsigned x = (unsigned)from << 16;
  to = bits<float>(&x);
}

static void cvt_rn_f16_f32(unsigned short& to, float from) {
  const _Float16 y = (_Float16)from;
  to = from != from ? 0x7fff : bits<unsigned short>(&y);
}

static void cvt_rz_f16_f32(unsigned short& to, float from) {
  cvt_rn_f16_f32(to, from);
  if (from == from && fabsf(half(to)) > fabsf(from)) to--;  // towards 0, also from infinity
}

static void cvt_rz_bf16_f32(unsigned short& to, float from) {
  to = from != from ? 0x7fff : bits<unsigned>(&from) >> 16;
}

static void cvt_rn_bf16_f32(unsigned short& to, float from) {
  const unsigned x = bits<unsigned>(&from);
  to = from != from ? 0x7fff : (x + 0x7fff + (x >> 16 & 1)) >> 16;
}

}  // namespace simt
