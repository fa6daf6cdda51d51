// What lanes tell one another, and instructions by what they are called in PTX.
#pragma once

#include "threads.h"

namespace simt {

// What every lane of the warp tells; read the value of one with `of`. One that did not come tells NaN.
template <class T>
struct Told {
  const unsigned char (*at)[64];
  unsigned came;
  T of(unsigned lane) const {
    T value;
    if (came >> lane & 1) memcpy(&value, at[lane], sizeof value);
    else memset(&value, 0xff, sizeof value);
    return value;
  }
};

template <class T>
static Told<T> tell(const T& value, const char* what, unsigned mask = ~0u) {
  static_assert(sizeof(T) <= 64);
  Group& g = group(mask, what);
  const unsigned turn = g.meeting.turn % 2;
  if (!g.meeting.waiting) g.came[turn] = 0;
  g.came[turn] |= 1u << lane();
  memcpy(g.told[turn][lane()], &value, sizeof value);
  meet(g, what);
  return {g.told[turn], g.came[turn]};
}

// The value that a lane gets of another of its part of the warp, or its own where there is none.
template <class T>
static T shuffled(unsigned mask, T value, int from, bool there, const char* what) {
  static_assert(std::is_arithmetic<T>::value, "a shuffle takes a number");
  const Told<T> all = tell(value, what, mask);
  return there ? all.of(from % WARP) : value;
}

// What all lanes of a mask make of their values, two by two.
template <class T, class F>
static T reduced(unsigned mask, T value, const char* what, F both) {
  const Told<T> all = tell(value, what, mask);
  T made = value;
  bool first = true;
  for (unsigned i = 0; i < WARP; i++)
    if (all.came >> i & 1) made = first ? all.of(i) : both(made, all.of(i)), first = false;
  return made;
}

static unsigned ballot(unsigned mask, bool is, const char* what) {
  return reduced<unsigned>(mask, (unsigned)is << lane(), what, [](unsigned x, unsigned y) { return x | y; });
}

template <class T>
static T bits(const void* from) {
  T value;
  memcpy(&value, from, sizeof value);
  return value;
}

static void renew(void* at, size_t bytes) {  // memory of a block, when its first thread comes by
  for (const void* known : renewed)
    if (known == at) return;
  memset(at, 0xff, bytes);
  renewed.push_back(at);
}

static void* shared(unsigned at) { return arena + (int)at; }

// Instructions, by what they are called in PTX; the operands are in its order.

static void cp_async(unsigned to, const void* from, unsigned bytes, unsigned there) {
  current->copies.push_back({shared(to), from, bytes, there, current->group});
}

static void cp_async_commit_group() { current->group++; }

static void cp_async_wait(unsigned before) {  // the copies of groups with lower numbers
  std::vector<Copy> left;
  for (const Copy& c : current->copies) {
    if (c.group >= before) { left.push_back(c); continue; }
    memset(c.to, 0, c.bytes);
    if (c.there) memcpy(c.to, c.from, c.there);
  }
  current->copies.swap(left);
}

static void cp_async_wait_group(unsigned pending) {
  if (current->group > pending) cp_async_wait(current->group - pending);
}

static void cp_async_wait_all() { cp_async_wait(~0u); }

static void bar_sync(unsigned number, unsigned threads) {
  bars[number].expected = threads;
  meet(bars[number], "bar.sync");
}

static void mbarrier_init(unsigned at, unsigned arrivals) {
  *(Count*)shared(at) = {0, (short)arrivals, 0};
}

static void mbarrier_expect(unsigned at, unsigned bytes) {
  Count& c = *(Count*)shared(at);
  if (c.phase) cannot("a barrier in memory is used for a second phase, which is not emulated");
  c.bytes += bytes, c.left--, idle = 0;
}

static void bulk_copy(unsigned to, const void* from, unsigned bytes, unsigned at) {
  if (bytes % 16 || to % 16 || (uintptr_t)from % 16) fail("a bulk copy is not of whole quads");
  bulk.push_back({(Count*)shared(at), shared(to), from, (int)bytes});
  idle = 0;
}

static unsigned mbarrier_try_wait(unsigned at, unsigned parity) {
  Count* const c = (Count*)shared(at);
  for (Bulk& b : bulk)
    if (b.count == c && b.bytes) {
      memcpy(b.to, b.from, b.bytes);
      c->bytes -= b.bytes, b.bytes = 0, idle = 0;
    }
  if (c->left == 0 && c->bytes == 0) c->left = -1, c->phase = 1, idle = 0;
  if ((unsigned)c->phase % 2 != parity) return 1;
  yield(false);
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
static void mma(int c[4], const Fragments& mine, int words, const char* what) {
  const Told<Fragments> all = tell(mine, what);
  const unsigned g = lane() / 4, t = lane() % 4;
  for (unsigned i = 0; i < 4; i++) {
    const unsigned row = g + i / 2 * 8, column = 2 * t + i % 2;
    unsigned sum = 0;
    for (unsigned k = 0; k < 4; k++) {
      const Fragments left = all.of(row % 8 * 4 + k), right = all.of(column * 4 + k);
      for (int w = 0; w < words; w++)
        sum += dot<A, int8_t>(left.a[row / 8 + 2 * w], right.b[w]);
    }
    c[i] = sum;
  }
}

// c = a b, where nothing is added: the last operand is 0.
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
static void wgmma_on(T& o, std::index_sequence<I...>) {
  int* const d[48] = {&std::get<I>(o)...};
  const Fragments mine = {{std::get<48>(o), std::get<49>(o), std::get<50>(o), std::get<51>(o)}, {}};
  const unsigned long long b = std::get<52>(o);
  const bool more = std::get<53>(o);
  const unsigned char* const at = arena + ((b & 0x3fff) << 4);
  const unsigned across = (b >> 16 & 0x3fff) << 4, down = (b >> 32 & 0x3fff) << 4;
  const Told<Fragments> all = tell(mine, "wgmma");
  const unsigned g = lane() / 4, t = lane() % 4;
  for (unsigned i = 0; i < 48; i++) {
    const unsigned row = g + i % 4 / 2 * 8, column = i / 4 * 8 + 2 * t + i % 2;
    unsigned sum = more ? *d[i] : 0;
    for (unsigned k = 0; k < 8; k++)  // four columns of A each
      sum += dot<uint8_t, int8_t>(
          all.of(row % 8 * 4 + k % 4).a[row / 8 + k / 4 * 2],
          bits<unsigned>(at + k / 4 * across + column / 8 * down + column % 8 * 16 + k % 4 * 4));
    *d[i] = sum;
  }
}

// A warp's part of wgmma.m64n96k32: 16 rows of A in registers, B in shared memory as its descriptor
// says, without swizzle. The last three operands: the descriptor, whether d is added to, and before
// them the words of A; d stands first.
template <class... O>
static void wgmma_m64n96k32(O&&... operands) {
  std::tuple<O&&...> o(std::forward<O>(operands)...);
  wgmma_on(o, std::make_index_sequence<48>());
}

static void load_quad(unsigned& x, unsigned& y, unsigned& z, unsigned& w, const void* from) {
  const uint4 v = bits<uint4>(from);
  x = v.x, y = v.y, z = v.z, w = v.w;
}

static unsigned permuted(unsigned a, unsigned b, unsigned selector) {
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

static void prmt(int& to, unsigned a, unsigned selector) { to = permuted(a, 0, selector); }

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
  if (from == from && fabsf(half(to)) > fabsf(from)) to--;  // towards 0, from infinity too
}

static void cvt_rz_bf16_f32(unsigned short& to, float from) {
  to = from != from ? 0x7fff : bits<unsigned>(&from) >> 16;
}

static void cvt_rn_bf16_f32(unsigned short& to, float from) {
  const unsigned x = bits<unsigned>(&from);
  to = from != from ? 0x7fff : (x + 0x7fff + (x >> 16 & 1)) >> 16;
}

}  // namespace simt
