// A launch: its blocks one after another, each begun anew, and kept from ending the process.
#pragma once

#include "threads.h"

namespace simt {

static bool start_threads() {
  static unsigned char* stacks;
  if (!stacks) {
    void* room = mmap(nullptr, (size_t)STACK * THREADS, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
      strcpy(failure, "there is no memory for the stacks of threads");
      unable = true;
      return false;
    }
    madvise(room, (size_t)STACK * THREADS, MADV_NOHUGEPAGE);
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

  static bool is_a_trap(const siginfo_t& info) {  // put there by the compiler, not one too new
#if defined(__x86_64__)
    const unsigned char* const code = (const unsigned char*)info.si_addr;
    return info.si_code > 0 && code[0] == 0x0f && (code[1] == 0x0b || code[1] == 0xb9);
#else
    return true;
#endif
  }

  static void caught(int signal, siginfo_t* info, void*) {
    if (!pthread_equal(pthread_self(), runs)) {  // it is not about the kernel
      if (signal == SIGVTALRM) pthread_kill(runs, signal);
      else ::signal(signal, SIG_DFL);
      return;
    }
    const unsigned t = threadIdx.x, x = blockIdx.x, y = blockIdx.y;
    if (signal == SIGVTALRM) {
      if (ended != blocks * THREADS + left) ended = blocks * THREADS + left, seconds = 0;
      if (++seconds <= SIMT_PATIENCE) return;
      cannot("thread %u of block (%u, %u) does not end; a loop that waits for what another thread writes is not emulated", t, x, y);
    }
    if (signal == SIGILL && !is_a_trap(*info))
      cannot("thread %u of block (%u, %u) needs an instruction that this processor does not have", t, x, y);
    fail("thread %u of block (%u, %u) %s", t, x, y,
         signal == SIGILL ? "uses an address that its type does not allow, an index beyond its array, or a trap"
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
  *failure = 0, unable = false;
  if (shape[5] != sizeof...(A)) {
    snprintf(failure, sizeof failure, "it takes %zu arguments, but was given %u", sizeof...(A), shape[5]);
    return failure;
  }
  Call<A...> call{kernel, {*(A*)args[I]...}};
  body = Call<A...>::run, body_of = &call;
  const unsigned x = shape[0], y = shape[1];
  threads = shape[2], asked = shape[3], backwards = shape[4];
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

#define SIMT_KERNEL(NAME)                                                                 \
  extern "C" const char* simt_##NAME(const unsigned* shape, void** args, bool* unable) {   \
    const char* const failure = simt::start_of(NAME, shape, args);                         \
    *unable = simt::unable;                                                                \
    return failure;                                                                        \
  }

template <class... A>
static const char* start_of(void (*kernel)(A...), const unsigned* shape, void** args) {
  return launch(kernel, shape, args, std::index_sequence_for<A...>());
}

}  // namespace simt
