//! What CubeCL's kernels take for granted of the threads of a block and of their functions: it holds on a GPU,
//! and must hold on a stand-in for one.

use super::*;

/// Runs a kernel `test(float* out)` with so many threads; what it wrote, one number per thread.
fn run(test: &str, threads: u32, source: &str) -> Option<Vec<f32>> {
    let (device, context) = gpu(test)?;
    let Ok(nvrtc) = Nvrtc::load() else {
        println!("{test} skipped: no NVRTC; set CUDA_PATH");
        return None;
    };
    let cubin = nvrtc.compile(device.capability(), test, source, &[]).unwrap();
    let function = Module::load(&context, &cubin).unwrap().function("test").unwrap();
    let stream = Stream::new(&context, Priority::Normal).unwrap();
    let region = DeviceRegion::allocate(&context, threads as usize * 4).unwrap();
    let grid = Grid { blocks: 1, threads };
    // SAFETY: the kernel takes one address and writes one float per thread behind it; the memory is freed
    // below, when the stream is idle.
    unsafe { function.launch(&stream, grid, &region.span().address()) }.unwrap();
    let mut out = vec![0.0_f32; threads as usize];
    stream.read(&region.span(), bytemuck::cast_slice_mut(&mut out)).unwrap();
    stream.synchronize().unwrap();
    Some(out)
}

#[test]
fn cuda_lanes_that_took_the_same_way_meet() {
    let source = r#"
        extern "C" __global__ void test(float* out) {
          const unsigned lane = threadIdx.x % 32;
          unsigned mask = 0;
          if (lane % 3 == 0) {
            mask = __activemask();
          } else {
            mask = __activemask();
            mask = __shfl_sync(mask, mask, 1);
          }
          float sum = 0;
          for (unsigned turn = 0; turn < lane / 8; ++turn) {
            const unsigned left = __activemask();
            sum += __popc(left);
          }
          const unsigned all = __activemask();
          out[threadIdx.x] = __popc(mask) + 100 * sum + 10000 * __popc(all);
        }"#;
    // The last warp lacks lanes.
    let Some(out) = run("cuda_lanes_that_took_the_same_way_meet", 80, source) else {
        return;
    };
    for (thread, out) in out.iter().enumerate() {
        let (lane, lanes) = (thread % 32, if thread < 64 { 32 } else { 16 });
        let same = |other: usize| other.is_multiple_of(3) == lane.is_multiple_of(3);
        let way = (0..lanes).filter(|&other| same(other)).count();
        // Of the lanes, those with as many turns to go.
        let turn = |turn| (0..lanes).filter(|other| other / 8 > turn).count();
        let turns: usize = (0..lane / 8).map(turn).sum();
        let expected = way + 100 * turns + 10_000 * lanes;
        assert_eq!(*out, expected as f32, "thread {thread}");
    }
}

#[test]
fn cuda_warps_and_blocks_add_up() {
    let source = r#"
        extern "C" __global__ void test(float* out) {
          __shared__ float sums[4];
          const unsigned thread = threadIdx.x;
          float sum = thread + 1;
          for (unsigned step = 16; step > 0; step /= 2) {
            sum += __shfl_xor_sync(__activemask(), sum, step);
          }
          if (thread % 32 == 0) sums[thread / 32] = sum;
          __syncthreads();
          out[thread] = sums[0] + sums[1] + sums[2] + sums[3];
        }"#;
    let Some(out) = run("cuda_warps_and_blocks_add_up", 128, source) else {
        return;
    };
    assert!(out.iter().all(|sum| *sum == 128.0 * 129.0 / 2.0), "{out:?}");
}

/// Each function at x and what Rust makes of it.
type Known = (&'static str, fn(f64) -> f64);

const KNOWN: [Known; 12] = [
    ("exp(x)", f64::exp),
    ("log(x)", f64::ln),
    ("sqrt(x)", f64::sqrt),
    ("rsqrt(x)", |x| 1.0 / x.sqrt()),
    ("tanh(x)", f64::tanh),
    ("erf(x)", |_| 0.520_499_877_813_046_5),
    ("pow(x, 3.0f)", |x| x.powi(3)),
    ("fma(x, x, -x)", |x| x * x - x),
    ("min(x, 0.25f) + max(x, 2.0f)", |_| 2.25),
    ("max(x, 0.0f / 0.0f)", |x| x),
    ("floor(-x) + ceil(x) + rint(3.5f)", |_| 4.0),
    ("isnan(0.0f / 0.0f) + 2 * isinf(1.0f / 0.0f) + isnan(x)", |_| 3.0),
];

#[test]
fn cuda_functions_are_those_of_the_cpu_but_for_their_last_bits() {
    let cases: String = KNOWN
        .iter()
        .enumerate()
        .map(|(index, (text, _))| format!("case {index}: value = {text}; break;\n"))
        .collect();
    let source = format!(
        r#"extern "C" __global__ void test(float* out) {{
          const float x = 0.5f;
          float value = 0;
          switch (threadIdx.x) {{
          {cases}
          }}
          out[threadIdx.x] = value;
        }}"#
    );
    let test = "cuda_functions_are_those_of_the_cpu_but_for_their_last_bits";
    let Some(out) = run(test, KNOWN.len() as u32, &source) else {
        return;
    };
    for ((text, function), out) in KNOWN.iter().zip(out) {
        let expected = function(0.5);
        // Four units in the last place, which no function of the device's library exceeds here.
        let bound = 4.0 * f64::from(f32::EPSILON) * expected.abs();
        let error = (f64::from(out) - expected).abs();
        assert!(error <= bound, "{text} is {out}, not {expected}");
    }
}
