// A barrier between ranks as a kernel of one warp: lane p tells rank p, then hears from it.
//
// What a stream did before it is visible to what any other rank's stream does behind it: kernels of a
// stream start after the ones before have finished, and the words are written with release and read
// with acquire at the scope of the system.

struct BarrierArgs {
  u64 pages[RANKS_MAX];  // of each rank: the words that its peers write
  u64 abort;             // own word that the host raises
  u32 ranks;
  u32 me;
  u32 seq;
};

extern "C" __global__ void __launch_bounds__(32) barrier(const __grid_constant__ BarrierArgs a) {
  const u32 lane = threadIdx.x;
  if (lane >= a.ranks || lane == a.me) return;
  store_release((u32*)a.pages[lane] + a.me, a.seq);
  reached((const u32*)a.pages[a.me] + lane, a.seq, (const u32*)a.abort);
}
