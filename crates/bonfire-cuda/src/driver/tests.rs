//! What must hold with and without a driver.

use crate::*;

mod threads;

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
            println!("skipped: this machine has a driver for CUDA {}", driver.version());
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
fn lost_contexts_are_distinguished_from_refused_calls() {
    let is_sticky = |code: u32| {
        let error = CudaError::Call {
            call: "a call",
            name: String::new(),
            description: String::new(),
            code,
        };
        error.is_sticky()
    };
    // By their numbers in cuda.h: faults of a kernel, of the device, a context that is gone.
    for lost in [214, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721] {
        assert!(is_sticky(lost), "{lost}");
    }
    // Wrong values, no memory, no access between devices, no such operation.
    for refused in [1, 2, 101, 217, 600, 704, 705, 801] {
        assert!(!is_sticky(refused), "{refused}");
    }
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
    StreamOps::new().wait(&region.span(), 7).queue(&waiting).unwrap();
    waiting.record(&event).unwrap();
    assert_eq!(event.state().unwrap(), EventState::Pending);
    StreamOps::new().write(&region.span(), 7).queue(&writing).unwrap();
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
fn host_memory_is_used_like_a_slice_and_may_be_shared() {
    let arena = bonfire_sys::Arena::new(0, 1 << 20).unwrap();
    let shared: HostMemory = arena.allocate::<u64>(10).unwrap().into();
    for mut memory in [shared, HostMemory::from(vec![0_u64; 10])] {
        memory[3] = 7;
        assert_eq!(memory.iter().sum::<u64>(), 7);
        assert!(!memory.is_locked());
    }
}

#[test]
fn locked_pages_are_copied_and_unlocked() {
    let Some((_, context)) = gpu("locked_pages_are_copied_and_unlocked") else {
        return;
    };
    let stream = Stream::new(&context, Priority::Normal).unwrap();
    let region = DeviceRegion::allocate(&context, 80).unwrap();
    let arena = bonfire_sys::Arena::new(0, 1 << 20).unwrap();
    for _ in 0..2 {
        let mut memory: HostMemory = arena.allocate::<u64>(10).unwrap().into();
        memory.lock_pages(&context).unwrap();
        assert!(memory.is_locked());
        memory[9] = 5;
        stream.write(&region.span(), bytemuck::cast_slice(&memory)).unwrap();
        memory[9] = 0;
        stream.read(&region.span(), bytemuck::cast_slice_mut(&mut memory)).unwrap();
        assert_eq!(memory[9], 5);
    }
}
