//! A rank that waits for itself ends, and says where.

#![cfg(feature = "flex")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use bonfire_collective::{GroupOptions, ProcessGroup, WorldSize};
use bonfire_train::{Ddp, DeviceKind, LocalRank, World};
use burn::nn::LinearConfig;
use burn::tensor::Tensor;

/// Says to this program that it is the process that stands still.
const CHILD: &str = "STANDS_STILL_CHILD";

/// Two ranks; each asks in its second step for a lock that it has.
fn stand_still() {
    let options = GroupOptions::default().with_timeout(Duration::from_secs(1));
    let groups = ProcessGroup::local(WorldSize::new(2).unwrap(), options).unwrap();
    std::thread::scope(|scope| {
        for group in groups {
            scope.spawn(move || {
                let local = LocalRank { local_rank: group.rank().get(), local_world_size: 2 };
                let world = World::new(group, local, DeviceKind::Cpu).unwrap();
                let device = world.device().autodiff();
                let model = LinearConfig::new(4, 2).init(&device);
                let mut ddp = Ddp::new(model, &world).unwrap();
                let lock = Mutex::new(());
                for step in 0..2 {
                    let _ = ddp.backward(|model| {
                        let _has_it = lock.lock().unwrap();
                        if step == 1 {
                            let _waits = lock.lock();
                        }
                        model.forward(Tensor::<2>::ones([1, 4], &device)).mean()
                    });
                }
            });
        }
    });
}

#[test]
fn a_rank_that_waits_for_itself_ends_and_says_where() {
    if std::env::var_os(CHILD).is_some() {
        return stand_still();
    }
    let test = "a_rank_that_waits_for_itself_ends_and_says_where";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let ended = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{text}");
    for part in ["Ddp::backward of step 1", "stands_still.rs:", "has made no progress for"] {
        assert!(text.contains(part), "{text}");
    }
}
