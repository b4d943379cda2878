//! Stages that hand on tensors of different shapes, and several of them.

use burn::optim::SgdConfig;

use super::*;

const SAMPLES: usize = 3;

/// A layer whose width is its own.
fn layers(device: &Device) -> Vec<Linear> {
    let layers = [(4, 6), (6, 5), (5, 2)];
    let layer = |(inputs, outputs)| LinearConfig::new(inputs, outputs).init(device);
    layers.map(layer).to_vec().map(&mut Waves(0))
}

fn inputs(device: &Device) -> Vec<Tensor<2>> {
    let input = |seed: usize| {
        let values = (0..SAMPLES * 4).map(|place| ((seed * 5 + place) as f32).cos());
        let data = TensorData::new(values.collect::<Vec<f32>>(), [SAMPLES, 4]);
        Tensor::from_data(data, device)
    };
    (0..MICRO_BATCHES as usize).map(input).collect()
}

/// The first stage makes a tensor of three dimensions for the next, and one that the last adds in: a skip connection.
fn first(layer: &Linear, x: Tensor<2>, weights: &WeightGradients) -> (Tensor<3>, Tensor<2>) {
    let x = activation::tanh(weights.linear(layer, x));
    (x.clone().reshape([1, SAMPLES, 6]), x.slice([0..SAMPLES, 0..5]))
}

fn second(layer: &Linear, x: Tensor<3>, weights: &WeightGradients) -> Tensor<2> {
    activation::tanh(weights.linear(layer, x)).reshape([SAMPLES, 5])
}

fn third(
    layer: &Linear,
    (x, skipped): (Tensor<2>, Tensor<2>),
    weights: &WeightGradients,
) -> Tensor<1> {
    weights.linear(layer, x + skipped).powi_scalar(2).mean()
}

fn stage(layer: &Linear, pass: &mut Pass<'_, Tensor<2>>) -> Result<Output, PipelineError> {
    let weights = pass.weights().clone();
    Ok(match pass.stage() {
        0 => {
            let (x, skipped) = first(layer, pass.micro_batch().clone(), &weights);
            Output::from(x).and(skipped)
        }
        1 => {
            let x = second(layer, pass.input()?, &weights);
            let skipped = pass.input::<2>()?;
            Output::from(x).and(skipped)
        }
        _ => third(layer, (pass.input()?, pass.input()?), &weights).into(),
    })
}

#[test]
fn stages_hand_on_several_tensors_of_any_shape() {
    let device = Device::flex().autodiff();
    let layers_here = layers(&device);
    let mut sum = burn::optim::GradientsAccumulator::new();
    let at_once = WeightGradients::at_once();
    for x in inputs(&device) {
        let (x, skipped) = first(&layers_here[0], x, &at_once);
        let x = second(&layers_here[1], x, &at_once);
        let loss = third(&layers_here[2], (x, skipped), &at_once) / MICRO_BATCHES as f32;
        let gradients = burn::optim::GradientsParams::from_grads(loss.backward(), &layers_here);
        sum.accumulate(&layers_here, gradients);
    }
    let mut sgd: ModuleOptimizer = SgdConfig::new().init();
    let expected = sgd.step(0.5, layers_here, sum.grads());

    for kind in [Kind::OneForwardOneBackward, Kind::ZeroBubbleH1] {
        let schedule = schedule(kind, 3);
        let all = on_ranks(3, |world| {
            let device = world.device().autodiff();
            let own = vec![layers(&device).swap_remove(world.rank().index())];
            let mut pipeline = Pipeline::new(own, schedule.clone(), &world).unwrap();
            let step = pipeline.backward(&inputs(&device), stage).unwrap();
            let mut sgd: ModuleOptimizer = SgdConfig::new().init();
            pipeline.step(&mut sgd, 0.5, step.gradients).unwrap();
            bits(&pipeline.stages()[0])
        });
        // A scale of 1/8 is exact, so it does not matter when it is applied.
        assert_eq!(all.concat(), bits(&expected), "{kind}");
    }
}

/// A stage may leave an input alone, or have no parameters.
#[test]
fn what_is_not_used_has_no_gradient() {
    let schedule = schedule(Kind::GPipe, 3);
    on_ranks(3, |world| {
        let device = world.device().autodiff();
        let own = vec![layers(&device).swap_remove(0)];
        let mut pipeline = Pipeline::new(own, schedule.clone(), &world).unwrap();
        let step = pipeline.backward(&inputs(&device), |layer, pass| {
            Ok::<_, PipelineError>(match pass.stage() {
                0 => Output::from(layer.forward(pass.micro_batch().clone())),
                1 => Output::from(pass.input::<2>()?.powi_scalar(2))
                    .and(Tensor::<1>::ones([1], &device)),
                _ => Output::from(layer.forward(pass.micro_batch().clone()).mean()),
            })
        });
        let step = step.unwrap();
        let gradient = step.gradients.get(&pipeline.stages()[0].weight);
        let sum = gradient.map(|gradient| gradient.abs().sum().into_scalar::<f32>());
        match world.rank().get() {
            0 => assert_eq!(sum, Some(0.0)),
            1 => assert_eq!(sum, None),
            _ => assert!(sum.unwrap() > 0.0),
        }
    });
}
