// Runs the messages of a plan in their order: words of peers are raised, own words are awaited.
//
// Messages of one kind that follow one another are done side by side, each by a thread: a barrier of one hop is
// as many stores at once, and then as many loads. Between two kinds the threads meet. What a stream did before it
// is visible to what any rank that hears of it does afterwards: kernels of a stream start after the ones before
// have finished, words are written with release and read with acquire at the scope of the system, and a rank
// that hears and then tells passes on what it has heard of, because its threads have met in between.

struct SignalsArgs {
  u64 words[SIGNALS_MAX];
  u32 values[SIGNALS_MAX];
  Abort abort;
  u32 awaited;  // bit i: word i is awaited, else it is raised
  u32 len;
};

static __device__ __forceinline__ u32 kind(const SignalsArgs& a, u32 i) { return (a.awaited >> i) & 1; }

extern "C" __global__ void __launch_bounds__(SIGNALS_MAX)
    signals(const __grid_constant__ SignalsArgs a) {
  int here = 1;
  for (u32 first = 0, last; first < a.len; first = last) {
    if (__syncthreads_and(here) == 0) return;
    last = first + 1;
    while (last < a.len && kind(a, last) == kind(a, first)) ++last;
    const u32 i = first + threadIdx.x;
    if (i >= last) continue;
    if (kind(a, first) == 0) {
      store_release((u32*)a.words[i], a.values[i]);
    } else {
      here = reached((const u32*)a.words[i], a.values[i], a.abort);
    }
  }
}
