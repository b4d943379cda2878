//! Measures a step of AdamW: Bonfire's in one pass over memory, Burn's own, and a plain loop over slices without
//! tensors; and clipping before it, the squares of all rows and a factor: in two passes over memory, and by Burn's
//! operations; and the squares and a step that takes the factor itself. In turn in one run.
//!
//! `RAYON_NUM_THREADS=1 cargo run --release -p bonfire-benches --bin optimizer`, with `GLIBC_TUNABLES` as the launcher sets
//! it for ranks: see the page on measuring.
//!
//! The plain loop has all parameters in one piece of memory and one thread for each part of it. 28 bytes per
//! parameter cross the memory bus: parameter and both moments are read and written, the gradient is read.

#![forbid(unsafe_code)]

use std::any::Any;
use std::thread;
use std::time::Instant;

use bonfire::optim::{AdamWConfig, DeferredScale};
use bonfire_benches::{Mlp, median};
use bonfire_optim::Factors;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Distribution, Tensor};
use clap::Parser;

/// Time a step of AdamW, fused, as Burn has it, and as a plain loop; and clipping, in passes and as Burn has it.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// Layers and width of each model
    #[arg(long, value_parser = model, default_values = ["25x768", "24x2048"])]
    models: Vec<(usize, usize)>,

    /// Timed steps of each kind
    #[arg(long, default_value_t = 9)]
    steps: usize,
}

const RATE: f64 = 1e-4;
const BETAS: [f32; 2] = [0.9, 0.999];
const EPSILON: f32 = 1e-8;
const DECAY: f32 = 1e-2;

/// Steps before the first that is timed: moments are made in the first.
const WARM_UP_STEPS: usize = 2;

const HEAD: &str = concat!(
    "  parameters threads   fused ms    Burn ms   plain ms  Burn / fused  plain / fused",
    "  clip ms Burn clip ms  Burn / clip  folded ms  apart / folded"
);

fn main() {
    let args = Args::parse();
    println!("{HEAD}");
    for model in args.models {
        println!("{}", measure(model, args.steps));
    }
}

fn model(text: &str) -> Result<(usize, usize), String> {
    let sizes = text.split_once('x').ok_or("it is not of the form 25x768")?;
    let number = |text: &str| text.parse().map_err(|error| format!("{text}: {error}"));
    Ok((number(sizes.0)?, number(sizes.1)?))
}

fn measure((layers, width): (usize, usize), steps: usize) -> String {
    let threads = rayon::current_num_threads();
    let model = Mlp::new(layers, width, &Device::flex().autodiff());
    let parameters = model.num_params();
    let mut gradients = Gradients::default();
    model.visit(&mut gradients);
    let burns = burn::optim::AdamWConfig::new().with_epsilon(EPSILON).with_weight_decay(DECAY);
    let factor = DeferredScale::default();
    let folding = AdamWConfig::new().build();
    let folding = folding.with_deferred_scale(factor.clone());
    let mut fused = Training::new(model.clone(), AdamWConfig::new().init());
    let mut folding = Training::new(model.clone(), folding.into());
    let mut burns = Training::new(model, burns.init());
    let mut plain = Plain::new(parameters);
    let mut times = Vec::new();
    for step in 0..steps + WARM_UP_STEPS {
        let milliseconds = [
            fused.step(&gradients),
            burns.step(&gradients),
            plain.step(step as i32 + 1, threads),
            gradients.clip(Clipping::Passes),
            gradients.clip(Clipping::Operations),
            gradients.clip(Clipping::Squares)
                + factor.during(Factors::from(0.5), || folding.step(&gradients)).0,
        ];
        if step >= WARM_UP_STEPS {
            times.push(milliseconds);
        }
    }
    let of = |time: &dyn Fn(&[f64; 6]) -> f64| median(times.iter().map(time).collect());
    format!(
        "{parameters:>12} {threads:>7} {:>10.2} {:>10.2} {:>10.2} {:>13.2} {:>14.2} {:>8.2} {:>12.2} {:>12.2} {:>10.2} {:>15.2}",
        of(&|times| times[0]),
        of(&|times| times[1]),
        of(&|times| times[2]),
        of(&|times| times[1] / times[0]),
        of(&|times| times[2] / times[0]),
        of(&|times| times[3]),
        of(&|times| times[4]),
        of(&|times| times[4] / times[3]),
        of(&|times| times[5]),
        of(&|times| (times[3] + times[0]) / times[5]),
    )
}

/// Adds the gradient of a parameter to those of a step.
type Register = dyn Fn(&mut GradientsParams);

/// The squares of a gradient's rows, and the gradient times a factor.
type Clip = dyn Fn(Clipping) -> (Tensor<1>, Box<dyn Any>);

#[derive(Clone, Copy)]
enum Clipping {
    /// The squares, for a step that multiplies.
    Squares,
    Passes,
    Operations,
}

#[derive(Default)]
struct Gradients {
    register: Vec<Box<Register>>,
    clip: Vec<Box<Clip>>,
}

impl Gradients {
    fn clip(&self, clipping: Clipping) -> f64 {
        let started = Instant::now();
        let clipped: Vec<_> = self.clip.iter().map(|clip| clip(clipping)).collect();
        let milliseconds = started.elapsed().as_secs_f64() * 1e3;
        drop(clipped);
        milliseconds
    }
}

impl ModuleVisitor for Gradients {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (id, shape) = (param.id, param.shape());
        let gradient = Tensor::<D>::random(shape, Distribution::Default, &Device::flex());
        let factor = Tensor::<1>::from_floats([0.5], &Device::flex());
        let clipped = gradient.clone();
        self.clip.push(Box::new(move |clipping| {
            let gradient = clipped.clone();
            let rows = gradient.dims()[0];
            match clipping {
                Clipping::Squares => (squares(&gradient, rows), Box::new(())),
                Clipping::Passes => {
                    let squares = squares(&gradient, rows);
                    (squares, Box::new(Factors::from(0.5).multiply(gradient)))
                }
                Clipping::Operations => {
                    let elems = gradient.shape().num_elements();
                    let matrix = gradient.clone().reshape([rows, elems / rows]);
                    let squares = matrix.square().sum_dim(1).reshape([rows]);
                    (squares, Box::new(gradient * factor.clone().reshape([1; D])))
                }
            }
        }));
        let register = move |all: &mut GradientsParams| all.register(id, gradient.clone());
        self.register.push(Box::new(register));
    }
}

fn squares<const D: usize>(gradient: &Tensor<D>, rows: usize) -> Tensor<1> {
    let squares = Factors::default().row_squares(gradient, rows);
    squares.expect("f32 on the CPU")
}

struct Training {
    model: Option<Mlp>,
    optimizer: ModuleOptimizer,
}

impl Training {
    fn new(model: Mlp, optimizer: ModuleOptimizer) -> Self {
        Self { model: Some(model), optimizer }
    }

    fn step(&mut self, gradients: &Gradients) -> f64 {
        let mut all = GradientsParams::new();
        gradients.register.iter().for_each(|register| register(&mut all));
        let started = Instant::now();
        let model = self.model.take().expect("it comes back");
        self.model = Some(self.optimizer.step(RATE, model, all));
        started.elapsed().as_secs_f64() * 1e3
    }
}

/// Parameters, gradients and both moments.
struct Plain([Vec<f32>; 4]);

impl Plain {
    fn new(parameters: usize) -> Self {
        Self([0.5, 0.25, 0.0, 0.0].map(|value| vec![value; parameters]))
    }

    fn step(&mut self, time: i32, threads: usize) -> f64 {
        let started = Instant::now();
        let part = self.0[0].len().div_ceil(threads);
        let [parameters, gradients, first, second] = &mut self.0;
        let moments = first.chunks_mut(part).zip(second.chunks_mut(part));
        let parts = parameters.chunks_mut(part).zip(gradients.chunks(part));
        thread::scope(|scope| {
            for ((parameters, gradients), (first, second)) in parts.zip(moments) {
                scope.spawn(move || plain(parameters, gradients, first, second, time));
            }
        });
        started.elapsed().as_secs_f64() * 1e3
    }
}

/// AdamW as a plain loop over slices.
fn plain(
    parameters: &mut [f32],
    gradients: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    time: i32,
) {
    let corrections = BETAS.map(|beta| 1.0 - beta.powi(time));
    let (rate, kept) = (RATE as f32, 1.0 - RATE as f32 * DECAY);
    let moments = first.iter_mut().zip(second);
    let elements = parameters.iter_mut().zip(gradients);
    for ((parameter, gradient), (first, second)) in elements.zip(moments) {
        *first = BETAS[0] * *first + (1.0 - BETAS[0]) * gradient;
        *second = BETAS[1] * *second + (1.0 - BETAS[1]) * gradient * gradient;
        let root = (*second / corrections[1]).sqrt();
        let update = *first / corrections[0] / (root + EPSILON);
        *parameter = kept * *parameter - rate * update;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_pages_are_understood() {
        bonfire_testkit::assert_understood("optimizer", |words| Args::try_parse_from(words));
    }
}
