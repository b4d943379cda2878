// What threads of a block do together.

#if STAND_IN_WAITS
static inline void __syncthreads() { stand_in::meet_block(true); }
static inline int __syncthreads_and(int value) {
  stand_in::meet_block(value != 0);
  return stand_in::block_barrier.found_all;
}
static inline int __syncthreads_or(int value) {
  stand_in::meet_block(value != 0);
  return stand_in::block_barrier.found_any;
}
static inline int __syncthreads_count(int value) {
  stand_in::meet_block(value != 0);
  return stand_in::block_barrier.found_count;
}
// On a device the lanes that took the same way and come to it together; each use has a line of its own.
#define __activemask() stand_in::together(__LINE__)
static inline void __syncwarp(unsigned mask = 0xffffffff) { stand_in::meet_warp(mask, true); }
template <typename T>
static T __shfl_sync(unsigned mask, T value, int lane, int = 32) {
  return stand_in::of_lane(mask, value, lane);
}
template <typename T>
static T __shfl_xor_sync(unsigned mask, T value, int lane, int = 32) {
  return stand_in::of_lane(mask, value, stand_in::current % 32 ^ lane);
}
template <typename T>
static T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int = 32) {
  const unsigned mine = stand_in::current % 32;
  return stand_in::of_lane(mask, value, mine < lanes ? mine : mine - lanes);
}
template <typename T>
static T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int = 32) {
  const unsigned mine = stand_in::current % 32;
  return stand_in::of_lane(mask, value, mine + lanes < 32 ? mine + lanes : mine);
}
static inline int __all_sync(unsigned mask, int value) {
  stand_in::meet_warp(mask, value != 0);
  return stand_in::warp_barriers[stand_in::current / 32].found_all;
}
static inline int __any_sync(unsigned mask, int value) {
  stand_in::meet_warp(mask, value != 0);
  return stand_in::warp_barriers[stand_in::current / 32].found_any;
}
static inline unsigned __ballot_sync(unsigned mask, int value) {
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1) {
      const bool theirs = stand_in::of_lane(mask, value != 0, lane);
      votes |= (unsigned)theirs << lane;
    }
  }
  return votes;
}

// Words that other ranks write. A thread that looks at one gives way to those it may wait for.
static inline unsigned load_acquire(const unsigned* word) {
  const unsigned value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  stand_in::give_way();
  return value;
}
static inline unsigned load_relaxed(const unsigned* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}
static inline void store_relaxed(unsigned* word, unsigned value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
// Lines of packets.
static inline void load_packets(const unsigned long long* line, unsigned long long (&packets)[2]) {
  for (int n = 0; n < 2; ++n) packets[n] = __atomic_load_n(line + n, __ATOMIC_RELAXED);
  stand_in::give_way();
}
static inline void store_packets(unsigned long long* line, unsigned long long first, unsigned long long second) {
  stand_in::moved = true;
  __atomic_store_n(line, first, __ATOMIC_RELAXED);
  __atomic_store_n(line + 1, second, __ATOMIC_RELAXED);
}
static inline void store_release(unsigned* word, unsigned value) {
  stand_in::moved = true;
#ifndef STAND_IN_LOSES_WORDS
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}
#endif
