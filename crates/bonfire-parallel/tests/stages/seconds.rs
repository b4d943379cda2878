//! How long layers take.

use std::thread::sleep;
use std::time::Duration;

use bonfire_parallel::layer_seconds;

use super::*;

#[test]
fn layers_are_dealt_by_what_all_ranks_take_for_them() {
    let all = on_ranks(2, |world| {
        let device = world.device().autodiff();
        layer_seconds(&world, 4, |layer| {
            // The second rank takes thrice as long for the last layer.
            let thrice = if world.is_main() { 1 } else { 3 };
            let slow = if layer == 3 { 200 * thrice } else { 0 };
            sleep(Duration::from_millis(slow));
            Tensor::<1>::ones([8], &device).require_grad().sum()
        })
        .unwrap()
    });
    assert_eq!(all[0], all[1]);
    assert!(all[0][3] >= 0.4, "{:?}", all[0]);
    assert_eq!(partition(&all[0], 2).unwrap(), [0..3, 3..4]);
}
