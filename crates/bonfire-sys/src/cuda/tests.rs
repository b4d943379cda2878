//! What must hold with and without a driver.

use super::*;

/// The driver and a device, or a printed reason why the test cannot run here.
fn gpu(test: &str) -> Option<(Device, Context)> {
    let found = Driver::load()
        .and_then(|driver| driver.device(0))
        .and_then(|device| Ok((device.clone(), Context::retain(&device)?)));
    match found {
        Ok(found) => Some(found),
        Err(error) => {
            println!("{test} skipped: {error}");
            None
        }
    }
}

#[test]
fn a_missing_driver_is_an_error_that_says_what_to_do() {
    match Driver::load() {
        Ok(driver) => {
            println!(
                "skipped: this machine has a driver for CUDA {}",
                driver.version()
            );
        }
        Err(error) => {
            assert!(matches!(error, CudaError::NoDriver { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("install NVIDIA's driver"), "{text}");
        }
    }
}

#[test]
fn a_missing_compiler_is_an_error_that_says_what_to_do() {
    match Nvrtc::load() {
        Ok(nvrtc) => println!("skipped: this machine has NVRTC {}", nvrtc.version()),
        Err(error) => {
            assert!(matches!(error, CudaError::NoCompiler { .. }), "{error:?}");
            assert!(error.to_string().contains("CUDA_PATH"), "{error}");
        }
    }
}

#[test]
fn versions_read_like_nvidia_writes_them() {
    let version = CudaVersion::from_number(12080);
    assert_eq!(version.to_string(), "12.8");
    assert!(version < CudaVersion::from_number(13000));
    assert_eq!(CudaVersion::from_number(-1).to_string(), "0.0");
}

#[test]
fn lost_contexts_are_told_from_refused_calls() {
    let error = |result: cudarc::driver::sys::CUresult| CudaError::Call {
        call: "a call",
        name: String::new(),
        description: String::new(),
        code: result as u32,
    };
    use cudarc::driver::sys::CUresult;
    assert!(error(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).is_sticky());
    assert!(!error(CUresult::CUDA_ERROR_INVALID_VALUE).is_sticky());
}

#[test]
fn bytes_go_to_the_device_and_back() {
    let Some((_, context)) = gpu("bytes_go_to_the_device_and_back") else {
        return;
    };
    let stream = Stream::new(&context, Priority::High).unwrap();
    let region = DeviceRegion::allocate(&context, 1000).unwrap();
    let other = DeviceRegion::allocate(&context, 1000).unwrap();
    let bytes: Vec<u8> = (0..1000).map(|index| index as u8).collect();
    stream.write(&region.span(), &bytes).unwrap();
    stream.copy(&other.span(), &region.span()).unwrap();
    let mut back = vec![0; 1000];
    stream.read(&other.span(), &mut back).unwrap();
    assert_eq!(bytes, back);
    assert!(region.span().part(900..1001).is_err());
    assert!(stream.write(&region.span(), &bytes[1..]).is_err());
}

#[test]
fn a_stream_waits_for_a_word_that_another_writes() {
    let Some((_, context)) = gpu("a_stream_waits_for_a_word_that_another_writes") else {
        return;
    };
    let waiting = Stream::new(&context, Priority::Normal).unwrap();
    let writing = Stream::new(&context, Priority::Normal).unwrap();
    let region = DeviceRegion::allocate(&context, 4).unwrap();
    writing.fill(&region.span(), 0).unwrap();
    writing.synchronize().unwrap();
    let event = Event::new(&context).unwrap();
    StreamOps::new()
        .wait(&region.span(), 7)
        .queue(&waiting)
        .unwrap();
    waiting.record(&event).unwrap();
    assert_eq!(event.state().unwrap(), EventState::Pending);
    StreamOps::new()
        .write(&region.span(), 7)
        .queue(&writing)
        .unwrap();
    waiting.synchronize().unwrap();
    assert_eq!(event.state().unwrap(), EventState::Done);
}

#[test]
fn pinned_memory_is_seen_by_both_sides() {
    let Some((_, context)) = gpu("pinned_memory_is_seen_by_both_sides") else {
        return;
    };
    use std::sync::atomic::Ordering;
    let stream = Stream::new(&context, Priority::Normal).unwrap();
    let region = DeviceRegion::allocate(&context, 8).unwrap();
    let pinned = PinnedRegion::allocate(&context, 8).unwrap();
    pinned.words()[1].store(0xabcd, Ordering::Relaxed);
    stream.copy_from_pinned(&region.span(), &pinned).unwrap();
    stream.synchronize().unwrap();
    pinned.words()[1].store(0, Ordering::Relaxed);
    stream.copy_to_pinned(&pinned, &region.span()).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(pinned.words()[1].load(Ordering::Relaxed), 0xabcd);
}

#[test]
fn a_fold_adds_in_order_with_heads_and_tails() {
    let Some((device, context)) = gpu("a_fold_adds_in_order_with_heads_and_tails") else {
        return;
    };
    let Ok(nvrtc) = Nvrtc::load() else {
        println!("skipped: no NVRTC");
        return;
    };
    let key = FoldKey {
        scalar: Scalar::F32,
        fold: Fold::Sum,
        sources: 2,
    };
    let kernel = FoldKernel::load(
        &context,
        key,
        &key.compile(nvrtc, device.capability()).unwrap(),
    )
    .unwrap();
    let stream = Stream::new(&context, Priority::Normal).unwrap();
    let elems = 1003;
    let spans: Vec<Span> = (0..2_u8)
        .map(|rank| {
            let region = DeviceRegion::allocate(&context, elems * 4).unwrap();
            let values = (0..elems).map(|index| index as f32 + f32::from(rank));
            let bytes: Vec<u8> = values.flat_map(f32::to_ne_bytes).collect();
            stream.write(&region.span(), &bytes).unwrap();
            region.span().part(4..elems * 4).unwrap()
        })
        .collect();
    let launch = FoldLaunch {
        sources: &spans,
        targets: &spans,
        divisor: 1,
        blocks_max: 2,
    };
    kernel.launch(&stream, &launch).unwrap();
    for span in &spans {
        let mut bytes = vec![0; span.len()];
        stream.read(span, &mut bytes).unwrap();
        for (index, word) in bytes.chunks_exact(4).enumerate() {
            let found = f32::from_ne_bytes(word.try_into().unwrap());
            assert_eq!(found, 2.0 * (index + 1) as f32 + 1.0, "element {index}");
        }
    }
}

#[test]
fn every_kernel_compiles() {
    let Ok(nvrtc) = Nvrtc::load() else {
        println!("every_kernel_compiles skipped: no NVRTC; set CUDA_PATH");
        return;
    };
    let capability = ComputeCapability { major: 9, minor: 0 };
    SignalKernel::compile(nvrtc, capability).unwrap();
    let floats = [Scalar::F32, Scalar::F64, Scalar::F16, Scalar::BF16];
    let integers = [Scalar::I8, Scalar::I16, Scalar::I32, Scalar::U64];
    let compile = |scalar, fold, sources| {
        let key = FoldKey {
            scalar,
            fold,
            sources,
        };
        key.compile(nvrtc, capability).unwrap();
    };
    for scalar in floats.into_iter().chain(integers) {
        compile(scalar, Fold::Sum, 2);
        compile(scalar, Fold::Min, 8);
    }
    for fold in [Fold::And, Fold::Or, Fold::Xor, Fold::Product, Fold::Max] {
        compile(Scalar::U8, fold, FOLD_RANKS_MAX);
    }
    compile(Scalar::F32, Fold::Sum, 1);
}
