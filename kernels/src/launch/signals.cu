// Runs the messages of a plan in their order: a word of a peer is raised, an own word is awaited.
//
// One thread does them one after the other, as the plan has them. What a stream did before it is
// visible to what any rank that hears of it does afterwards: kernels of a stream start after the ones
// before have finished, words are written with release and read with acquire at the scope of the
// system, and a rank that hears and then tells passes on what it has heard of.

struct SignalsArgs {
  u64 words[SIGNALS_MAX];
  u32 values[SIGNALS_MAX];
  u64 abort;  // word of the host, which raises it
  u32 awaited;  // bit i: word i is awaited, else it is raised
  u32 len;
};

extern "C" __global__ void __launch_bounds__(32) signals(const __grid_constant__ SignalsArgs a) {
  if (threadIdx.x != 0) return;
  // What is in front of it may have been freed: nobody must hear that it was done.
  if (load_relaxed((const u32*)a.abort) != 0) return;
  for (u32 i = 0; i < a.len; ++i) {
    if (((a.awaited >> i) & 1) == 0) {
      store_release((u32*)a.words[i], a.values[i]);
    } else if (!reached((const u32*)a.words[i], a.values[i], (const u32*)a.abort)) {
      return;
    }
  }
}
