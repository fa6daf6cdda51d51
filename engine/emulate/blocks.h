// A launch: runs the blocks one after another, and turns crashes of the kernel into errors.
#pragma once

#include "threads.h"

namespace simt {

static bool start_fibers() {
  static unsigned char* stacks;
  if (!stacks) {
    void* memory = mmap(nullptr, (size_t)STACK * MAX_THREADS, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      strcpy(failure, "no memory for thread stacks");
      is_unsupported = true;
      return false;
    }
    madvise(memory, (size_t)STACK * MAX_THREADS, MADV_NOHUGEPAGE);
    stacks = (unsigned char*)memory;
  }
  for (unsigned i = 0; i < threads; i++)
    if (!fibers[i].started) {
      begin(fibers[i].context, stacks + (size_t)STACK * i, STACK, run_fiber);
      fibers[i].started = true;
    }
  return true;
}

extern "C" unsigned char __start_simt_shared[] __attribute__((weak, visibility("hidden")));
extern "C" unsigned char __stop_simt_shared[] __attribute__((weak, visibility("hidden")));

static unsigned blocks_started;

static bool run_block() {
  memset(shared_memory, 0xff, dynamic_bytes + GUARD_BYTES);
  if (__start_simt_shared)
    memset(__start_simt_shared, 0xff, __stop_simt_shared - __start_simt_shared);
  block = {threads, 0, 0, 0, 0, nullptr};
  memset(named_barriers, 0, sizeof named_barriers);
  bulk_copies.clear(), poisoned_statics.clear();
  for (unsigned i = 0; i < threads; i++) {
    Fiber& f = fibers[i];
    f.thread = {i, 0, 0}, f.done = false, f.copy_group = 0, f.copies.clear();
    Warp& w = warps[i / WARP];
    if (i % WARP == 0) w.alive = 0, w.all_lanes.barrier = {0, 0, 0, 0, 0, nullptr};
    w.all_lanes.barrier.expected++, w.alive |= 1u << i % WARP;
  }
  live_threads = threads, idle_turns = 0, reversed = blocks_started++ % 2 != backwards;
  current = &fibers[reversed ? threads - 1 : 0], threadIdx = current->thread;
  swap(host_context, current->context);
  for (unsigned i = dynamic_bytes; !*failure && i < dynamic_bytes + GUARD_BYTES; i++)
    if (shared_memory[i] != 0xff)
      snprintf(failure, sizeof failure,
               "byte %u was written, past the %u bytes of dynamic shared memory", i, dynamic_bytes);
  return !*failure;
}

// Turns signals that a kernel causes into a failure of the launch; other signals pass through.
struct SignalGuard {
  static constexpr int SIGNALS[5] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGVTALRM};
  static inline pthread_t kernel_thread;
  static inline unsigned progress, seconds;
  struct sigaction previous_actions[5];
  stack_t previous_stack;
  itimerval previous_timer;

  static bool is_trap(const siginfo_t& info) {  // a compiler trap, not an unsupported instruction
#if defined(__x86_64__)
    const unsigned char* const instruction = (const unsigned char*)info.si_addr;
    return info.si_code > 0 && instruction[0] == 0x0f &&
           (instruction[1] == 0x0b || instruction[1] == 0xb9);
#else
    return true;
#endif
  }

  static void handle_signal(int signal, siginfo_t* info, void*) {
    if (!pthread_equal(pthread_self(), kernel_thread)) {  // not the kernel's thread
      if (signal == SIGVTALRM) pthread_kill(kernel_thread, signal);
      else ::signal(signal, SIG_DFL);
      return;
    }
    const unsigned t = threadIdx.x, x = blockIdx.x, y = blockIdx.y;
    if (signal == SIGVTALRM) {
      const unsigned now = blocks_started * MAX_THREADS + live_threads;
      if (progress != now) progress = now, seconds = 0;
      if (++seconds <= SIMT_TIMEOUT) return;
      unsupported("thread %u of block (%u, %u) did not end in time; a loop that waits for another "
                  "thread is not emulated", t, x, y);
    }
    if (signal == SIGILL && !is_trap(*info))
      unsupported("thread %u of block (%u, %u) needs an instruction that this processor does not "
                  "have", t, x, y);
    fail("thread %u of block (%u, %u) %s", t, x, y,
         signal == SIGILL ? "used a misaligned address, an index out of bounds, or a trap"
         : signal == SIGFPE ? "divided an integer by zero"
                            : "accessed unmapped memory");
  }

  SignalGuard() {
    static unsigned char stack[1 << 16];
    const stack_t own = {stack, 0, sizeof stack};
    sigaltstack(&own, &previous_stack);
    struct sigaction action = {};
    action.sa_sigaction = handle_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
    for (int i = 0; i < 5; i++) sigaction(SIGNALS[i], &action, &previous_actions[i]);
    const itimerval ticks = {{1, 0}, {1, 0}};
    kernel_thread = pthread_self(), progress = seconds = 0;
    setitimer(ITIMER_VIRTUAL, &ticks, &previous_timer);
  }
  ~SignalGuard() {
    setitimer(ITIMER_VIRTUAL, &previous_timer, nullptr);
    if (previous_actions[4].sa_handler == SIG_DFL)
      previous_actions[4].sa_handler = SIG_IGN;  // a last tick may be pending
    for (int i = 0; i < 5; i++) sigaction(SIGNALS[i], &previous_actions[i], nullptr);
    sigaltstack(&previous_stack, nullptr);
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
  *failure = 0, is_unsupported = false;
  if (shape[5] != sizeof...(A)) {
    snprintf(failure, sizeof failure, "it takes %zu arguments, but was given %u", sizeof...(A),
             shape[5]);
    return failure;
  }
  Call<A...> call{kernel, {*(A*)args[I]...}};
  entry = Call<A...>::run, entry_args = &call;
  const unsigned x = shape[0], y = shape[1];
  threads = shape[2], dynamic_bytes = shape[3], backwards = shape[4];
  const char* const exceeded = threads > MAX_THREADS ? "threads a block"
                             : dynamic_bytes > MAX_SHARED ? "bytes of shared memory"
                             : y > MAX_GRID_Y || x >> 31 ? "blocks" : nullptr;
  if (exceeded || !x || !y || !threads) {
    snprintf(failure, sizeof failure,
             "the launch is %s: a grid of %u by %u blocks, %u threads each, %u bytes of dynamic "
             "shared memory%s%s",
             exceeded ? "too large" : "empty", x, y, threads, dynamic_bytes,
             exceeded ? "; too many " : "", exceeded ? exceeded : "");
    return failure;
  }
  if (!start_fibers()) return failure;
  const SignalGuard guard;
  gridDim = {x, y, 1}, blockDim = {threads, 1, 1};
  for (unsigned long long i = 0, n_blocks = (unsigned long long)x * y; i < n_blocks; i++) {
    const unsigned long long n = backwards ? n_blocks - 1 - i : i;
    blockIdx = {(unsigned)(n % x), (unsigned)(n / x), 0};
    if (!run_block()) {
      for (Fiber& f : fibers) f.started = false;  // their contexts are inside the kernel
      for (Warp& w : warps)
        for (LaneGroup& g : w.subsets) g.inside = 0;
      return failure;
    }
  }
  return nullptr;
}

#define SIMT_KERNEL(NAME)                                                                     \
  extern "C" const char* simt_##NAME(const unsigned* shape, void** args, bool* unsupported) { \
    const char* const failure = simt::launch_kernel(NAME, shape, args);                       \
    *unsupported = simt::is_unsupported;                                                      \
    return failure;                                                                           \
  }

template <class... A>
static const char* launch_kernel(void (*kernel)(A...), const unsigned* shape, void** args) {
  return launch(kernel, shape, args, std::index_sequence_for<A...>());
}

}  // namespace simt
