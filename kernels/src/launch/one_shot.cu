// All-reduce of a small buffer in one kernel per rank, in place.
//
// Each block copies its part of the own data to the own staging buffer, tells the same block of every
// peer, waits for all of theirs, and folds all staging buffers in rank order into the own data. Blocks
// do not wait for other blocks of their own rank. Two staging buffers alternate: a rank that writes one
// again has heard of every peer in the operation between, so they all finished reading it.

#define LANES (16 / (int)sizeof(STORE))

union Pack {
  uint4 raw;
  STORE lane[LANES];
};

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

static __device__ __forceinline__ uint4 fold_packs(const Pack (&from)[SOURCES], u32 divisor) {
  Pack result;
#pragma unroll
  for (int lane = 0; lane < LANES; ++lane) {
    PARTIAL partial = widen(from[0].lane[lane]);
#pragma unroll
    for (int n = 1; n < SOURCES; ++n) partial = combine(partial, widen(from[n].lane[lane]));
    result.lane[lane] = finish(partial, divisor);
  }
  return result.raw;
}

static __device__ __forceinline__ STORE fold_element(const u64* from, u64 index, u32 divisor) {
  PARTIAL partial = widen(((const STORE*)from[0])[index]);
#pragma unroll
  for (int n = 1; n < SOURCES; ++n) {
    partial = combine(partial, widen(((const STORE*)from[n])[index]));
  }
  return finish(partial, divisor);
}

// Element number i of those that are not in packs: `head` in front of them, the rest behind.
static __device__ __forceinline__ u64 loose(u64 i, u64 head, u64 packs) {
  return i < head ? i : i + packs * LANES;
}

struct OneShotArgs {
  u64 staging[RANKS_MAX];  // of each rank, its first element congruent to `data` modulo 16
  u64 pages[RANKS_MAX];    // of each rank: the words that its peers write, RANKS_MAX for each block
  u64 data;
  u64 abort;
  u64 head;
  u64 packs;
  u64 tail;
  u32 me;
  u32 seq;
  u32 divisor;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    one_shot(const __grid_constant__ OneShotArgs a) {
  const u64 first = a.packs * blockIdx.x / gridDim.x;
  const u64 last = a.packs * (blockIdx.x + 1) / gridDim.x;
  // The first block also does the elements that are not in packs.
  const u64 loose_len = blockIdx.x == 0 ? a.head + a.tail : 0;
  STORE* const data = (STORE*)a.data;
  STORE* const own = (STORE*)a.staging[a.me];

  for (u64 pack = first + threadIdx.x; pack < last; pack += THREADS) {
    ((uint4*)(own + a.head))[pack] = ((const uint4*)(data + a.head))[pack];
  }
  for (u64 i = threadIdx.x; i < loose_len; i += THREADS) {
    const u64 index = loose(i, a.head, a.packs);
    own[index] = data[index];
  }
  __syncthreads();
  int here = 1;
  if (threadIdx.x < SOURCES && threadIdx.x != a.me) {
    const u32 words = blockIdx.x * RANKS_MAX;
    store_release((u32*)a.pages[threadIdx.x] + words + a.me, a.seq);
    here = reached((const u32*)a.pages[a.me] + words + threadIdx.x, a.seq, (const u32*)a.abort);
  }
  if (__syncthreads_and(here) == 0) return;

  for (u64 pack = first + threadIdx.x; pack < last; pack += THREADS) {
    Pack from[SOURCES];
#pragma unroll
    for (int n = 0; n < SOURCES; ++n) {
      from[n].raw = ((const uint4*)((const STORE*)a.staging[n] + a.head))[pack];
    }
    ((uint4*)(data + a.head))[pack] = fold_packs(from, a.divisor);
  }
  for (u64 i = threadIdx.x; i < loose_len; i += THREADS) {
    const u64 index = loose(i, a.head, a.packs);
    data[index] = fold_element(a.staging, index, a.divisor);
  }
}
