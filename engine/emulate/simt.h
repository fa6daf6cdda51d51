// CUDA C++ on the CPU: what this project's kernels need of a device, for a host compiler. Threads of a
// block are fibers, run one after another and held where they must meet; blocks follow one another.
// What lanes do together is done here lane by lane, and every operation rounds as a device's does.
// Harsher than a device: an asynchronous copy is made when it is awaited and not before, shared memory
// is NaN when a block begins, threads take turns in one order and in the other, a lane that did not
// come tells NaN, and lanes that meet in different places are an error.
#pragma once

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __host__
#define __constant__
#define __noinline__ __attribute__((noinline))
#define __align__(n) alignas(n)
#define __shared__ static __attribute__((section("simt_shared")))

#define SIMT_VECTORS(T, NAME, TWO, FOUR)                                       \
  struct alignas(TWO) NAME##2 { T x, y; };                                     \
  struct NAME##3 { T x, y, z; };                                               \
  struct alignas(FOUR) NAME##4 { T x, y, z, w; };                              \
  static inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }            \
  static inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }    \
  static inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIMT_VECTORS(signed char, char, 2, 4)
SIMT_VECTORS(unsigned char, uchar, 2, 4)
SIMT_VECTORS(short, short, 4, 8)
SIMT_VECTORS(unsigned short, ushort, 4, 8)
SIMT_VECTORS(int, int, 8, 16)
SIMT_VECTORS(unsigned, uint, 8, 16)
SIMT_VECTORS(float, float, 8, 16)

static uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace simt {

// Where a thread of control stands. Swapping two of them saves what a call must preserve.
#if defined(__x86_64__) && !defined(SIMT_PORTABLE)
asm(".text\nsimt_swap:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov (%rsi), %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
extern "C" __attribute__((visibility("hidden"))) void simt_swap(void** from, void** to)
    asm("simt_swap");
typedef void* Context;

static void begin(Context& c, unsigned char* stack, size_t size, void (*run)()) {
  void** top = (void**)(stack + size) - 2;  // a function begins eight bytes off a multiple of 16
  *top = (void*)run;
  c = top - 6;
}
static void swap(Context& from, Context& to) { simt_swap(&from, &to); }
#else
typedef ucontext_t Context;

static void begin(Context& c, unsigned char* stack, size_t size, void (*run)()) {
  getcontext(&c);
  c.uc_stack.ss_sp = stack, c.uc_stack.ss_size = size, c.uc_link = nullptr;
  makecontext(&c, run, 0);
}
static void swap(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

#ifndef SIMT_PATIENCE
#define SIMT_PATIENCE 60  // seconds of this process in which a thread of a block must end
#endif
constexpr unsigned WARP = 32, THREADS = 1024, STACK = 1 << 17, ARENA = 1 << 18, EDGE = 1 << 12;
constexpr unsigned SHARED = 227 << 10, ROWS = 65535;  // of a block, of a grid, at most

struct Meeting {  // a place where threads wait for one another
  unsigned expected, waiting, turn, counted, told;
  const char* what;
};

struct Copy {  // asynchronous, by one thread
  void* to;
  const void* from;
  unsigned bytes, there, group;
};

struct Fiber {
  Context at;
  uint3 thread;
  bool started, done;
  unsigned group;  // of copies that are not yet committed
  std::vector<Copy> copies;
};

struct Group {  // lanes of a warp that meet: all of them, or those of a mask
  Meeting meeting;
  unsigned mask, inside;    // inside: lanes that have come and not yet gone on
  unsigned came[2];         // the lanes that showed something, by turns
  alignas(16) unsigned char told[2][WARP][64];  // what they showed
};

struct Warp {
  unsigned alive;           // lanes that have not ended
  Group whole, part[WARP];  // no lane is in two at a time, so there is always one to spare
};

struct Count {  // a barrier in memory, of one phase
  int bytes;
  short left, phase;
};

struct Bulk {  // a copy that a barrier in memory counts
  Count* count;
  void* to;
  const void* from;
  int bytes;
};

alignas(128) static unsigned char arena[ARENA];  // dynamic shared memory; addresses count from here
static Fiber fibers[THREADS];
static Warp warps[THREADS / WARP];
static Meeting block, bars[16];
static std::vector<Bulk> bulk;
static std::vector<const void*> renewed;
static Fiber* current;
static Context host;
static char failure[300];
static void (*body)(void*);
static void* body_of;
static unsigned threads, asked, left, idle;  // of the block; asked: bytes of its dynamic shared memory;
  // idle: turns since anything happened
static bool backwards, turned;  // the order of blocks, and of the threads of this one

static void turn_to(Fiber& next) {
  Fiber& own = *current;
  current = &next, threadIdx = next.thread;
  swap(own.at, next.at);
}

__attribute__((noinline, noreturn)) static void fail(const char* format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(failure, sizeof failure, format, args);
  va_end(args);
  swap(current->at, host);
  __builtin_unreachable();
}

// Let another thread go on: of the warp, or of the whole block.
__attribute__((noinline)) static void yield(bool within_warp) {
  const unsigned own = current - fibers, first = within_warp ? own / WARP * WARP : 0;
  const unsigned many = within_warp && threads - first > WARP ? WARP : threads - first;
  if (++idle > 4 * threads + 64)
    fail("%u threads wait for what never comes%s%s", left, block.waiting ? ", some at " : "",
         block.waiting ? block.what : "");
  unsigned next = own - first;
  do next = turned ? (next ? next : many) - 1 : next + 1 < many ? next + 1 : 0;
  while (fibers[first + next].done);
  turn_to(fibers[first + next]);
}

static unsigned lane() { return threadIdx.x % WARP; }
static Warp& warp() { return warps[threadIdx.x / WARP]; }

static void open(Meeting& m) {
  m.waiting = 0, m.turn++, m.told = m.counted, m.counted = 0;
}

// Wait until all that are expected have come; returns how many of them count.
static unsigned meet(Meeting& m, const char* what, bool counts = false, bool within_warp = false) {
  if (m.waiting == 0) m.what = what;
  else if (m.what != what && strcmp(m.what, what)) fail("some threads wait at %s and others at %s", m.what, what);
  m.counted += counts, m.waiting++, idle = 0;
  if (m.waiting == m.expected) open(m);
  else
    for (const unsigned turn = m.turn; m.turn == turn;) yield(within_warp);
  return m.told;
}

// Where the lanes of a mask meet.
static Group& group(unsigned mask, const char* what) {
  Warp& w = warp();
  if (!(mask >> lane() & 1)) fail("a lane is at %s with a mask that leaves it out", what);
  if (mask == ~0u) return w.whole;
  Group* spare = nullptr;
  for (Group& g : w.part)
    if (!g.inside) spare = &g;
    else if (g.mask == mask) return g;
  spare->mask = mask, spare->meeting = {(unsigned)__builtin_popcount(mask & w.alive), 0, 0, 0, 0, nullptr};
  return *spare;
}

static void meet(Group& g, const char* what) {
  g.inside++;
  meet(g.meeting, what, false, true);
  g.inside--;
}

static void leave(Meeting& m) {
  m.expected--;
  if (m.waiting && m.waiting == m.expected) open(m);
}

static void live() {  // a fiber: a thread of one block after another
  for (;;) {
    body(body_of);
    current->done = true, left--, idle = 0;
    Warp& w = warp();
    w.alive &= ~(1u << lane());
    leave(block);
    leave(w.whole.meeting);
    for (Group& g : w.part)
      if (g.inside && g.mask >> lane() & 1) leave(g.meeting);
    if (left) yield(w.alive);
    else swap(current->at, host);
  }
}

static bool start_threads() {
  static unsigned char* stacks;
  if (!stacks) {
    void* room = mmap(nullptr, (size_t)STACK * THREADS, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
      strcpy(failure, "there is no memory for the stacks of threads");
      return false;
    }
    stacks = (unsigned char*)room;
  }
  for (unsigned i = 0; i < threads; i++)
    if (!fibers[i].started) {
      begin(fibers[i].at, stacks + (size_t)STACK * i, STACK, live);
      fibers[i].started = true;
    }
  return true;
}

extern "C" unsigned char __start_simt_shared[] __attribute__((weak, visibility("hidden")));
extern "C" unsigned char __stop_simt_shared[] __attribute__((weak, visibility("hidden")));

static unsigned blocks;  // that have begun

static bool run_block() {
  memset(arena, 0xff, asked + EDGE);
  if (__start_simt_shared)
    memset(__start_simt_shared, 0xff, __stop_simt_shared - __start_simt_shared);
  block = {threads, 0, 0, 0, 0, nullptr};
  memset(bars, 0, sizeof bars);
  bulk.clear(), renewed.clear();
  for (unsigned i = 0; i < threads; i++) {
    Fiber& f = fibers[i];
    f.thread = {i, 0, 0}, f.done = false, f.group = 0, f.copies.clear();
    Warp& w = warps[i / WARP];
    if (i % WARP == 0) w.alive = 0, w.whole.meeting = {0, 0, 0, 0, 0, nullptr};
    w.whole.meeting.expected++, w.alive |= 1u << i % WARP;
  }
  left = threads, idle = 0, turned = blocks++ % 2 != backwards;
  current = &fibers[turned ? threads - 1 : 0], threadIdx = current->thread;
  swap(host, current->at);
  for (unsigned i = asked; !*failure && i < asked + EDGE; i++)
    if (arena[i] != 0xff)
      snprintf(failure, sizeof failure, "byte %u of %u bytes of dynamic shared memory was written", i, asked);
  return !*failure;
}

// While a kernel runs, what would end the process ends the launch.
struct Guard {
  static constexpr int CAUGHT[5] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGVTALRM};
  static inline pthread_t runs;
  static inline unsigned ended, seconds;
  struct sigaction before[5];
  stack_t stack_before;
  itimerval timer_before;

  static void caught(int signal, siginfo_t*, void*) {
    if (signal == SIGVTALRM) {
      if (!pthread_equal(pthread_self(), runs)) { pthread_kill(runs, signal); return; }
      if (ended != blocks * THREADS + left) ended = blocks * THREADS + left, seconds = 0;
      if (++seconds <= SIMT_PATIENCE) return;
    }
    fail("thread %u of block (%u, %u) %s", threadIdx.x, blockIdx.x, blockIdx.y,
         signal == SIGVTALRM ? "does not end; a loop that waits for what another thread writes is not emulated"
         : signal == SIGILL ? "uses an address that its type does not allow, an index beyond its array, or a trap"
         : signal == SIGFPE ? "divides an integer by 0"
                            : "reads or writes where there is no memory");
  }

  Guard() {
    static unsigned char stack[1 << 16];
    const stack_t own = {stack, 0, sizeof stack};
    sigaltstack(&own, &stack_before);
    struct sigaction act = {};
    act.sa_sigaction = caught, act.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
    for (int i = 0; i < 5; i++) sigaction(CAUGHT[i], &act, &before[i]);
    const itimerval ticks = {{1, 0}, {1, 0}};
    runs = pthread_self(), ended = seconds = 0;
    setitimer(ITIMER_VIRTUAL, &ticks, &timer_before);
  }
  ~Guard() {
    setitimer(ITIMER_VIRTUAL, &timer_before, nullptr);
    if (before[4].sa_handler == SIG_DFL) before[4].sa_handler = SIG_IGN;  // a last tick may be on its way
    for (int i = 0; i < 5; i++) sigaction(CAUGHT[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
  }
};

template <class... A>
struct Call {
  void (*kernel)(A...);
  std::tuple<A...> args;
  static void run(void* self) { std::apply(((Call*)self)->kernel, ((Call*)self)->args); }
};

template <class... A, size_t... I>
static const char* launch(void (*kernel)(A...), const unsigned* shape, void** args,
                          std::index_sequence<I...>) {
  Call<A...> call{kernel, {*(A*)args[I]...}};
  body = Call<A...>::run, body_of = &call;
  const unsigned x = shape[0], y = shape[1];
  threads = shape[2], asked = shape[3], backwards = shape[4], *failure = 0;
  const char* const over = threads > THREADS ? "threads a block" : asked > SHARED ? "bytes of shared memory"
                         : y > ROWS || x >> 31 ? "blocks" : nullptr;
  if (over || !x || !y || !threads) {
    snprintf(failure, sizeof failure, "the launch is %s: a grid of %u by %u blocks, %u threads each, %u bytes of dynamic shared memory%s%s",
             over ? "too large" : "empty", x, y, threads, asked, over ? "; too many " : "", over ? over : "");
    return failure;
  }
  if (!start_threads()) return failure;
  const Guard guard;
  gridDim = {x, y, 1}, blockDim = {threads, 1, 1};
  for (unsigned long long i = 0, many = (unsigned long long)x * y; i < many; i++) {
    const unsigned long long n = backwards ? many - 1 - i : i;
    blockIdx = {(unsigned)(n % x), (unsigned)(n / x), 0};
    if (!run_block()) {
      for (Fiber& f : fibers) f.started = false;  // they stand somewhere in the kernel
      for (Warp& w : warps)
        for (Group& g : w.part) g.inside = 0;
      return failure;
    }
  }
  return nullptr;
}

#define SIMT_KERNEL(NAME)                                                                \
  extern "C" const char* simt_##NAME(const unsigned* shape, void** args) {                \
    return simt::start_of(NAME, shape, args);                                             \
  }

template <class... A>
static const char* start_of(void (*kernel)(A...), const unsigned* shape, void** args) {
  return launch(kernel, shape, args, std::index_sequence_for<A...>());
}

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

namespace {  // where kernels stand, so that these come before the host's
inline float fminf(float x, float y) {  // a number before NaN, and -0 below +0
  return x != x ? (y != y ? __builtin_nanf("0x3fffff") : y) : y != y || x < y || (x == y && signbit(x)) ? x : y;
}
inline float fmaxf(float x, float y) { return x != x || y != y ? fminf(x, y) : -fminf(-x, -y); }
inline float min(float x, float y) { return fminf(x, y); }
inline float max(float x, float y) { return fmaxf(x, y); }
#define SIMT_LEAST_AND_MOST(T)                \
  inline T min(T x, T y) { return x < y ? x : y; } \
  inline T max(T x, T y) { return x > y ? x : y; }
SIMT_LEAST_AND_MOST(int)
SIMT_LEAST_AND_MOST(unsigned)
SIMT_LEAST_AND_MOST(long)
SIMT_LEAST_AND_MOST(unsigned long)
SIMT_LEAST_AND_MOST(long long)
SIMT_LEAST_AND_MOST(unsigned long long)
inline unsigned min(int x, unsigned y) { return min((unsigned)x, y); }
inline unsigned min(unsigned x, int y) { return min(x, (unsigned)y); }
inline unsigned max(int x, unsigned y) { return max((unsigned)x, y); }
inline unsigned max(unsigned x, int y) { return max(x, (unsigned)y); }
}  // namespace

static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
static inline float __ll2float_rn(long long x) { return x; }
static inline float __int2float_rn(int x) { return x; }
static inline float __uint2float_rn(unsigned x) { return x; }
static inline float __uint_as_float(unsigned x) { return simt::bits<float>(&x); }
static inline unsigned __float_as_uint(float x) { return simt::bits<unsigned>(&x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __mulhi(int x, int y) { return (long long)x * y >> 32; }
static inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned long long)x * y >> 32; }
static inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
  return r;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return ((unsigned long long)high << 32 | low) << (by & 31) >> 32;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return ((unsigned long long)high << 32 | low) >> (by & 31);
}
static inline int __dp4a(int a, int b, int c) {
  return (unsigned)simt::dot<int8_t, int8_t>(a, b) + c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  return simt::dot<uint8_t, uint8_t>(a, b) + c;
}
static inline float __int_as_float(int x) { return simt::bits<float>(&x); }
static inline int __float_as_int(float x) { return simt::bits<int>(&x); }
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  return simt::permuted(a, b, s);
}
static inline int __float2int_rz(float x) {  // what does not fit becomes the nearest that does
  return x != x ? 0 : x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : (int)x;
}
static inline int __float2int_rn(float x) { return __float2int_rz(nearbyintf(x)); }
static inline int __float2int_rd(float x) { return __float2int_rz(floorf(x)); }
static inline int __float2int_ru(float x) { return __float2int_rz(ceilf(x)); }

template <class T> static T __ldg(const T* at) { return *at; }
template <class T> static T __ldcg(const T* at) { return *at; }
template <class T> static void __stcg(T* at, T value) { *at = value; }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __trap() { __builtin_trap(); }

// On integers alone: which float comes first is not defined, and so a sum's bits are not.
#define SIMT_ATOMIC(NAME, T, NEW)                                        \
  static inline T atomic##NAME(T* at, std::common_type_t<T> x) {         \
    const T old = *at;                                                   \
    *at = NEW;                                                           \
    return old;                                                          \
  }
#define SIMT_ATOMICS(T)                      \
  SIMT_ATOMIC(Add, T, old + x)               \
  SIMT_ATOMIC(Min, T, x < old ? x : old)     \
  SIMT_ATOMIC(Max, T, x > old ? x : old)     \
  SIMT_ATOMIC(And, T, old & x)               \
  SIMT_ATOMIC(Or, T, old | x)                \
  SIMT_ATOMIC(Xor, T, old ^ x)               \
  SIMT_ATOMIC(Exch, T, x)                    \
  static inline T atomicCAS(T* at, std::common_type_t<T> old, std::common_type_t<T> x) { \
    const T was = *at;                       \
    if (was == old) *at = x;                 \
    return was;                              \
  }
SIMT_ATOMICS(int)
SIMT_ATOMICS(unsigned)
SIMT_ATOMICS(unsigned long long)
SIMT_ATOMIC(Sub, int, old - x)
SIMT_ATOMIC(Sub, unsigned, old - x)
template <class T> T atomicAdd(T*, std::enable_if_t<std::is_floating_point<T>::value, T>) {
  static_assert(!sizeof(T), "atomicAdd of floats adds in no defined order on a device, and is refused");
  return 0;
}
static inline size_t __cvta_generic_to_shared(const void* at) {
  return (const unsigned char*)at - simt::arena;
}
static inline void __syncthreads() { simt::meet(simt::block, "__syncthreads"); }
static inline int __syncthreads_count(bool counts) {
  return simt::meet(simt::block, "__syncthreads_count", counts);
}
static inline int __syncthreads_or(bool is) {
  return simt::meet(simt::block, "__syncthreads_or", is) != 0;
}
static inline int __syncthreads_and(bool is) {
  return simt::meet(simt::block, "__syncthreads_and", !is) == 0;
}
static inline void __syncwarp(unsigned mask = ~0u) {
  simt::meet(simt::group(mask, "__syncwarp"), "__syncwarp");
}

template <class T> static T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int first = simt::lane() & -width;
  return simt::shuffled(mask, value, first | (from & (width - 1)), true, "__shfl_sync");
}
template <class T> static T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
  const int own = simt::lane(), from = own ^ (by & 31);
  return simt::shuffled(mask, value, from, from < (own & -width) + width, "__shfl_xor_sync");
}
template <class T> static T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int own = simt::lane(), from = own - (int)(by & 31);
  return simt::shuffled(mask, value, from, from >= (own & -width), "__shfl_up_sync");
}
template <class T> static T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int own = simt::lane(), from = own + (int)(by & 31);
  return simt::shuffled(mask, value, from, from < (own & -width) + width, "__shfl_down_sync");
}

static inline unsigned __ballot_sync(unsigned mask, bool is) {
  return simt::ballot(mask, is, "__ballot_sync");
}
static inline int __any_sync(unsigned mask, bool is) {
  return simt::ballot(mask, is, "__any_sync") != 0;
}
static inline int __all_sync(unsigned mask, bool is) {
  return simt::ballot(mask, !is, "__all_sync") == 0;
}
#define SIMT_REDUCE(NAME, T, NEW)                                                         \
  static inline T __reduce_##NAME##_sync(unsigned mask, T value) {                        \
    return simt::reduced(mask, value, "__reduce_" #NAME "_sync", [](T x, T y) { return NEW; }); \
  }
SIMT_REDUCE(add, unsigned, x + y)
SIMT_REDUCE(add, int, (int)((unsigned)x + (unsigned)y))
SIMT_REDUCE(min, unsigned, x < y ? x : y)
SIMT_REDUCE(min, int, x < y ? x : y)
SIMT_REDUCE(max, unsigned, x > y ? x : y)
SIMT_REDUCE(max, int, x > y ? x : y)
SIMT_REDUCE(and, unsigned, x & y)
SIMT_REDUCE(or, unsigned, x | y)
SIMT_REDUCE(xor, unsigned, x ^ y)
