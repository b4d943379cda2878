// What the kernels use of cuda_fp16.h: conversions from and to float, to nearest even. There is one NaN,
// that of the CPU. A compiler for the CPU brings two functions in place of the instructions.
struct __half {
    unsigned short bits;
    __half() = default;
    __device__ explicit __half(float value) {
#ifdef __CUDACC__
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        if (value != value) bits = 0x7e00;
#else
        bits = float_to_half(value);
#endif
    }
    __device__ operator float() const {
#ifdef __CUDACC__
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
#else
        return half_to_float(bits);
#endif
    }
};
