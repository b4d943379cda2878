//! Trains on pictures in folders that it draws itself: the listing of the chapter on pictures.

use std::sync::Arc;

use bonfire::data::{
    DummyConfig, DummyPictures, Normalize, PictureBatches, PictureSize, Pictures, Prefetch,
    Transform, Transforms, split_pictures,
};
use bonfire::prelude::*;

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

// ANCHOR: epoch
fn train(world: World) -> anyhow::Result<()> {
    // `ImageFolder::open("flower_photos")?` or `Cifar10::open("cifar.tar", CifarPart::Train)?`
    // work here as well.
    let pictures: Arc<dyn Pictures> = Arc::new(DummyPictures::new(DummyConfig {
        count: 40,
        classes: 5,
        size: PictureSize::square(48),
        seed: 1,
    }));
    pictures.expect_classes(5)?;
    let (training, validation) = split_pictures(&pictures, 0.2, 0)?;
    let transforms =
        Transforms::new([Transform::random_resized_crop(32), Transform::RandomHorizontalFlip])?;
    let count = training.count();
    let (normalize, device) = (Normalize::imagenet(), world.device());
    let batches = PictureBatches::new(Arc::new(training), transforms, normalize, 7, device);

    let mut loader = Loader::new(&world, count, 4).with_shuffle(7);
    let mut seen = 0;
    for epoch in 0..2 {
        let batches = batches.clone();
        let prepare = move |indices: &[usize]| batches.batch(epoch, indices);
        for prepared in loader.next_epoch().prefetch(Prefetch::default(), prepare)? {
            let batch = prepared?.batch;
            let [pictures, channels, height, width] = batch.pictures.dims();
            assert_eq!([channels, height, width], [3, 32, 32]);
            seen += pictures;
        }
    }
    println!("saw {seen} pictures, holds out {}", validation.count());
    Ok(())
}
// ANCHOR_END: epoch
