//! Worlds that are parts of another.

use super::*;

/// The parameters of training on each half of four ranks, one on samples of its own.
fn halves(world: &World) -> (u32, Bits) {
    let half = world.rank().get() % 2;
    let world = world.split(Some(half), 0).unwrap().unwrap();
    assert_eq!(world.world_size().get(), 2);
    let (lr, batch) = [(0.1, 4), (0.05, 2)][half as usize];
    let model = train(&world, small_buckets(), 4, batch, lr);
    (half, bits(&model))
}

#[test]
fn a_part_of_a_world_trains_like_a_world_of_its_size() {
    let parts = on_ranks(4, |world| halves(&world));
    let wholes = [(0.1, 4), (0.05, 2)].map(|(lr, batch)| {
        let whole = |world: World| bits(&train(&world, small_buckets(), 4, batch, lr));
        on_ranks(2, whole).remove(0)
    });
    for (half, bits) in parts {
        assert!(bits == wholes[half as usize], "half {half}");
    }
}

#[test]
fn a_part_has_the_device_and_the_place_of_its_ranks() {
    on_ranks(3, |world| {
        let color = (world.rank().get() > 0).then_some(0);
        let part = world.split(color, -i64::from(world.rank().get())).unwrap();
        let Some(part) = part else {
            assert!(world.is_main());
            return;
        };
        // The keys turn the order round.
        assert_eq!(part.rank().get(), 2 - world.rank().get());
        assert_eq!(part.device(), world.device());
        assert_eq!(part.device_name(), world.device_name());
        assert_eq!(part.local_rank(), world.local_rank());
    });
}
