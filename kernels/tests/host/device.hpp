// What a kernel's CUDA C++ takes for granted, for a C++ compiler: threads run one after the other.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(units)

struct Position {
  unsigned x, y, z;
};
static Position threadIdx, blockIdx, gridDim = {1, 1, 1};

static unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
}

static float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

using std::isnan;

// In place of the conversions that a device has instructions for.
struct __half {
  unsigned short bits;
  __half() = default;
  explicit __half(float value) {
    const _Float16 half = (_Float16)value;
    memcpy(&bits, &half, 2);
    if (value != value) bits = 0x7e00;
  }
  operator float() const {
    _Float16 half;
    memcpy(&half, &bits, 2);
    return (float)half;
  }
};

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
