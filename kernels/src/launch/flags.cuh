// Words through which ranks tell each other how far they are, and the page they lie in.
//
// A word only ever grows, counted round its 32 bits. `store_release` makes everything that the
// thread's block did before the last __syncthreads() visible to whoever reads the value with
// `load_acquire`, on this device and on its peers (PTX ISA, memory consistency model, scope .sys).

typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC__
static __device__ __forceinline__ u32 load_acquire(const u32* word) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

static __device__ __forceinline__ u32 load_relaxed(const u32* word) {
  u32 value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

static __device__ __forceinline__ void store_relaxed(u32* word, u32 value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

static __device__ __forceinline__ void store_release(u32* word, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

#endif

// Waits until the word has reached `value`; gives up when the host raises `abort`, a word of its own
// memory, which is far: between two looks at it there are 256 at the word, a fraction of a millisecond.
static __device__ __forceinline__ bool reached(const u32* word, u32 value, const u32* abort) {
  for (u32 looks = 1; (int)(load_acquire(word) - value) < 0; ++looks) {
    if (looks % 256 == 0 && load_relaxed(abort) != 0) return false;
  }
  return true;
}
