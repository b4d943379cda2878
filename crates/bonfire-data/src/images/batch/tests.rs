//! Values and shapes, and that neither ranks nor workers change a picture.

use std::collections::BTreeMap;

use bonfire_collective::WorldSize;

use super::*;
use crate::images::{DummyConfig, DummyPictures, PictureSize, Subset, Transform};
use crate::{DistributedSampler, Loader, Prefetch, Remainder};

const SIZE: PictureSize = PictureSize { width: 20, height: 16 };
const COUNT: usize = 24;

fn dummies() -> Arc<dyn Pictures> {
    Arc::new(DummyPictures::new(DummyConfig { count: COUNT, classes: 5, size: SIZE, seed: 3 }))
}

fn batches(steps: impl Into<Vec<Transform>>) -> PictureBatches {
    let normalize = Normalize::imagenet();
    PictureBatches::new(dummies(), Transforms::new(steps).unwrap(), normalize, 9, Device::default())
}

fn values(tensor: Tensor<4>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

#[test]
fn a_batch_has_planes_of_normalized_values_and_labels() {
    let batch = batches([]).batch(0, &[4, 0, 13]).unwrap();
    assert_eq!(batch.pictures.dims(), [3, 3, SIZE.height, SIZE.width]);
    let labels: Vec<i64> = batch.labels.into_data().iter::<i64>().collect();
    assert_eq!(labels, [4, 0, 3]);
    let values = values(batch.pictures);
    let (mean, deviation) = ([0.485_f64, 0.456, 0.406], [0.229_f64, 0.224, 0.225]);
    let mut next = values.iter();
    for index in [4, 0, 13] {
        let picture = dummies().picture(index).unwrap();
        for channel in 0..3 {
            for (x, y) in (0..SIZE.height).flat_map(|y| (0..SIZE.width).map(move |x| (x, y))) {
                let byte = f64::from(picture.pixel(x, y)[channel]);
                let exact = (byte / 255.0 - mean[channel]) / deviation[channel];
                let found = f64::from(*next.next().unwrap());
                // A byte, a mean and a deviation are rounded, and so are the difference, of at
                // most 1, and the quotient.
                let tolerance = f64::from(f32::EPSILON) * (3.0 / deviation[channel] + exact.abs());
                assert!((found - exact).abs() <= tolerance, "{found} and not {exact}");
            }
        }
    }
}

/// Every picture of two epochs as the ranks of a world got it, by epoch and index.
fn of_all_ranks(world: u32, workers: usize, batch_size: usize) -> BTreeMap<(u64, usize), Vec<f32>> {
    let world_size = WorldSize::new(world).unwrap();
    let mut seen = BTreeMap::new();
    for rank in world_size.ranks() {
        let sampler = DistributedSampler::of(rank, world_size, COUNT).with_shuffle(5);
        let mut loader = Loader::of(sampler.with_remainder(Remainder::Exact), batch_size);
        for epoch in 0..2 {
            let batches = batches([
                Transform::RandomCrop { size: 12, padding: 2 },
                Transform::RandomHorizontalFlip,
            ]);
            let config = Prefetch::default().with_workers(workers).with_depth(workers);
            let prepared = loader
                .next_epoch()
                .prefetch(config, move |indices| batches.batch(epoch, indices))
                .unwrap();
            for prepared in prepared {
                let prepared = prepared.unwrap();
                let pictures = values(prepared.batch.pictures);
                let each = pictures.chunks_exact(3 * 12 * 12);
                for (&index, picture) in prepared.indices.iter().zip(each) {
                    let before = seen.insert((epoch, index), picture.to_vec());
                    assert_eq!(before, None, "picture {index} came twice");
                }
            }
        }
    }
    seen
}

#[test]
fn ranks_workers_and_batch_sizes_do_not_change_a_picture() {
    let alone = of_all_ranks(1, 1, 5);
    assert_eq!(alone.len(), 2 * COUNT);
    assert_ne!(alone[&(0, 3)], alone[&(1, 3)], "an epoch changes the picture");
    for (world, workers, batch_size) in [(1, 3, 4), (2, 2, 5), (3, 1, 1), (4, 4, 7)] {
        let together = of_all_ranks(world, workers, batch_size);
        assert_eq!(together, alone, "{world} ranks, {workers} workers");
    }
}

#[test]
fn a_crop_without_room_and_unequal_sizes_name_the_picture() {
    let error = batches([Transform::RandomCrop { size: 40, padding: 0 }])
        .batch(0, &[7])
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("picture 7 of dummy pictures: a crop of 40 x 40"), "{error}");

    /// Squares of growing size.
    #[derive(Debug)]
    struct Growing([String; 1]);
    impl Pictures for Growing {
        fn name(&self) -> &str {
            "growing squares"
        }
        fn classes(&self) -> &[String] {
            &self.0
        }
        fn labels(&self) -> &[usize] {
            &[0; 3]
        }
        fn picture(&self, index: usize) -> Result<crate::images::Picture, PictureError> {
            Ok(crate::images::fixtures::plain(1 + index, [0; 3]))
        }
    }
    let source = Arc::new(Subset::new(Arc::new(Growing(["one".to_owned()])), vec![2, 1]));
    let batches = PictureBatches::new(
        source,
        Transforms::default(),
        Normalize::cifar10(),
        0,
        Device::default(),
    );
    let error = batches.batch(0, &[0, 1]).unwrap_err().to_string();
    assert!(
        error.starts_with("picture 1 of growing squares is 2 x 2 but the batch began with 3 x 3"),
        "{error}"
    );
}

/// What a program reads from a file or counts wrongly is an error of its batch, and no panic of the rank.
#[test]
fn batches_of_nothing_and_of_pictures_that_are_not_there_are_errors() {
    let batches = batches([]);
    for indices in [&[][..], &[0, COUNT]] {
        let error = batches.batch(0, indices).unwrap_err().to_string();
        assert!(error.contains("dummy pictures"), "{error}");
    }
}
