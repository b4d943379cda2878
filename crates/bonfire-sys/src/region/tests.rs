//! Regions that are opened by others, refused, and larger than the memory.

use super::*;

fn descriptor_of(region: &Region) -> OwnedFd {
    // SAFETY: the tests map it through `Region` alone.
    let descriptor = unsafe { region.descriptor() };
    descriptor.unwrap().try_clone_to_owned().unwrap()
}

#[test]
fn a_shared_region_opens_through_its_descriptor() {
    let file = descriptor_of(&Region::shared(8192).unwrap());
    // SAFETY: nobody else has the memory.
    let opened = unsafe { Region::open_sized(&file, 8192) };
    assert_eq!(opened.unwrap().len(), 8192);
}

#[test]
fn a_region_of_another_size_is_refused() {
    let file = descriptor_of(&Region::shared(4096).unwrap());
    // SAFETY: nobody else has the memory.
    let error = unsafe { Region::open_sized(&file, 8192) }.unwrap_err();
    assert!(matches!(error, RegionError::Size { expected: 8192, found: 4096 }), "{error}");
}

#[test]
fn a_file_that_could_shrink_is_refused() {
    let file = rustix::fs::memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    // SAFETY: nobody else has the memory.
    let opened = unsafe { Region::open(&file) };
    assert!(matches!(opened, Err(RegionError::NotSealed)));
}

#[test]
fn more_memory_than_there_is_is_an_error() {
    assert!(available_bytes().is_some(), "the check below relies on it");
    assert!(matches!(Region::shared(1 << 50), Err(RegionError::TooLarge { .. })));
}

/// As in a container, where the memory of the host is not what there is.
#[test]
fn a_control_group_with_less_memory_than_the_host_counts() {
    let group = tempfile::tempdir().unwrap();
    let say = |name: &str, text: &str| std::fs::write(group.path().join(name), text).unwrap();
    assert_eq!(left_in_group(group.path()), None);
    say("memory.max", "max\n");
    say("memory.current", "700\n");
    assert_eq!(left_in_group(group.path()), None);
    say("memory.max", "1000\n");
    assert_eq!(left_in_group(group.path()), Some(300));
    say("memory.stat", "anon 500\ninactive_file 150\nactive_file 50\n");
    assert_eq!(left_in_group(group.path()), Some(450));
    say("memory.current", "2000\n");
    assert_eq!(left_in_group(group.path()), Some(0));
}
