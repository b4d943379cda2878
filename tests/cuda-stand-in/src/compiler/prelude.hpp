// What a kernel's CUDA C++ takes for granted, for a C++ compiler, and what runs a grid of threads.
//
// Blocks run one after the other. So do the threads of a block, unless they wait for each other: then each
// has a stack, and gives way where it waits. It needs no header.
//
// STAND_IN_WAITS says whether they do, STAND_IN_SHARED_BYTES how much memory a block may have.

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __constant__ static const
#define __shared__ static thread_local

typedef decltype(sizeof(0)) size_t;

struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

// Of the thread that runs.
static thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = 32;

template <typename To, typename From>
static inline To stand_in_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "bits of one size");
  To bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline unsigned __float_as_uint(float value) { return stand_in_bits<unsigned>(value); }
static inline float __uint_as_float(unsigned bits) { return stand_in_bits<float>(bits); }
static inline long long __double_as_longlong(double value) {
  return stand_in_bits<long long>(value);
}
static inline double __longlong_as_double(long long bits) { return stand_in_bits<double>(bits); }
static inline bool isnan(float value) { return value != value; }
static inline bool isnan(double value) { return value != value; }

// Half precision as the device's instructions convert it: to nearest even, and one NaN.
static inline float half_to_float(unsigned short bits) { return (float)stand_in_bits<_Float16>(bits); }
static inline unsigned short float_to_half(float value) {
  return value != value ? 0x7e00 : stand_in_bits<unsigned short>((_Float16)value);
}

namespace stand_in {

struct Grid {
  unsigned blocks[3], threads[3];
};

enum { THREADS_MAX = 1024, WARP = 32 };

// A thread that gives way: what is left of it is on its stack.
struct Fibre {
  void* stack;
  uint3 place;
  bool over;
  // The line of the program where it waits for its warp, if it does, and the lanes it then goes on with.
  unsigned line, lanes;
};

typedef void (*Body)(void** arguments);

static thread_local Fibre fibres[STAND_IN_WAITS ? THREADS_MAX : 1];
static thread_local unsigned current, threads, alive;
static thread_local void* scheduler;
static thread_local bool moved;
static thread_local Body body;
static thread_local void** arguments;

#if STAND_IN_WAITS
extern "C" int sched_yield();
extern "C" int usleep(unsigned);

#if !defined(__x86_64__)
#error "threads that wait for each other are written for x86-64 only"
#endif
// Keeps what a call must keep on the stack, and goes on with another stack (System V ABI).
extern "C" void stand_in_switch(void** from, void* to) __attribute__((visibility("hidden")));
asm(R"(
  .text
  .globl stand_in_switch
  .hidden stand_in_switch
  .type stand_in_switch, @function
stand_in_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

// To the next thread.
static void give_way() {
  stand_in_switch(&fibres[current].stack, scheduler);
  threadIdx = fibres[current].place;
}

static void release_if_all_wait();
static void gather(unsigned warp, bool stalled);

static void begin() {
  threadIdx = fibres[current].place;
  body(arguments);
  fibres[current].over = true;
  --alive;
  moved = true;
  release_if_all_wait();
  gather(current / WARP, false);
  stand_in_switch(&fibres[current].stack, scheduler);
}

// Where all threads of a block, or some lanes of a warp, meet.
struct Barrier {
  unsigned waiting, generation;
  bool all, any;
  unsigned count;
  // What they found together, of the generation that was released last.
  bool found_all, found_any;
  unsigned found_count;

  void release() {
    found_all = all;
    found_any = any;
    found_count = count;
    waiting = count = 0;
    all = true;
    any = false;
    ++generation;
    moved = true;
  }

  void meet(unsigned expected, bool value) {
    const unsigned mine = generation;
    all = all && value;
    any = any || value;
    count += value;
    if (++waiting >= expected) return release();
    while (mine == generation) give_way();
  }
};

static thread_local Barrier block_barrier;
static thread_local Barrier warp_barriers[THREADS_MAX / WARP];
static thread_local unsigned long long lanes[THREADS_MAX];

static void release_if_all_wait() {
  if (alive > 0 && block_barrier.waiting >= alive) block_barrier.release();
}

static void meet_block(bool value) { block_barrier.meet(alive, value); }

// The lanes of a mask that there are.
static unsigned lanes_of(unsigned mask) {
  const unsigned first = current / WARP * WARP;
  unsigned count = 0;
  for (unsigned lane = 0; lane < WARP; ++lane) {
    const unsigned thread = first + lane;
    if ((mask >> lane & 1) && thread < threads && !fibres[thread].over) ++count;
  }
  return count;
}

static void meet_warp(unsigned mask, bool value) {
  warp_barriers[current / WARP].meet(lanes_of(mask), value);
}

// The value of another lane.
template <typename T>
static T of_lane(unsigned mask, T value, unsigned lane) {
  static_assert(sizeof(T) <= 8, "lanes exchange up to 8 bytes");
  __builtin_memcpy(&lanes[current], &value, sizeof value);
  meet_warp(mask, true);
  T theirs;
  __builtin_memcpy(&theirs, &lanes[current / WARP * WARP + lane % WARP], sizeof theirs);
  meet_warp(mask, true);
  return theirs;
}

// Lets the lanes go on that wait at the first line where any does: when every lane that is left waits for its
// warp, or when nobody moves, since those that are missing then took another way.
static void gather(unsigned warp, bool stalled) {
  unsigned first = ~0u, found = 0;
  for (unsigned lane = 0; lane < WARP && warp * WARP + lane < threads; ++lane) {
    const Fibre& fibre = fibres[warp * WARP + lane];
    if (fibre.over) continue;
    if (fibre.line == 0) {
      if (!stalled) return;
    } else if (fibre.line < first) {
      first = fibre.line;
      found = 1u << lane;
    } else if (fibre.line == first) {
      found |= 1u << lane;
    }
  }
  for (unsigned lane = 0; lane < WARP; ++lane) {
    if (!(found >> lane & 1)) continue;
    fibres[warp * WARP + lane].line = 0;
    fibres[warp * WARP + lane].lanes = found;
    moved = true;
  }
}

// The lanes of this warp that come to a line of the program together.
static unsigned together(unsigned line) {
  fibres[current].line = line;
  gather(current / WARP, false);
  while (fibres[current].line != 0) give_way();
  return fibres[current].lanes;
}

static void run_block(char* stacks, unsigned long stack_bytes) {
  alive = threads;
  block_barrier = Barrier();
  block_barrier.all = true;
  for (Barrier& barrier : warp_barriers) {
    barrier = Barrier();
    barrier.all = true;
  }
  for (unsigned thread = 0; thread < threads; ++thread) {
    // As a call would leave it: the return address of `begin`, which never returns, then where
    // `stand_in_switch` returns to, then six registers.
    void** top = (void**)(stacks + (thread + 1) * stack_bytes);
    *--top = nullptr;
    *--top = (void*)&begin;
    for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
    Fibre& fibre = fibres[thread];
    fibre.stack = top;
    fibre.over = false;
    fibre.line = 0;
    fibre.place.x = thread % blockDim.x;
    fibre.place.y = thread / blockDim.x % blockDim.y;
    fibre.place.z = thread / blockDim.x / blockDim.y;
  }
  for (unsigned idle = 0; alive > 0;) {
    moved = false;
    for (current = 0; current < threads; ++current) {
      if (!fibres[current].over) stand_in_switch(&scheduler, fibres[current].stack);
    }
    for (unsigned warp = 0; !moved && warp * WARP < threads; ++warp) gather(warp, true);
    // All wait for memory that others write.
    idle = moved ? 0 : idle + 1;
    if (idle > 100) {
      usleep(20);
    } else if (idle > 4) {
      sched_yield();
    }
  }
}
#else
static void run_block(char*, unsigned long) {
  for (threadIdx.z = 0; threadIdx.z < blockDim.z; ++threadIdx.z) {
    for (threadIdx.y = 0; threadIdx.y < blockDim.y; ++threadIdx.y) {
      for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) body(arguments);
    }
  }
}
#endif

static void run_grid(void** values, const Grid* grid, char* stacks, unsigned long stack_bytes) {
  arguments = values;
  gridDim = {grid->blocks[0], grid->blocks[1], grid->blocks[2]};
  blockDim = {grid->threads[0], grid->threads[1], grid->threads[2]};
  threads = blockDim.x * blockDim.y * blockDim.z;
  for (unsigned z = 0; z < gridDim.z; ++z) {
    for (unsigned y = 0; y < gridDim.y; ++y) {
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = {x, y, z};
        run_block(stacks, stack_bytes);
      }
    }
  }
}

// A kernel as the driver sees it: as Entry of module.rs.
struct Entry {
  unsigned count, waits;
  const unsigned* sizes;
  void (*run)(void** arguments, const Grid* grid, char* stacks, unsigned long stack_bytes);
};

template <unsigned... I>
struct Indices {};
template <unsigned N, unsigned... I>
struct Count : Count<N - 1, N - 1, I...> {};
template <unsigned... I>
struct Count<0, I...> {
  typedef Indices<I...> Type;
};

template <typename T>
struct Plain {
  typedef T Type;
};
template <typename T>
struct Plain<const T> {
  typedef T Type;
};

template <typename F, F* kernel>
struct Kernel;
template <typename... P, void (*kernel)(P...)>
struct Kernel<void(P...), kernel> {
  static constexpr unsigned COUNT = sizeof...(P);
  static constexpr unsigned SIZES[] = {sizeof(P)..., 0};
  template <unsigned... I>
  static void call(void** values, Indices<I...>) {
    kernel(*(typename Plain<P>::Type*)values[I]...);
  }
  static void thread(void** values) { call(values, typename Count<COUNT>::Type()); }
  static void run(void** values, const Grid* grid, char* stacks, unsigned long stack_bytes) {
    body = &thread;
    run_grid(values, grid, stacks, stack_bytes);
  }
};

}  // namespace stand_in

#define STAND_IN_KERNEL(name)                                                        \
  typedef stand_in::Kernel<decltype(name), &name> stand_in_kernel_of_##name;         \
  extern "C" __attribute__((visibility("default"))) stand_in::Entry stand_in_##name; \
  stand_in::Entry stand_in_##name = {                                                \
      stand_in_kernel_of_##name::COUNT, STAND_IN_WAITS,                              \
      stand_in_kernel_of_##name::SIZES, &stand_in_kernel_of_##name::run};
