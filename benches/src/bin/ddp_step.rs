//! Measures the cost of gradient synchronisation: the same step without it, with overlapped buckets, with one
//! all-reduce per parameter after backward, and in one process with as many replicas, interleaved in one run.
//!
//! `cargo run --release -p bonfire-benches --bin ddp-step -- --nproc 2`
//!
//! A step is forward, backward, and averaged gradients in hand; the optimizer, equal in all of them,
//! is left out, so the ratios are not flattered by it. The replicas of the one process share its threads
//! and the batch of all ranks; the other ranks wait.

#![forbid(unsafe_code)]

use std::time::Duration;

use bonfire::collective::ReduceOp;
use bonfire::ddp::{DataParallel, StepTiming};
use bonfire::prelude::*;
use bonfire::{DdpConfig, LaunchArgs};
use bonfire_benches::{Sizes, median, timed};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Gradients, Tensor};
use clap::Parser;

/// Time a training step with and without gradient synchronisation.
#[derive(Clone, Debug, Parser)]
struct Args {
    #[command(flatten)]
    launch: LaunchArgs,

    #[command(flatten)]
    sizes: Sizes,

    /// Bucket size in MiB; the first one is at most 1 MiB
    #[arg(long, default_value_t = 25)]
    bucket_mib: usize,
}

fn main() -> bonfire::Result<()> {
    let args: Args = bonfire::launcher::parse_args();
    bonfire::launch_with(&args.launch.clone(), |world| measure(&world, &args))
}

fn measure(world: &World, args: &Args) -> anyhow::Result<()> {
    let device = world.device();
    let model = args.sizes.model(&device);
    let config = DdpConfig::default().with_bucket_bytes_max(args.bucket_mib << 20);
    let alone = model.clone().train();
    let mut bucketed = Ddp::with_config(model, world, config)?;
    let replicas = world.world_size().len();
    let mut parallel = DataParallel::new(alone.clone(), vec![device.clone(); replicas]);
    let whole = args.sizes.input(replicas, &device);
    let input = args.sizes.input(1, &device.autodiff());

    let mut times: [Vec<Duration>; 4] = Default::default();
    let mut exposed = Vec::new();
    for round in args.sizes.rounds() {
        let plain = timed(world, || {
            let gradients = alone.loss(input.clone()).backward();
            let _ = GradientsParams::from_grads(gradients, &alone);
            Ok(())
        })?;
        let mut timing = StepTiming::default();
        let with_buckets = timed(world, || {
            let step = bucketed.backward(|model| model.loss(input.clone()))?;
            timing = step.timing;
            Ok(())
        })?;
        let one_by_one = timed(world, || {
            let gradients = alone.loss(input.clone()).backward();
            averaged(world, &alone, &gradients)
        })?;
        let in_one_process = timed(world, || {
            if world.is_main() {
                parallel.backward(&whole, |model, input| model.loss(input))?;
            }
            Ok(())
        })?;
        if args.sizes.is_timed(round) {
            times[0].push(plain);
            times[1].push(with_buckets);
            times[2].push(one_by_one);
            times[3].push(in_one_process);
            exposed.push(timing.exposed_communication);
        }
    }
    if world.is_main() {
        let head = args.sizes.head(world, &alone);
        println!("{head}, buckets of {} MiB", args.bucket_mib);
        report(times, exposed);
    }
    Ok(())
}

/// Averages the gradients of a model one parameter after the other.
fn averaged<M: Module>(world: &World, model: &M, gradients: &Gradients) -> anyhow::Result<()> {
    struct Averager<'a> {
        world: &'a World,
        gradients: &'a Gradients,
        averages: GradientsParams,
        result: anyhow::Result<()>,
    }
    impl Averager<'_> {
        fn average<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> anyhow::Result<()> {
            let Some(gradient) = param.val().grad(self.gradients) else {
                return Ok(());
            };
            let device = gradient.device();
            let mut data = gradient.into_data();
            let values = data.as_mut_slice::<f32>();
            let values = values.map_err(|error| anyhow::anyhow!("{error:?}"))?;
            self.world.group().all_reduce(values, ReduceOp::Mean)?;
            let average = Tensor::<D>::from_data(data, &device);
            self.averages.register(param.id, average);
            Ok(())
        }
    }
    impl ModuleVisitor for Averager<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.result.is_ok() {
                self.result = self.average(param);
            }
        }
    }
    let mut averager =
        Averager { world, gradients, averages: GradientsParams::new(), result: Ok(()) };
    model.visit(&mut averager);
    averager.result
}

fn report(times: [Vec<Duration>; 4], exposed: Vec<Duration>) {
    let [plain, bucketed, one_by_one, in_one_process] = times.map(median);
    println!("{:<36} {:>10} {:>22}", "step", "time (ms)", "relative to no sync");
    for (name, time) in [
        ("no synchronisation", plain),
        ("buckets overlapped with backward", bucketed),
        ("one all-reduce per parameter, after", one_by_one),
        ("DataParallel, one process", in_one_process),
    ] {
        let ratio = time.as_secs_f64() / plain.as_secs_f64();
        println!("{name:<36} {:>10.1} {ratio:>22.3}", time.as_secs_f64() * 1e3);
    }
    println!("exposed communication with buckets: {:.1} ms", median(exposed).as_secs_f64() * 1e3);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_pages_are_understood() {
        bonfire_testkit::assert_understood("ddp-step", |words| Args::try_parse_from(words));
    }
}
