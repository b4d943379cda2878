//! Parameters that a model uses in several places.

use super::*;

/// Two layers with one weight: the second multiplies by its transpose.
#[derive(Module, Debug)]
struct Mirror {
    weight: Param<Tensor<2>>,
}

impl Mirror {
    fn new(device: &Device) -> Self {
        let weight = Tensor::zeros([INPUTS, HIDDEN], device);
        seeded(Self { weight: Param::from_tensor(weight) }, 5)
    }

    fn loss(&self, indices: &[usize], device: &Device) -> Tensor<1> {
        let (x, _) = samples(indices, device);
        let hidden = activation::tanh(x.clone().matmul(self.weight.val()));
        let mirrored = hidden.matmul(self.weight.val().transpose());
        (mirrored - x).powi_scalar(2).mean()
    }
}

/// The gradient of one rank over all samples is the mean over the ranks, of both uses together.
#[test]
fn a_parameter_used_twice_has_the_sum_of_both_gradients() {
    let all: Vec<usize> = (0..6).collect();
    let whole = {
        let device = Device::flex().autodiff();
        let model = Mirror::new(&device);
        let loss = model.loss(&all, &device);
        gradient_values(&model, &GradientsParams::from_grads(loss.backward(), &model))
    };
    let config = small_buckets();
    let found = on_ranks(2, |world| {
        let device = world.device();
        let mut ddp = Ddp::with_config(Mirror::new(&device), &world, config.clone()).unwrap();
        let indices: Vec<usize> = share(&world, 0, 3);
        // The first step guesses where hooks belong, the second knows.
        ddp.backward(|model| model.loss(&indices, &device)).unwrap();
        let gradients = ddp.backward(|model| model.loss(&indices, &device));
        gradient_values(ddp.module(), &gradients.unwrap().gradients)
    });
    let found = one_of(found);
    let (found, whole) = (found[0].as_ref().unwrap(), whole[0].as_ref().unwrap());
    for (found, whole) in found.iter().zip(whole) {
        // Of 16 terms each, and less than one.
        assert!((found - whole).abs() < 1e-5, "{found} for {whole}");
    }
}

/// One parameter in two places: Burn's optimizers update what they meet first.
#[derive(Module, Debug)]
struct Tied {
    first: Linear,
    second: Linear,
}

#[test]
fn a_parameter_held_twice_is_refused_on_every_rank() {
    let errors = on_ranks(2, |world| {
        let device = world.device();
        let first: Linear = LinearConfig::new(INPUTS, INPUTS).init(&device);
        let mut second: Linear = LinearConfig::new(INPUTS, INPUTS).init(&device);
        second.weight = first.weight.clone();
        Ddp::new(Tied { first, second }, &world).unwrap_err()
    });
    for error in errors {
        let TrainError::TiedParameter { parameter, again } = error else {
            panic!("expected a tied parameter, got {error}");
        };
        assert_eq!([&*parameter, &*again], ["first.weight", "second.weight"]);
    }
}
