//! What loaders deal, and in which order.

use std::time::Duration;

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

#[test]
fn a_part_of_a_slice_goes_on_with_the_epoch() {
    let deal = Deal {
        batch_size: batch_size(),
        order: ORDER,
        remainder: Remainder::Exact,
    };
    let loader = DealtLoader::new(whole(SAMPLES), Same, deal, WorldSize::new(2).unwrap());
    let loader: Arc<dyn DataLoader<Vec<usize>>> = Arc::new(loader);
    let first = epoch(&loader).concat();
    let second = epoch(&loader.slice(0, SAMPLES)).concat();
    assert_ne!(first, second, "a new order in every epoch");
    assert_eq!(
        epoch(&loader.slice(3, 20).slice(1, 9)).concat(),
        second[4..12]
    );
}

/// Two threads, and three batches on their way.
const PREFETCH: Prefetch = Prefetch {
    workers: 2,
    depth: 3,
    timeout: Duration::from_secs(60),
};

#[test]
fn a_loader_that_works_ahead_deals_the_same() {
    let deal = Deal {
        batch_size: batch_size(),
        order: ORDER,
        remainder: Remainder::Exact,
    };
    let world_size = WorldSize::new(2).unwrap();
    let loader = || DealtLoader::new(whole(SAMPLES), Same, deal.clone(), world_size);
    let plain: Arc<dyn DataLoader<Vec<usize>>> = Arc::new(loader());
    let ahead: Arc<dyn DataLoader<Vec<usize>>> = Arc::new(loader().prefetch(PREFETCH));
    for _ in 0..2 {
        assert_eq!(epoch(&ahead), epoch(&plain));
    }
    // What is counted is what was given, not what is on its way.
    let slice = ahead.slice(0, 11);
    let mut batches = slice.iter();
    batches.next().unwrap().unwrap();
    assert_eq!(batches.progress().items_processed, BATCH);
}

#[test]
fn a_sample_that_cannot_be_read_ahead_is_an_error_in_its_place() {
    let numbers = Numbers {
        len: SAMPLES,
        broken: Some(BATCH),
    };
    let deal = Deal {
        batch_size: batch_size(),
        order: Order::Sequential,
        remainder: Remainder::Exact,
    };
    let loader = DealtLoader::new(numbers, Same, deal, WorldSize::ONE).prefetch(PREFETCH);
    let mut batches = loader.iter();
    assert_eq!(batches.next().unwrap().unwrap().len(), BATCH);
    let error = batches.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("is torn"), "{error}");
}
