//! An embedding that is also the head.

use burn::optim::{GradientsAccumulator, GradientsParams, SgdConfig};

use super::*;

const STEPS: u32 = 3;
const RATE: f64 = 0.1;

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

/// The loss of a head that is the matrix of the embedding.
fn loss(stream: Tensor<3>, head: Tensor<2>, next: Tensor<1, Int>) -> Tensor<1> {
    let scores = stream.flatten::<2>(0, 1).matmul(head.transpose());
    let cross_entropy = CrossEntropyLossConfig::new().init(&scores.device());
    cross_entropy.forward(scores, next)
}

fn stage(part: &Part, pass: &mut Pass<'_, Batch>) -> Result<Output, PipelineError> {
    let (tokens, next) = pass.micro_batch().clone();
    let stream = if pass.is_first() { part.embed(tokens) } else { pass.input()? };
    let stream = part.forward(stream, pass.weights());
    Ok(if pass.is_last() { loss(stream, pass.tied()?, next).into() } else { stream.into() })
}

/// The embedding and all else that one rank trains, and its losses.
fn alone() -> (Vec<f32>, Vec<f64>) {
    let device = Device::flex().autodiff();
    let mut model = Part::whole(&device);
    model.head = None;
    let (mut optimizer, mut losses) = (sgd(), Vec::new());
    let at_once = WeightGradients::at_once();
    for step in 0..STEPS {
        let (mut sum, mut total) = (GradientsAccumulator::new(), 0.0);
        for (tokens, next) in batches(step, 2, &device) {
            let stream = model.forward(model.embed(tokens), &at_once);
            let embedding = model.embedding.as_ref().unwrap();
            let loss = loss(stream, embedding.weight.val(), next) / MICRO_BATCHES as f32;
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            sum.accumulate(&model, gradients);
            total += loss.into_scalar::<f64>();
        }
        losses.push(total);
        model = optimizer.step(RATE, model, sum.grads());
    }
    (values(&model), losses)
}

fn values(module: &impl Module) -> Vec<f32> {
    bits(module).into_iter().map(f32::from_bits).collect()
}

fn piped(kind: Kind, ranks: u32) -> (Vec<f32>, Vec<f64>) {
    let schedule = schedule(kind, ranks);
    let all = on_ranks(ranks, |world| {
        let device = world.device().autodiff();
        let mut stages = parts(&schedule, &world);
        stages.iter_mut().for_each(|stage| stage.head = None);
        let pipeline = Pipeline::new(stages, schedule.clone(), &world).unwrap();
        let pipeline = pipeline.with_tied(|part| &part.embedding.as_ref().unwrap().weight);
        let mut pipeline = pipeline.unwrap();
        let (mut optimizer, mut losses) = (sgd(), Vec::new());
        for step in 0..STEPS {
            let done = pipeline.backward(&batches(step, 2, &device), stage).unwrap();
            losses.push(done.loss.value().unwrap());
            pipeline.step(&mut optimizer, RATE, done.gradients).unwrap();
        }
        let own = schedule.stages_on(world.rank()).into_iter();
        let own = own.zip(pipeline.stages());
        (own.map(|(n, stage)| (n, bits(stage))).collect::<Vec<_>>(), losses)
    });
    let losses = all[0].1.clone();
    let mut stages: Vec<_> = all.into_iter().flat_map(|(stages, _)| stages).collect();
    stages.sort();
    let bits = stages.into_iter().flat_map(|(_, bits)| bits);
    (bits.map(f32::from_bits).collect(), losses)
}

#[test]
fn a_tied_parameter_is_trained_by_both_stages() {
    let (expected, losses) = alone();
    let first = piped(Kind::OneForwardOneBackward, 2);
    // Sums of 8 micro-batches are added in another order, three times: each addition rounds by at most half a unit in
    // the last place of values below 1, and a step multiplies by at most 1.
    let tolerance = 3.0 * 16.0 * f32::EPSILON;
    let differences = expected.iter().zip(&first.0).map(|(one, other)| (one - other).abs());
    let largest = differences.fold(0.0, f32::max);
    assert!(largest < tolerance, "{largest}");
    assert_eq!(expected.len(), first.0.len());
    for (one, other) in losses.iter().zip(&first.1) {
        assert!((one - other).abs() < f64::from(tolerance), "{one} against {other}");
    }
    // The last stage is on another rank, or on that of the first, or the only one.
    for (kind, ranks) in [(Kind::GPipe, 3), (Kind::ZeroBubbleV, 2), (Kind::ZeroBubbleH1, 1)] {
        assert!(piped(kind, ranks) == first, "{kind} on {ranks} ranks");
    }
}

#[test]
fn only_the_last_stage_has_a_tied_parameter() {
    let schedule = schedule(Kind::GPipe, 2);
    let all = on_ranks(2, |world| {
        let device = world.device().autodiff();
        let stages = parts(&schedule, &world);
        let mut pipeline = Pipeline::new(stages, schedule.clone(), &world).unwrap();
        let step = pipeline.backward(&batches(0, 2, &device), stage);
        step.unwrap_err()
    });
    assert_each_says(&all[..1], &["stage 1 asks for a tied parameter of 2 dimensions"]);
}
