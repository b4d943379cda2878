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

// How a kernel that waits is freed. The host raises `raised`, a word of its own memory, which is far: between two
// looks at it there are 256 at what is waited for, a fraction of a millisecond.
struct Abort {
  u64 raised;
  u64 marks[RANKS_MAX];  // this rank's mark in the page of each peer
  u32 peers;
};

// Whether to wait no more. What this rank's streams tell after that was not done. So its peers have its mark before:
// kernels and other work of a stream start after the kernels before them have finished.
static __device__ __forceinline__ bool gives_up(const Abort& abort) {
  if (load_relaxed((const u32*)abort.raised) == 0) return false;
  for (u32 peer = 0; peer < abort.peers; ++peer) store_release((u32*)abort.marks[peer], 1);
  return true;
}

// Waits until the word has reached `value`, or gives up.
static __device__ __forceinline__ bool reached(const u32* word, u32 value, const Abort& abort) {
  for (u32 looks = 1; (int)(load_acquire(word) - value) < 0; ++looks) {
    if (looks % 256 == 0 && gives_up(abort)) return false;
  }
  return true;
}
