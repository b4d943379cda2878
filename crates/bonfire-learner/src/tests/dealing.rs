//! Who sees which samples.

use super::*;
use crate::local_batches::range_of;

#[test]
fn slices_are_contiguous_complete_and_even() {
    for items in [0, 1, 4, 5, 23] {
        for world in [1, 2, 5] {
            let world = WorldSize::new(world).unwrap();
            let ranges: Vec<_> = world.ranks().map(|rank| range_of(items, rank, world)).collect();
            let all: Vec<usize> = ranges.iter().cloned().flatten().collect();
            assert_eq!(all, (0..items).collect::<Vec<_>>());
            let lengths = ranges.iter().map(ExactSizeIterator::len);
            let (least, most) = (lengths.clone().min(), lengths.max());
            assert!(most.unwrap() - least.unwrap() <= 1, "{ranges:?}");
        }
    }
}

/// The batches of the next epoch.
fn epoch(loader: &Arc<dyn DataLoader<Vec<usize>>>) -> Vec<Vec<usize>> {
    loader.iter().map(Result::unwrap).collect()
}

/// Gives the items themselves.
#[derive(Clone)]
struct Same;

impl Batcher<usize, Vec<usize>> for Same {
    fn batch(&self, items: Vec<usize>, _device: &Device) -> Vec<usize> {
        items
    }
}

#[test]
fn slices_of_a_dealt_loader_are_what_the_sampler_deals() {
    for remainder in [Remainder::Exact, Remainder::Pad, Remainder::Drop] {
        for ranks in [1, 2, 3, 30] {
            on_ranks(ranks, |world| {
                let loader = DatasetLoader::new(&world, whole(SAMPLES), Same, BATCH);
                let loader = loader.with_order(ORDER).with_remainder(remainder);
                let range = range_of(loader.num_items(), world.rank(), world.world_size());
                let slice = loader.slice(range.start, range.end);
                let own = Loader::new(&world, SAMPLES, BATCH).with_order(ORDER);
                let mut own = own.with_remainder(remainder);
                for _ in 0..2 {
                    let expected: Vec<_> = own.next_epoch().collect();
                    let rank = world.rank();
                    assert_eq!(epoch(&slice), expected, "{remainder:?}, {rank} of {ranks}");
                }
            });
        }
    }
}

/// The samples that each rank has seen in training and validation.
fn seen(
    ranks: u32,
    loader: impl Fn(&World, ToPoints, usize) -> Arc<dyn DataLoader<Points>> + Sync,
) {
    let seen = on_ranks(ranks, |world| {
        let folder = tempfile::tempdir().unwrap();
        let (train, valid) = (ToPoints::default(), ToPoints::default());
        let result = training_of(
            folder.path(),
            1,
            loader(&world, train.clone(), SAMPLES),
            loader(&world, valid.clone(), VALID_SAMPLES),
        )
        .distributed(&world)
        .launch(learner(&world));
        finished(result);
        let seen = |batcher: ToPoints| batcher.seen.lock().unwrap().clone();
        (seen(train), seen(valid))
    });
    let sorted = |mut all: Vec<usize>| {
        all.sort_unstable();
        all
    };
    let trained = sorted(seen.iter().flat_map(|(train, _)| train.clone()).collect());
    assert_eq!(trained, (0..SAMPLES).collect::<Vec<_>>(), "each sample once");
    let validated = sorted(seen.iter().flat_map(|(_, valid)| valid.clone()).collect());
    assert_eq!(validated, (0..VALID_SAMPLES).collect::<Vec<_>>());
}

fn of_burn(_: &World, batcher: ToPoints, len: usize) -> Arc<dyn DataLoader<Points>> {
    DataLoaderBuilder::new(batcher).batch_size(BATCH).shuffle(3).build(whole(len))
}

#[test]
fn a_loader_of_burn_gives_every_sample_to_one_rank() {
    seen(2, of_burn);
    seen(3, of_burn);
    // More ranks than samples to validate.
    seen(13, of_burn);
    seen(2, |_, batcher, len| {
        let loader = DataLoaderBuilder::new(batcher).batch_size(BATCH).shuffle(3);
        loader.num_workers(2).build(whole(len))
    });
}

/// A loader that ignores what is asked of it.
struct Stubborn(Arc<dyn DataLoader<Points>>);

impl DataLoader<Points> for Stubborn {
    fn iter<'a>(&'a self) -> Box<dyn burn::data::dataloader::DataLoaderIterator<Points> + 'a> {
        self.0.iter()
    }

    fn num_items(&self) -> usize {
        self.0.num_items()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<Points>> {
        self.0.to_device(device)
    }

    fn slice(&self, _start: usize, _end: usize) -> Arc<dyn DataLoader<Points>> {
        Arc::clone(&self.0)
    }
}

#[test]
fn a_loader_that_cannot_be_sliced_is_an_error_on_all_ranks() {
    let errors = on_ranks(2, |world| {
        let folder = tempfile::tempdir().unwrap();
        let train = Arc::new(Stubborn(of_burn(&world, ToPoints::default(), SAMPLES)));
        let training = training_of(folder.path(), 1, train, valid_loader(&world));
        let result = training.distributed(&world).launch(learner(&world));
        result.error.unwrap().to_string()
    });
    assert_each_says(errors, &["DatasetLoader"]);
}
