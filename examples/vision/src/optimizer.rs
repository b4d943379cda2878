//! Stochastic gradient descent as PyTorch has it.

use bonfire::optim::SgdConfig;
use burn::optim::ModuleOptimizer;

use crate::config::OptimSection;

pub fn sgd(optim: &OptimSection) -> ModuleOptimizer {
    SgdConfig::new()
        .with_momentum(optim.momentum)
        .with_dampening(optim.dampening)
        // Without momentum it means nothing.
        .with_nesterov(optim.nesterov && optim.momentum > 0.0)
        .with_weight_decay(optim.weight_decay as f32)
        .init()
}

#[cfg(test)]
mod tests {
    use burn::nn::LinearConfig;
    use burn::optim::GradientsParams;
    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::config::Config;

    /// The update rule of PyTorch's documentation of `SGD`, in f64.
    fn expected(optim: &OptimSection, start: f64, gradients: &[f64], rate: f64) -> f64 {
        let (mut value, mut velocity) = (start, None);
        for gradient in gradients {
            let gradient = gradient + optim.weight_decay * value;
            let next = match velocity {
                Some(old) => optim.momentum * old + (1.0 - optim.dampening) * gradient,
                None => gradient,
            };
            velocity = Some(next);
            value -= rate * if optim.nesterov { gradient + optim.momentum * next } else { next };
        }
        value
    }

    #[test]
    fn steps_are_pytorchs() {
        let nesterov = Config::default().optim;
        let dampened = OptimSection {
            dampening: 0.25,
            nesterov: false,
            weight_decay: 0.1,
            ..nesterov.clone()
        };
        let plain = OptimSection { momentum: 0.0, nesterov: false, ..nesterov.clone() };
        let device = Device::flex().autodiff();
        let gradients = [0.5, -1.0, 2.0];
        for optim in [nesterov, dampened, plain] {
            let mut model = LinearConfig::new(1, 1).with_bias(false).init(&device);
            let start = model.weight.val().into_scalar::<f64>();
            let mut optimizer = sgd(&optim);
            for gradient in gradients {
                let gradient = Tensor::<2>::full([1, 1], gradient, &Device::flex());
                let mut all = GradientsParams::new();
                all.register(model.weight.id, gradient);
                model = optimizer.step(0.1, model, all);
            }
            let found = model.weight.val().into_scalar::<f64>();
            let expected = expected(&optim, start, &gradients, 0.1);
            // Three steps of a handful of roundings of numbers near 1.
            let tolerance = 15.0 * f64::from(f32::EPSILON);
            assert!((found - expected).abs() < tolerance, "{optim:?}: {found} {expected}");
        }
    }
}
