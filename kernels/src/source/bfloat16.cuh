// What the kernels use of cuda_bf16.h: conversions from and to float, to nearest even. There is one NaN,
// that of the CPU.
struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __device__ explicit __nv_bfloat16(float value) {
#if __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
        unsigned int all = __float_as_uint(value);
        unsigned int rounded = (all + 0x7fffu + ((all >> 16) & 1u)) >> 16;
        bits = rounded;
#endif
        if (value != value) bits = 0x7fc0;
    }
    __device__ operator float() const {
        return __uint_as_float((unsigned int)bits << 16);
    }
};
