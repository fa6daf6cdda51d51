// Threads of a block as fibers: switching, barriers, and errors that end a launch.
#pragma once

#include "language.h"

namespace simt {

// A saved execution context. `swap` saves the callee-saved registers and switches stacks.
#if defined(__x86_64__) && !defined(SIMT_PORTABLE)
asm(".text\nsimt_swap:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov (%rsi), %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
extern "C" __attribute__((visibility("hidden"))) void simt_swap(void** from, void** to)
    asm("simt_swap");
typedef void* Context;

static void begin(Context& c, unsigned char* stack, size_t size, void (*run)()) {
  void** top = (void**)(stack + size) - 2;  // at entry: 16 k + 8
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

#ifndef SIMT_TIMEOUT
#define SIMT_TIMEOUT 60  // CPU seconds after which a running thread counts as stuck
#endif
constexpr unsigned WARP = 32, MAX_THREADS = 1024, ARENA = 1 << 18, GUARD_BYTES = 1 << 12;
constexpr unsigned STACK = 1 << 20;  // twice the local memory limit of a device thread
constexpr unsigned MAX_SHARED = 227 << 10, MAX_GRID_Y = 65535;  // limits of a launch

struct Barrier {  // threads wait until `expected` have arrived
  unsigned expected, waiting, generation, count, last_count;
  const char* operation;
};

struct Copy {  // cp.async of one thread
  void* to;
  const void* from;
  unsigned bytes, valid_bytes, copy_group;
};

struct Fiber {
  Context context;
  uint3 thread;
  bool started, done;
  unsigned copy_group;  // of copies that are not committed yet
  std::vector<Copy> copies;
};

struct LaneGroup {  // lanes of a warp that synchronise: all, or those of a mask
  Barrier barrier;
  unsigned mask, inside;    // inside: lanes between arrival and departure
  unsigned arrived[2];      // lanes that wrote to `values`, by parity of the barrier's generation
  alignas(16) unsigned char values[2][WARP][64];  // the lanes' operands
};

struct Warp {
  unsigned alive;           // lanes that have not returned
  LaneGroup all_lanes, subsets[WARP];  // a lane is in one at a time, so one is always unused
};

struct MBarrier {  // an mbarrier with one phase
  int pending_bytes;
  short pending_arrivals, phase;
};

struct BulkCopy {  // a bulk copy that an mbarrier counts
  MBarrier* barrier;
  void* to;
  const void* from;
  int bytes;
};

alignas(128) static unsigned char shared_memory[ARENA];  // dynamic shared memory; shared address 0
static Fiber fibers[MAX_THREADS];
static Warp warps[MAX_THREADS / WARP];
static Barrier block, named_barriers[16];
static std::vector<BulkCopy> bulk_copies;
static std::vector<const void*> poisoned_statics;
static Fiber* current;
static Context host_context;
static char failure[300];
static bool is_unsupported;  // the failure is a limit of the emulator, not a kernel fault
static void (*entry)(void*);
static void* entry_args;
static unsigned threads, dynamic_bytes, live_threads;  // of the block
static unsigned idle_turns;  // switches since the last progress
static bool backwards, reversed;  // the order of blocks, and of this block's threads

static void switch_to(Fiber& next) {
  Fiber& self = *current;
  current = &next, threadIdx = next.thread;
  swap(self.context, next.context);
}

__attribute__((noreturn)) static void end_launch(const char* format, va_list args) {
  vsnprintf(failure, sizeof failure, format, args);
  swap(current->context, host_context);
  __builtin_unreachable();
}

// Ends the launch because of a kernel fault.
__attribute__((noinline, noreturn)) static void fail(const char* format, ...) {
  va_list args;
  va_start(args, format);
  end_launch(format, args);
}

// Ends the launch because the kernel needs something that the emulator does not support.
__attribute__((noinline, noreturn)) static void unsupported(const char* format, ...) {
  va_list args;
  va_start(args, format);
  is_unsupported = true;
  end_launch(format, args);
}

// Switches to the next thread, of the warp or of the block.
__attribute__((noinline)) static void yield_turn(bool within_warp) {
  const unsigned index = current - fibers, first = within_warp ? index / WARP * WARP : 0;
  const unsigned size = within_warp && threads - first > WARP ? WARP : threads - first;
  if (++idle_turns > 4 * threads + 64)
    fail("deadlock: %u threads wait%s%s", live_threads, block.waiting ? ", some at " : "",
         block.waiting ? block.operation : "");
  unsigned next = index - first;
  do next = reversed ? (next ? next : size) - 1 : next + 1 < size ? next + 1 : 0;
  while (fibers[first + next].done);
  switch_to(fibers[first + next]);
}

static unsigned lane() { return threadIdx.x % WARP; }
static Warp& warp() { return warps[threadIdx.x / WARP]; }

static void release(Barrier& m) {
  m.waiting = 0, m.generation++, m.last_count = m.count, m.count = 0;
}

// Waits until all expected threads have arrived; returns how many passed `counts`.
static unsigned arrive_and_wait(Barrier& m, const char* operation, bool counts = false,
                                bool within_warp = false) {
  if (m.waiting == 0) m.operation = operation;
  else if (m.operation != operation && strcmp(m.operation, operation))
    fail("some threads wait at %s and others at %s", m.operation, operation);
  m.count += counts, m.waiting++, idle_turns = 0;
  if (m.waiting == m.expected) release(m);
  else
    for (const unsigned generation = m.generation; m.generation == generation;)
      yield_turn(within_warp);
  return m.last_count;
}

// Returns the group that synchronises the lanes of a mask.
static LaneGroup& lane_group(unsigned mask, const char* operation) {
  Warp& w = warp();
  if (!(mask >> lane() & 1))
    fail("a lane calls %s with a mask that does not include it", operation);
  if (mask == ~0u) return w.all_lanes;
  LaneGroup* unused = nullptr;
  for (LaneGroup& g : w.subsets)
    if (!g.inside) unused = &g;
    else if (g.mask == mask) return g;
  unused->mask = mask,
  unused->barrier = {(unsigned)__builtin_popcount(mask & w.alive), 0, 0, 0, 0, nullptr};
  return *unused;
}

static void arrive_and_wait(LaneGroup& g, const char* operation) {
  g.inside++;
  arrive_and_wait(g.barrier, operation, false, true);
  g.inside--;
}

static void drop_thread(Barrier& m) {
  m.expected--;
  if (m.waiting && m.waiting == m.expected) release(m);
}

static void run_fiber() {  // a fiber runs the same thread of each block
  for (;;) {
    entry(entry_args);
    current->done = true, live_threads--, idle_turns = 0;
    Warp& w = warp();
    w.alive &= ~(1u << lane());
    drop_thread(block);
    drop_thread(w.all_lanes.barrier);
    for (LaneGroup& g : w.subsets)
      if (g.inside && g.mask >> lane() & 1) drop_thread(g.barrier);
    if (live_threads) yield_turn(w.alive);
    else swap(current->context, host_context);
  }
}

}  // namespace simt
