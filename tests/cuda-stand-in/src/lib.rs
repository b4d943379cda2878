//! A CUDA driver and an NVRTC that run on the CPU: a test tool for machines without a GPU.
//!
//! Loaded under the names `libcuda.so` and `libnvrtc.so`, and as `libnccl.so.2` between the ranks of one
//! host, it lets the CUDA engine run unchanged. Host memory plays the devices' memory, a thread plays each
//! stream, and a kernel is its CUDA C++, which the machine's C++ compiler makes a shared object of. It shows
//! that the order of things is right. It says nothing of speed, and its memory model is the CPU's, which is
//! stricter than a GPU's.
//!
//! What the driver promises and what it demands are those of the CUDA Driver API reference 13.0. Where the
//! driver may wait for a device, as when memory is freed, this one always does, so that a program that
//! must not wait there is found out. Where it may refuse, this one does: events of another context, words that
//! a stream cannot reach, handles that are gone.
//!
//! Settings are variables of the environment, read once:
//!
//! | variable | what | default |
//! |---|---|---|
//! | `CUDA_STAND_IN_DEVICES` | how many devices there are | 1 |
//! | `CUDA_STAND_IN_MEMORY_MIB` | memory of each, counted in each process | 8192 |
//! | `CUDA_STAND_IN_CAPABILITY` | the compute capability; 7.5 for a device without tensor cores | 9.0 |
//! | `CUDA_STAND_IN_FAULTS` | what is broken, with commas: see `settings::Fault` | nothing |
//! | `CUDA_STAND_IN_CALLS` | a file that gets a line for each call: see `calls` | nothing is recorded |
//! | `CUDA_STAND_IN_CACHE` | a folder that keeps compiled kernels | none is kept |
//! | `CXX` | the C++ compiler | `c++` |
//! | `NCCL_MULTI_RANK_GPU_ENABLE` | 1 lets ranks of NCCL share a device | they may not |
//!
//! What is missing: textures, graphs, virtual memory, and the legacy default stream's order with others.

#![expect(
    unsafe_code,
    reason = "a driver is called by C, and copies memory that only its caller knows"
)]
#![expect(unreachable_pub, reason = "what is exported is found by its name")]

mod calls;
mod compiler;
mod driver;
mod nccl;
mod queue;
mod settings;
mod status;
mod table;
