//! Parameters and the state of an optimizer in files, and on the host of an adapter.

use super::*;

#[test]
fn parameters_are_in_files_where_a_configuration_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let files = format!("offload.parameters={}", folder.path().display());
    // Each rank's part of the matrix has more than 64 KiB; what has less stays in memory.
    let columns = 17_000;
    let is_mapped = |expected: bool| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = folder.path().to_str().unwrap();
        assert_eq!(maps.contains(path), expected, "whether there are files");
    };
    let with = |words: &[&str], has_files: bool| {
        let words = &[words, &["steps=3"]].concat();
        spawn(2, |world| {
            let model = model_of(columns, &world.device());
            to_the_end(&world, words, model, || is_mapped(has_files))
        })
    };
    let memory = with(&["placement=zero3"], false).unwrap();
    assert_eq!(with(&["placement=zero3", &files], true).unwrap(), memory);
    let other = format!("offload.optimizer={}", folder.path().join("other").display());
    for (words, cause) in [
        (["placement=zero1", &files], "parameters in files are for replicated and zero3"),
        ([&*other, &files], "choose one"),
    ] {
        // With what made the rank fail.
        let error = format!("{:?}", with(&words, false).unwrap_err());
        assert!(error.contains(cause), "{error}");
    }
    for kind in OptimizerKind::ALL {
        let words = ["placement=zero3", &*format!("optimizer.kind={kind}"), &files];
        if kind.is_fused() {
            let memory = with(&words[..2], false).unwrap();
            assert_eq!(with(&words, true).unwrap(), memory, "{kind}");
        } else {
            let error = format!("{:?}", with(&words, false).unwrap_err());
            assert!(error.contains("take adamw, adam, sgd or lion"), "{error}");
        }
    }
}

/// Of an adapter; on the CPU all memory is the host's.
#[cfg(feature = "wgpu-unfused")]
#[test]
fn wgpu_state_is_in_the_hosts_memory_where_a_configuration_says_so() {
    let words = ["offload.optimizer=memory", "steps=4", "placement=zero1"];
    let is_offloaded = |device| {
        let options = SpawnOptions::new(WorldSize::new(1).unwrap()).with_device(device);
        let place = |world: World| resolve::Offloads::new(world.device_kind(), &config(&words));
        Ok::<_, Error>(spawn_with(&options, place)?.remove(0).optimizer.is_some())
    };
    assert!(!is_offloaded(DeviceKind::Cpu).unwrap());
    match is_offloaded(DeviceKind::Wgpu) {
        Ok(is_offloaded) => assert!(is_offloaded),
        Err(error) => return println!("skipped: {error}"),
    }
    let folder = tempfile::tempdir().unwrap();
    let files = format!("offload.optimizer={}", folder.path().display());
    let memory = trained_on(DeviceKind::Wgpu, 2, &words).unwrap();
    let files = trained_on(DeviceKind::Wgpu, 2, &[&files, words[1], words[2]]).unwrap();
    assert_eq!(memory, files);
}

/// On one rank, too; what is computed is the same as without.
#[cfg(feature = "wgpu-unfused")]
#[test]
fn wgpu_parameters_are_on_the_host_where_a_configuration_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let files = format!("offload.parameters={}", folder.path().display());
    let with = |ranks, words: &[&str]| {
        let words = [&["steps=4", "clip.norm=0.1"], words].concat();
        trained_on(DeviceKind::Wgpu, ranks, &words)
    };
    if let Err(error) = with(1, &[]) {
        return println!("skipped: {error}");
    }
    for ranks in [1, 2] {
        let here = ["placement=zero3", "offload.optimizer=memory"];
        let here = with(ranks, &here).unwrap();
        for there in ["offload.parameters=memory", &files] {
            let there = with(ranks, &["placement=zero3", there]).unwrap();
            for ((_, steps, loss), (_, same_steps, same_loss)) in here.iter().zip(&there) {
                assert_eq!(steps, same_steps);
                assert!((loss - same_loss).abs() < 1e-5, "{loss} {same_loss}");
            }
        }
    }
    let error = with(2, &["offload.parameters=memory"]).unwrap_err();
    let error = format!("{error:?}");
    assert!(error.contains("are offloaded from"), "{error}");
}
