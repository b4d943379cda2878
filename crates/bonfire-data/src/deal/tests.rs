//! What loaders deal, and in which order.

use bonfire_collective::GroupOptions;
use bonfire_testkit::local;

use super::*;

/// Training samples: not divisible by any batch or world here.
const SAMPLES: usize = 23;
const BATCH: usize = 4;
const ORDER: Order = Order::Shuffled { seed: 5 };

fn batch_size() -> NonZeroUsize {
    NonZeroUsize::new(BATCH).unwrap()
}

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

fn loader(group: &ProcessGroup, numbers: Numbers, order: Order) -> DealtLoader<usize, Vec<usize>> {
    DealtLoader::new(group, numbers, Same, Deal::new(batch_size(), order))
}

#[test]
fn a_part_of_a_slice_goes_on_with_the_epoch() {
    on_two_ranks(|group| {
        let loader = loader(group, whole(SAMPLES), ORDER);
        let loader: Arc<dyn DataLoader<Vec<usize>>> = Arc::new(loader);
        let first = epoch(&loader).concat();
        let second = epoch(&loader.slice(0, SAMPLES)).concat();
        assert_ne!(first, second, "a new order in every epoch");
        assert_eq!(
            epoch(&loader.slice(3, 20).slice(1, 9)).concat(),
            second[4..12]
        );
    });
}

#[test]
fn a_share_is_what_the_sampler_deals_to_the_rank() {
    on_two_ranks(|group| {
        for remainder in [Remainder::Exact, Remainder::Pad, Remainder::Drop] {
            let deal = Deal::new(batch_size(), ORDER).remainder(remainder);
            let share = DealtLoader::new(group, whole(SAMPLES), Same, deal).share(&Device::flex());
            let config = SamplerConfig::new(SAMPLES, ORDER).remainder(remainder);
            let indices = DistributedSampler::new(group, config).indices(0);
            assert_eq!(epoch(&(Arc::new(share) as _)).concat(), indices);
        }
    });
}

/// Two threads, and three batches on their way.
fn prefetch() -> Prefetch {
    Prefetch::default().workers(2).depth(3)
}

#[test]
fn a_loader_that_works_ahead_deals_the_same() {
    on_two_ranks(|group| {
        let loader = || loader(group, whole(SAMPLES), ORDER);
        let plain: Arc<dyn DataLoader<Vec<usize>>> = Arc::new(loader());
        let ahead: Arc<dyn DataLoader<Vec<usize>>> = Arc::new(loader().prefetch(prefetch()));
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
            broken: Some(2 * BATCH),
        };
        let loader = loader(group, numbers, Order::Sequential).prefetch(prefetch());
        let mut batches = loader.iter();
        assert_eq!(batches.next().unwrap().unwrap().len(), BATCH);
        let error = batches.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("is torn"), "{error}");
    });
}
