// What cuda_fp16.h and cuda_bf16.h bring: numbers of 16 bits and pairs of them. They compute in single
// precision and round once, which for sums, products, quotients and roots of such numbers is the right rounding.

namespace stand_in {

struct Half {
  static float wide(unsigned short bits) { return half_to_float(bits); }
  static unsigned short narrow(float value) { return float_to_half(value); }
};

struct Brain {
  static float wide(unsigned short bits) { return stand_in_bits<float>((unsigned)bits << 16); }
  // To nearest even, and one NaN.
  static unsigned short narrow(float value) {
    const unsigned bits = stand_in_bits<unsigned>(value);
    return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
};

template <typename Format>
struct Small {
  unsigned short bits;
  Small() = default;
  template <typename T>
  Small(T value) : bits(Format::narrow((float)value)) {}
  operator float() const { return Format::wide(bits); }
};

template <typename Format>
struct Pair {
  Small<Format> x, y;
};

}  // namespace stand_in

typedef stand_in::Small<stand_in::Half> __half;
typedef stand_in::Small<stand_in::Brain> __nv_bfloat16;
typedef stand_in::Pair<stand_in::Half> __half2;
typedef stand_in::Pair<stand_in::Brain> __nv_bfloat162;

#define STAND_IN_SMALL(name, pairs, value)                                     \
  template <typename F>                                                        \
  static stand_in::Small<F> name(stand_in::Small<F> small) {                   \
    const float x = small;                                                     \
    return value;                                                              \
  }                                                                            \
  template <typename F>                                                        \
  static stand_in::Pair<F> pairs(stand_in::Pair<F> pair) {                     \
    return {name(pair.x), name(pair.y)};                                       \
  }
#define STAND_IN_SMALL_OF_TWO(name, pairs, value)                              \
  template <typename F>                                                        \
  static stand_in::Small<F> name(stand_in::Small<F> one, stand_in::Small<F> other) { \
    const float x = one, y = other;                                            \
    return value;                                                              \
  }                                                                            \
  template <typename F>                                                        \
  static stand_in::Pair<F> pairs(stand_in::Pair<F> one, stand_in::Pair<F> other) { \
    return {name(one.x, other.x), name(one.y, other.y)};                       \
  }
#define STAND_IN_PAIRS(sign)                                                   \
  template <typename F>                                                        \
  static stand_in::Pair<F> operator sign(stand_in::Pair<F> one, stand_in::Pair<F> other) { \
    return {(float)one.x sign (float)other.x, (float)one.y sign (float)other.y}; \
  }

STAND_IN_SMALL(hexp, h2exp, exp(x))
STAND_IN_SMALL(hlog, h2log, log(x))
STAND_IN_SMALL(hsin, h2sin, sin(x))
STAND_IN_SMALL(hcos, h2cos, cos(x))
STAND_IN_SMALL(htanh, h2tanh, tanh(x))
STAND_IN_SMALL(hsqrt, h2sqrt, sqrt(x))
STAND_IN_SMALL(hrsqrt, h2rsqrt, rsqrt(x))
STAND_IN_SMALL(hceil, h2ceil, ceil(x))
STAND_IN_SMALL(hfloor, h2floor, floor(x))
STAND_IN_SMALL(htrunc, h2trunc, trunc(x))
STAND_IN_SMALL(hrint, h2rint, rint(x))
STAND_IN_SMALL(__habs, __habs2, fabs(x))
STAND_IN_SMALL_OF_TWO(__hmin, __hmin2, min(x, y))
STAND_IN_SMALL_OF_TWO(__hmax, __hmax2, max(x, y))
STAND_IN_SMALL_OF_TWO(__hmin_nan, __hmin2_nan, x != x ? x : y != y ? y : min(x, y))
STAND_IN_SMALL_OF_TWO(__hmax_nan, __hmax2_nan, x != x ? x : y != y ? y : max(x, y))
STAND_IN_PAIRS(+)
STAND_IN_PAIRS(-)
STAND_IN_PAIRS(*)
STAND_IN_PAIRS(/)

template <typename F>
static stand_in::Pair<F> operator-(stand_in::Pair<F> pair) {
  return {-(float)pair.x, -(float)pair.y};
}
template <typename F>
static stand_in::Small<F> __hfma(stand_in::Small<F> x, stand_in::Small<F> y, stand_in::Small<F> z) {
  return (double)x * (double)y + (double)z;
}
template <typename F>
static stand_in::Pair<F> __hfma2(stand_in::Pair<F> x, stand_in::Pair<F> y, stand_in::Pair<F> z) {
  return {__hfma(x.x, y.x, z.x), __hfma(x.y, y.y, z.y)};
}
template <typename F>
static bool __hisnan(stand_in::Small<F> small) {
  return isnan((float)small);
}
template <typename F>
static bool __hisinf(stand_in::Small<F> small) {
  return isinf((float)small);
}
