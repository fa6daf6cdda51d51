// Threads of a block as fibers: how they take turns, where they meet, and how one ends a launch.
#pragma once

#include "language.h"

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
constexpr unsigned WARP = 32, THREADS = 1024, ARENA = 1 << 18, EDGE = 1 << 12;
constexpr unsigned STACK = 1 << 20;  // twice what a thread may have of a device's local memory
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
static bool unable;  // the failure is the emulator's, and says nothing of the kernel
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

__attribute__((noreturn)) static void end(const char* format, va_list args) {
  vsnprintf(failure, sizeof failure, format, args);
  swap(current->at, host);
  __builtin_unreachable();
}

// End the launch for what the kernel did, which no kernel may do.
__attribute__((noinline, noreturn)) static void fail(const char* format, ...) {
  va_list args;
  va_start(args, format);
  end(format, args);
}

// End the launch for what a kernel may do, and the emulator cannot.
__attribute__((noinline, noreturn)) static void cannot(const char* format, ...) {
  va_list args;
  va_start(args, format);
  unable = true;
  end(format, args);
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

}  // namespace simt
