use bonfire_collective::GroupOptions;

use super::*;

/// Runs `body` on `ranks` CPU ranks, each a thread.
pub(crate) fn on_ranks<R: Send>(ranks: u32, body: impl Fn(World) -> R + Sync) -> Vec<R> {
    bonfire_testkit::local(ranks, GroupOptions::default(), |group| body(world(group)))
}

/// One rank of several on one host, on the CPU.
pub(crate) fn world(group: ProcessGroup) -> World {
    world_on(group, DeviceKind::Cpu).unwrap()
}

/// One rank of several on one host.
pub(crate) fn world_on(group: ProcessGroup, kind: DeviceKind) -> Result<World, TrainError> {
    let place = place_of(&group);
    World::new(group, place, kind)
}

pub(crate) fn place_of(group: &ProcessGroup) -> LocalRank {
    LocalRank { local_rank: group.rank().get(), local_world_size: group.world_size().get() }
}

/// Runs `body` on ranks that share the devices of this machine; nothing without any.
#[cfg(feature = "cuda")]
pub(crate) fn on_devices<R: Send>(ranks: u32, body: impl Fn(World) -> R + Sync) -> Option<Vec<R>> {
    let (kind, occupancy) = (DeviceKind::Cuda, Occupancy::Oversubscribed);
    // Asked by one rank first: where one skips, all must.
    let alone = LocalRank { local_rank: 0, local_world_size: 1 };
    match open(kind, occupancy, alone) {
        Ok((_, name)) => println!("{ranks} ranks on {name} and those behind it"),
        Err(error) => {
            println!("skipped: {error}");
            return None;
        }
    }
    let options = GroupOptions::default().with_timeout(std::time::Duration::from_secs(300));
    let run = |group| {
        let place = place_of(&group);
        body(World::with_occupancy(group, place, kind, occupancy).expect("it has just answered"))
    };
    Some(bonfire_testkit::local(ranks, options, run))
}

fn lone_group() -> ProcessGroup {
    let one = WorldSize::new(1).unwrap();
    let mut groups = ProcessGroup::local(one, GroupOptions::default()).unwrap();
    groups.pop().unwrap()
}

const ALONE: LocalRank = LocalRank { local_rank: 0, local_world_size: 1 };

#[test]
fn names_of_kinds_are_read_back() {
    for kind in [DeviceKind::Auto, DeviceKind::Cpu, DeviceKind::Cuda, DeviceKind::Wgpu] {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    let error = "gpu".parse::<DeviceKind>().unwrap_err();
    assert!(error.to_string().contains("auto, cpu, cuda or wgpu"));
}

#[cfg(feature = "flex")]
#[test]
fn any_number_of_ranks_shares_the_cpu() {
    let local = LocalRank { local_rank: 7, local_world_size: 8 };
    let world = World::new(lone_group(), local, DeviceKind::Cpu).unwrap();
    assert_eq!(world.device_name(), "cpu");
    assert_eq!(world.device_kind(), DeviceKind::Cpu);
    assert!(!world.device().is_autodiff());
    assert!(world.is_main());
}

#[test]
fn some_device_is_always_found() {
    let world = World::new(lone_group(), ALONE, DeviceKind::Auto).unwrap();
    assert!(!world.device_name().is_empty());
    assert_ne!(world.device_kind(), DeviceKind::Auto);
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_kind_that_is_not_compiled_says_how_to_get_it() {
    let error = World::new(lone_group(), ALONE, DeviceKind::Cuda).unwrap_err();
    assert!(error.to_string().contains("the feature `cuda`"), "{error}");
}

#[cfg(feature = "cuda")]
#[test]
fn a_missing_gpu_is_an_error_and_no_panic() {
    let local = LocalRank { local_rank: 1000, local_world_size: 1001 };
    let error = World::new(lone_group(), local, DeviceKind::Cuda).unwrap_err();
    assert!(matches!(error, TrainError::NoSuchDevice { .. }), "{error}");
}
