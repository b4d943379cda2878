// Functions that a device's library has for single threads, by the machine's own: their last bits are not those
// of a device.

#define STAND_IN_OF_ONE(name)                                             \
  static inline float name(float x) { return __builtin_##name##f(x); } \
  static inline double name(double x) { return __builtin_##name(x); }
#define STAND_IN_OF_TWO(name)                                                         \
  static inline float name(float x, float y) { return __builtin_##name##f(x, y); } \
  static inline double name(double x, double y) { return __builtin_##name(x, y); }

STAND_IN_OF_ONE(exp)
STAND_IN_OF_ONE(expm1)
STAND_IN_OF_ONE(log)
STAND_IN_OF_ONE(log1p)
STAND_IN_OF_ONE(sqrt)
STAND_IN_OF_ONE(sin)
STAND_IN_OF_ONE(cos)
STAND_IN_OF_ONE(tan)
STAND_IN_OF_ONE(sinh)
STAND_IN_OF_ONE(cosh)
STAND_IN_OF_ONE(tanh)
STAND_IN_OF_ONE(asin)
STAND_IN_OF_ONE(acos)
STAND_IN_OF_ONE(atan)
STAND_IN_OF_ONE(asinh)
STAND_IN_OF_ONE(acosh)
STAND_IN_OF_ONE(atanh)
STAND_IN_OF_ONE(erf)
STAND_IN_OF_ONE(ceil)
STAND_IN_OF_ONE(floor)
STAND_IN_OF_ONE(trunc)
STAND_IN_OF_ONE(rint)
STAND_IN_OF_ONE(fabs)
STAND_IN_OF_TWO(atan2)
STAND_IN_OF_TWO(hypot)
STAND_IN_OF_TWO(fmod)
STAND_IN_OF_TWO(pow)

static inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
static inline float rhypotf(float x, float y) { return 1.0f / __builtin_hypotf(x, y); }
static inline double rhypot(double x, double y) { return 1.0 / __builtin_hypot(x, y); }
static inline float pow(float x, int y) { return __builtin_powf(x, (float)y); }
static inline double pow(double x, int y) { return __builtin_pow(x, (double)y); }
// One rounding, as the instruction has it.
static inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline bool isinf(double x) { return __builtin_isinf(x); }
static inline float fminf(float x, float y) { return __builtin_fminf(x, y); }
static inline float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }

// Of a number and what is none, the number.
static inline float min(float x, float y) { return __builtin_fminf(x, y); }
static inline float max(float x, float y) { return __builtin_fmaxf(x, y); }
static inline double min(double x, double y) { return __builtin_fmin(x, y); }
static inline double max(double x, double y) { return __builtin_fmax(x, y); }

#define STAND_IN_OF_INTEGERS(type)                                     \
  static inline type min(type x, type y) { return x < y ? x : y; } \
  static inline type max(type x, type y) { return x > y ? x : y; }

STAND_IN_OF_INTEGERS(int)
STAND_IN_OF_INTEGERS(unsigned)
STAND_IN_OF_INTEGERS(long)
STAND_IN_OF_INTEGERS(unsigned long)
STAND_IN_OF_INTEGERS(long long)
STAND_IN_OF_INTEGERS(unsigned long long)

static inline int abs(int x) { return x < 0 ? -x : x; }
static inline long abs(long x) { return x < 0 ? -x : x; }
static inline long long abs(long long x) { return x < 0 ? -x : x; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(unsigned x) { return x == 0 ? 32 : __builtin_clz(x); }
static inline int __clzll(unsigned long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
  return reversed;
}
static inline unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
static inline int __mulhi(int x, int y) { return (int)((long long)x * y >> 32); }
static inline unsigned __umulhi(unsigned x, unsigned y) {
  return (unsigned)((unsigned long long)x * y >> 32);
}
static inline long long __mul64hi(long long x, long long y) {
  return (long long)((__int128)x * y >> 64);
}
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return (unsigned long long)((unsigned __int128)x * y >> 64);
}

static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Changes a word at once; what it was before. CubeCL calls memory that it changes only so constant.
template <typename T, typename F>
static T stand_in_change(const T* address, F change) {
  T* const word = const_cast<T*>(address);
  T before, after;
  __atomic_load(word, &before, __ATOMIC_RELAXED);
  do {
    after = change(before);
  } while (!__atomic_compare_exchange(word, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return before;
}

#define STAND_IN_ATOMIC(name, result)                                \
  template <typename T, typename U>                                  \
  static T name(const T* word, U given) {                            \
    const T value = given;                                           \
    return stand_in_change(word, [=](T before) -> T { return result; }); \
  }

STAND_IN_ATOMIC(atomicAdd, before + value)
STAND_IN_ATOMIC(atomicMin, value < before ? value : before)
STAND_IN_ATOMIC(atomicMax, before < value ? value : before)
STAND_IN_ATOMIC(atomicAnd, before & value)
STAND_IN_ATOMIC(atomicOr, before | value)
STAND_IN_ATOMIC(atomicXor, before ^ value)
STAND_IN_ATOMIC(atomicExch, value)

template <typename T, typename U>
static T atomicCAS(const T* address, U expected, U value) {
  T* const word = const_cast<T*>(address);
  T before = expected, after = value;
  __atomic_compare_exchange(word, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return before;
}
