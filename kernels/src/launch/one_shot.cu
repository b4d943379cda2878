// All-reduce of a small buffer in one kernel per rank, in place: everybody pushes to everybody.
//
// Data go as packets, 4 bytes of data and the number of the operation in a word of 8. Each rank stores its packets
// in an inbox that each rank has for it, waits until its own inboxes are full, and folds them in rank order into its
// data. Who finds the number in a packet has the data that came with it, so there are no fences, no flags beside the
// data, and no reads over a link; it takes twice the bytes. (After the protocol LL of NCCL and the packets of MSCCL++.)
//
// A packet is single. It is a scalar of 64 bits, stored and loaded with the relaxed strength at the scope of the system,
// and such accesses of one place are not torn (PTX ISA, memory consistency model, single-copy atomicity). One access
// moves a line of two packets: a vector is as many scalars, in any order (the same, vector data types).
//
// No packet is taken for a later one. Two sets of inboxes alternate. A rank that writes one again has had packets of
// every peer in the operation between, whose kernel began when the peer had read all of the operation before. So what
// lies in an inbox is of an earlier operation, and of another number: numbers grow, and before they come again, and
// before the first, the engine clears the inboxes. No operation has the number 0.

// 8 bytes of data. What lies behind the last element is 0, and not looked at.
union Line {
  STORE lane[8 / sizeof(STORE)];
  u32 word[2];
};

#ifdef __CUDACC__
static __device__ __forceinline__ void load_packets(const u64* line, u64 (&packets)[2]) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(packets[0]), "=l"(packets[1])
               : "l"(line)
               : "memory");
}

static __device__ __forceinline__ void store_packets(u64* line, u64 first, u64 second) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(line), "l"(first), "l"(second)
               : "memory");
}
#endif

#if defined(KIND_F16)
#ifdef __CUDACC__
static __device__ __forceinline__ float half_to_float(unsigned short x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
  return wide;
}
static __device__ __forceinline__ unsigned short float_to_half(float x) {
  unsigned short half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return x != x ? 0x7e00 : half;
}
#endif
static __device__ __forceinline__ PARTIAL widen(STORE x) { return half_to_float(x); }
static __device__ __forceinline__ STORE narrow(PARTIAL x) { return float_to_half(x); }
#elif defined(KIND_BF16)
static __device__ __forceinline__ PARTIAL widen(STORE x) { return __uint_as_float((u32)x << 16); }
// To nearest, ties to even; there is one NaN.
static __device__ __forceinline__ STORE narrow(PARTIAL x) {
  const u32 bits = __float_as_uint(x);
  if (x != x) return (STORE)0x7fc0;
  return (STORE)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#else
static __device__ __forceinline__ PARTIAL widen(STORE x) { return x; }
static __device__ __forceinline__ STORE narrow(PARTIAL x) { return x; }
#endif

#if defined(KIND_INTEGER)
static __device__ __forceinline__ PARTIAL least(PARTIAL a, PARTIAL b) { return a < b ? a : b; }
static __device__ __forceinline__ PARTIAL greatest(PARTIAL a, PARTIAL b) { return a > b ? a : b; }
#else
// There is one NaN, and -0 is below +0. Equal numbers have equal bits, but for zeros, which differ in
// the sign.
#if defined(WIDE)
static __device__ __forceinline__ u64 bits(double x) { return (u64)__double_as_longlong(x); }
static __device__ __forceinline__ double of_bits(u64 x) { return __longlong_as_double((long long)x); }
#define ONE_NAN 0x7ff8000000000000ull
#else
static __device__ __forceinline__ u32 bits(float x) { return __float_as_uint(x); }
static __device__ __forceinline__ float of_bits(u32 x) { return __uint_as_float(x); }
#define ONE_NAN 0x7fc00000u
#endif
static __device__ __forceinline__ PARTIAL least(PARTIAL a, PARTIAL b) {
  if (a != a || b != b) return of_bits(ONE_NAN);
  if (a == b) return of_bits(bits(a) | bits(b));
  return a < b ? a : b;
}
static __device__ __forceinline__ PARTIAL greatest(PARTIAL a, PARTIAL b) {
  if (a != a || b != b) return of_bits(ONE_NAN);
  if (a == b) return of_bits(bits(a) & bits(b));
  return a > b ? a : b;
}
#endif

static __device__ __forceinline__ PARTIAL combine(PARTIAL left, PARTIAL right) {
#if defined(FOLD_SUM)
  return (PARTIAL)((WRAP)left + (WRAP)right);
#elif defined(FOLD_PRODUCT)
  return (PARTIAL)((WRAP)left * (WRAP)right);
#elif defined(FOLD_MIN)
  return least(left, right);
#elif defined(FOLD_MAX)
  return greatest(left, right);
#elif defined(FOLD_AND)
  return left & right;
#elif defined(FOLD_OR)
  return left | right;
#elif defined(FOLD_XOR)
  return left ^ right;
#endif
}

// A divisor of 0 means that there is none.
static __device__ __forceinline__ STORE finish(PARTIAL x, u32 divisor) {
  return narrow(divisor == 0 ? x : (PARTIAL)(x / (PARTIAL)divisor));
}

// Of a type that is some lanes: the fold of each.
template <typename Lanes>
static __device__ __forceinline__ Lanes fold_lanes(const Lanes (&from)[SOURCES], u32 divisor) {
  Lanes result;
#pragma unroll
  for (int lane = 0; lane < (int)(sizeof(Lanes) / sizeof(STORE)); ++lane) {
    PARTIAL partial = widen(from[0].lane[lane]);
#pragma unroll
    for (int n = 1; n < SOURCES; ++n) partial = combine(partial, widen(from[n].lane[lane]));
    result.lane[lane] = finish(partial, divisor);
  }
  return result;
}

struct OneShotArgs {
  u64 inboxes[RANKS_MAX];  // of each rank: those that it has for all ranks, behind one another
  u64 pages[RANKS_MAX];    // of each rank: the words that its peers write
  Abort abort;
  u64 data;
  u64 elems;
  u64 inbox_bytes;
  u32 me;
  u32 seq;
  u32 divisor;
};

static __device__ __forceinline__ u64* line_at(const OneShotArgs& a, u32 to, u32 from, u64 line) {
  return (u64*)(a.inboxes[to] + from * a.inbox_bytes) + 2 * line;
}

// Waits for a line of every rank; gives up as `reached` does. All are loaded before any is looked at, so that the
// loads are under way together.
static __device__ __forceinline__ bool receive(const OneShotArgs& a, u64 line, Line (&from)[SOURCES]) {
  for (u32 looks = 1;; ++looks) {
    u64 packets[SOURCES][2];
#pragma unroll
    for (int n = 0; n < SOURCES; ++n) load_packets(line_at(a, a.me, n, line), packets[n]);
    int here = 1;
#pragma unroll
    for (int n = 0; n < SOURCES; ++n) {
#pragma unroll
      for (int word = 0; word < 2; ++word) {
        here &= (u32)(packets[n][word] >> 32) == a.seq;
        from[n].word[word] = (u32)packets[n][word];
      }
    }
    if (here) return true;
    if (looks % 256 == 0 && gives_up(a.abort)) return false;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    one_shot(const __grid_constant__ OneShotArgs a) {
  constexpr u64 lanes = sizeof(Line) / sizeof(STORE);
  STORE* const data = (STORE*)a.data;
  const u64 lines = (a.elems + lanes - 1) / lanes;
  const u64 first = (u64)blockIdx.x * THREADS + threadIdx.x;
  const u64 step = (u64)gridDim.x * THREADS;
  const u64 number = (u64)a.seq << 32;

  for (u64 line = first; line < lines; line += step) {
    Line own;
    own.word[0] = own.word[1] = 0;
#pragma unroll
    for (u64 lane = 0; lane < lanes; ++lane) {
      if (line * lanes + lane < a.elems) own.lane[lane] = data[line * lanes + lane];
    }
    // To itself as well.
#pragma unroll
    for (int n = 0; n < SOURCES; ++n) {
      store_packets(line_at(a, n, a.me, line), number | own.word[0], number | own.word[1]);
    }
  }
  // No kernel waits for this word. The peer's host sees by it who has not come.
  if (blockIdx.x == 0 && threadIdx.x < SOURCES) {
    store_relaxed((u32*)a.pages[threadIdx.x] + a.me, a.seq);
  }

  for (u64 line = first; line < lines; line += step) {
    Line from[SOURCES];
    if (!receive(a, line, from)) return;
    const Line result = fold_lanes(from, a.divisor);
#pragma unroll
    for (u64 lane = 0; lane < lanes; ++lane) {
      if (line * lanes + lane < a.elems) data[line * lanes + lane] = result.lane[lane];
    }
  }
}
