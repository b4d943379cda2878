// What the program that runs launches is made of, besides the kernels and the prelude of the stand-in for a
// CUDA driver, which brings what they take for granted.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

// An address of any type.
struct Address {
  void* raw;
  template <typename T>
  operator T*() const {
    return (T*)raw;
  }
};

// One launch as it comes in, and goes out with other bytes: numbers, the scalars, one image per buffer.
struct Launch {
  uint32_t kernel, buffers, cubes, units, info_bytes, image_bytes, address;
};

static bool read(void* bytes, size_t count) { return fread(bytes, 1, count, stdin) == count; }
