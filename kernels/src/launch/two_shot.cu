// All-reduce in one kernel per rank, in place: the direct plan with its barriers inside.
//
// A rank folds its shard of all ranks' buffers, in rank order, and writes the result to all of them. Each block
// does a part of the shard. It tells the same block of every peer that this rank's buffer is there, waits for all
// of theirs, folds, tells them that its part is written, and waits for them again. So a block waits for one block
// of each peer only, and others compute meanwhile. When all blocks are done, this rank has heard that every part of
// its buffer is written, and that nobody reads it any more.

#define LANES (16 / (int)sizeof(STORE))

union Pack {
  uint4 raw;
  STORE lane[LANES];
};

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

struct TwoShotArgs {
  u64 shards[RANKS_MAX];  // this rank's shard in the buffer of each rank, congruent modulo 16
  u64 pages[RANKS_MAX];   // of each rank: the words that its peers write, RANKS_MAX for each block
  Abort abort;
  u64 head;
  u64 packs;
  u64 tail;
  u32 me;
  u32 seq;  // sent when the buffer is there; the number behind it when the part is written
  u32 divisor;
};

// Whether the same blocks of all ranks have come as far; not if the host has raised `abort`.
static __device__ __forceinline__ bool meet(const TwoShotArgs& a, u32 seq) {
  __syncthreads();
  int here = 1;
  if (threadIdx.x < SOURCES && threadIdx.x != a.me) {
    const u32 words = blockIdx.x * RANKS_MAX;
    store_release((u32*)a.pages[threadIdx.x] + words + a.me, seq);
    here = reached((const u32*)a.pages[a.me] + words + threadIdx.x, seq, a.abort);
  }
  return __syncthreads_and(here) != 0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    two_shot(const __grid_constant__ TwoShotArgs a) {
  if (!meet(a, a.seq)) return;
  const u64 first = a.packs * blockIdx.x / gridDim.x;
  const u64 last = a.packs * (blockIdx.x + 1) / gridDim.x;
  for (u64 pack = first + threadIdx.x; pack < last; pack += THREADS) {
    Pack from[SOURCES];
#pragma unroll
    for (int n = 0; n < SOURCES; ++n) {
      from[n].raw = ((const uint4*)((const STORE*)a.shards[n] + a.head))[pack];
    }
    const uint4 result = fold_lanes(from, a.divisor).raw;
#pragma unroll
    for (int n = 0; n < SOURCES; ++n) ((uint4*)((STORE*)a.shards[n] + a.head))[pack] = result;
  }
  // The first block also does the elements that are not in packs.
  const u64 loose_len = blockIdx.x == 0 ? a.head + a.tail : 0;
  for (u64 i = threadIdx.x; i < loose_len; i += THREADS) {
    const u64 index = loose(i, a.head, a.packs);
    const STORE result = fold_element(a.shards, index, a.divisor);
#pragma unroll
    for (int n = 0; n < SOURCES; ++n) ((STORE*)a.shards[n])[index] = result;
  }
  meet(a, a.seq + 1);
}
