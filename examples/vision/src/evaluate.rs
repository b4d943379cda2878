//! The accuracy of a network on test pictures.

use anyhow::{Context, Result};
use bonfire::data::{Loader, Remainder};
use bonfire::world::StopRequest;
use bonfire::{NextStep, World, agree_on_next_step};
use burn::nn::loss::CrossEntropyLossConfig;

use crate::config::Config;
use crate::data::{Data, prefetch};
use crate::meters::Meters;
use crate::model::Model;
use crate::show;
use crate::tally::{Figures, Tally};

/// Scores every test picture on exactly one rank. Returns the same figures, bit for bit, on every rank; `None` if the
/// ranks stop on the way. The model has no autodiff.
///
/// # Errors
/// If a picture cannot be read, or a rank fails.
pub fn evaluate(
    world: &World,
    model: &Model,
    data: &Data,
    config: &Config,
    stop: &StopRequest,
) -> Result<Option<Figures>> {
    let mut loader = Loader::new(world, data.test.count(), config.test.batch_size.get())
        .with_remainder(Remainder::Exact);
    let k = config.train.topk.get();
    let batches = data.test_batches(config, world)?;
    let prepare = move |indices: &[usize]| batches.batch(0, indices);
    let epoch = loader.next_epoch();
    let mut meters = Meters::new("TEST ".to_owned(), k);
    let cross_entropy = CrossEntropyLossConfig::new().init(&world.device());

    let mut tally = Tally::default();
    let mut prefetched = epoch.prefetch(prefetch(config), prepare)?;
    loop {
        let batch = match agree_on_next_step(world, stop, prefetched.next())? {
            NextStep::Step(Some(prepared)) => prepared.batch,
            // Ranks may have different numbers of batches.
            NextStep::Step(None) => continue,
            NextStep::End => break,
            NextStep::Stop => return Ok(None),
        };
        meters.data_ready();
        let scores = model.forward(batch.pictures);
        let loss = cross_entropy.forward(scores.clone(), batch.labels.clone());
        let loss = loss.into_scalar::<f64>();
        tally.add(scores, batch.labels, loss, k);
        meters.step(prefetched.len());
        // So what is shown on the way is rank 0's share.
        if world.is_main()
            && meters.is_due(config.test.print_freq.get())
            && let Some(figures) = tally.local()
        {
            show(&meters.line(loss, figures, 0));
        }
    }
    let figures = tally.over_ranks(world)?;
    Ok(Some(figures.context("there is no test picture")?))
}
