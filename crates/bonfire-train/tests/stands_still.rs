//! A rank that waits for itself ends, and says where.

#![cfg(feature = "flex")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Mutex;
use std::time::Duration;

use bonfire_collective::GroupOptions;
use bonfire_testkit::{again, assert_each_says, local, task};
use bonfire_train::{Ddp, DeviceKind, LocalRank, World};
use burn::nn::LinearConfig;
use burn::tensor::Tensor;

/// Two ranks; each asks in its second step for a lock that it has.
fn stand_still() {
    let options = GroupOptions::default().with_timeout(Duration::from_secs(1));
    local(2, options, |group| {
        let place = LocalRank { local_rank: group.rank().get(), local_world_size: 2 };
        let world = World::new(group, place, DeviceKind::Cpu).unwrap();
        let device = world.device().autodiff();
        let mut ddp = Ddp::new(LinearConfig::new(4, 2).init(&device), &world).unwrap();
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

#[test]
fn a_rank_that_waits_for_itself_ends_and_says_where() {
    if task().is_some() {
        return stand_still();
    }
    let ended = again("a_rank_that_waits_for_itself_ends_and_says_where", "wait").output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{text}");
    assert_each_says(
        [text],
        &["Ddp::backward of step 1", "stands_still.rs:", "has stood still for"],
    );
}
