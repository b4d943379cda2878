//! What loaders return, and in which order.

use bonfire_collective::GroupOptions;
use bonfire_testkit::local;

use super::*;

/// Training samples: not divisible by any batch or world here.
const SAMPLES: usize = 23;
const BATCH: usize = 4;
const ORDER: Order = Order::Shuffled { seed: 5 };

/// The numbers below a length; one of them may be unreadable.
#[derive(Clone, Debug)]
struct Numbers {
    len: usize,
    broken: Option<usize>,
}

impl Dataset<usize> for Numbers {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        if self.broken == Some(index) {
            let error = io::Error::other(format!("sample {index} is torn"));
            return Err(DatasetError::new(error));
        }
        Ok(index)
    }

    fn len(&self) -> usize {
        self.len
    }
}

fn whole(len: usize) -> Numbers {
    Numbers { len, broken: None }
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

/// A loader of each of two ranks.
fn on_two_ranks(body: impl Fn(&ProcessGroup) + Sync) {
    local(2, GroupOptions::default(), |group| body(&group));
}

fn loader(
    group: &ProcessGroup,
    numbers: Numbers,
    order: Order,
) -> DatasetLoader<usize, Vec<usize>> {
    DatasetLoader::new(group, numbers, Same, BATCH).with_order(order)
}

/// What the sampler assigns to a rank.
fn share_of(group: &ProcessGroup, remainder: Remainder, epoch: u64) -> Vec<usize> {
    let sampler = DistributedSampler::new(group, SAMPLES).with_order(ORDER);
    sampler.with_remainder(remainder).indices(epoch)
}

#[test]
fn ranks_do_not_train_on_the_same_samples_nor_on_one_epoch_for_ever() {
    on_two_ranks(|group| {
        // As PyTorch's `DistributedSampler`: its share, padded, in another order each epoch.
        let loader = loader(group, whole(SAMPLES), ORDER);
        for epoch in 0..3 {
            let seen: Vec<Vec<usize>> = loader.iter().map(Result::unwrap).collect();
            assert_eq!(seen.concat(), share_of(group, Remainder::Pad, epoch));
            assert_eq!(seen.concat().len(), SAMPLES.div_ceil(2), "equally many");
        }
        assert_ne!(share_of(group, Remainder::Pad, 0), share_of(group, Remainder::Pad, 1));
    });
}

#[test]
fn a_loader_resumes_in_the_middle_of_an_epoch() {
    on_two_ranks(|group| {
        for ahead in [None, Some(prefetch())] {
            let loader = || {
                let mut loader = loader(group, whole(SAMPLES), ORDER);
                loader.prefetch = ahead;
                loader
            };
            let first = loader();
            first.iter();
            let mut batches = first.iter();
            batches.next().unwrap().unwrap();
            // What is on its way is not yet used.
            let state = batches.state();
            let left: Vec<Vec<usize>> = batches.map(Result::unwrap).collect();
            let resumed = loader().resuming(&state).unwrap();
            let mut batches = resumed.iter();
            assert_eq!(batches.progress().items_total, left.concat().len());
            let seen: Vec<Vec<usize>> = batches.by_ref().map(Result::unwrap).collect();
            assert_eq!(seen, left);
            let next: Vec<Vec<usize>> = resumed.iter().map(Result::unwrap).collect();
            assert_eq!(next.concat(), share_of(group, Remainder::Pad, 2));
        }
    });
}

#[test]
fn a_part_of_a_slice_goes_on_with_the_epoch() {
    on_two_ranks(|group| {
        let loader = loader(group, whole(SAMPLES), ORDER).with_remainder(Remainder::Exact);
        loader.iter();
        let second = epoch(&loader.slice(0, SAMPLES)).concat();
        assert_eq!(epoch(&loader.slice(3, 20).slice(1, 9)).concat(), second[4..12]);
    });
}

#[test]
fn a_share_is_what_the_sampler_deals_to_the_rank() {
    on_two_ranks(|group| {
        for remainder in [Remainder::Exact, Remainder::Pad, Remainder::Drop] {
            let loader = loader(group, whole(SAMPLES), ORDER).with_remainder(remainder);
            let moved = loader.to_device(&Device::flex());
            assert_eq!(epoch(&moved).concat(), share_of(group, remainder, 0));
        }
    });
}

/// Two threads, and three batches on their way.
fn prefetch() -> Prefetch {
    Prefetch::default().with_workers(2).with_depth(3)
}

#[test]
fn a_loader_that_works_ahead_deals_the_same() {
    on_two_ranks(|group| {
        let loader = || loader(group, whole(SAMPLES), ORDER);
        let plain: Arc<dyn DataLoader<Vec<usize>>> = Arc::new(loader());
        let ahead: Arc<dyn DataLoader<Vec<usize>>> = Arc::new(loader().with_prefetch(prefetch()));
        for _ in 0..2 {
            assert_eq!(epoch(&ahead), epoch(&plain));
        }
        // What is counted is what was given, not what is on its way.
        let slice = ahead.slice(0, 11);
        let mut batches = slice.iter();
        batches.next().unwrap().unwrap();
        assert_eq!(batches.progress().items_processed, BATCH);
    });
}

#[test]
fn a_sample_that_cannot_be_read_ahead_is_an_error_in_its_place() {
    on_two_ranks(|group| {
        let numbers = Numbers {
            len: SAMPLES,
            // The first of each rank's second batch.
            broken: Some(2 * BATCH + group.rank().index()),
        };
        let loader = loader(group, numbers, Order::Sequential).with_prefetch(prefetch());
        let mut batches = loader.iter();
        assert_eq!(batches.next().unwrap().unwrap().len(), BATCH);
        let error = batches.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("is torn"), "{error}");
    });
}
