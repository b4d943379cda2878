//! Measures the cost and the gain of compressed gradients: the same step with every compression, interleaved in one
//! run, and the bytes that each sends.
//!
//! `cargo run --release -p bonfire-benches --bin compression -- --nproc 2`
//!
//! Gradients are sent over TCP on one host, too, as between hosts: ranks that read each other's memory in place send
//! nothing, and gain nothing. The gain of compression depends on the link: start one rank on each of two hosts to
//! measure yours.

#![forbid(unsafe_code)]

use std::time::Duration;

use bonfire::LaunchArgs;
use bonfire::collective::TransportKind;
use bonfire::compression::GradientCompression;
use bonfire::compression::PowerSgdConfig;
use bonfire::prelude::*;
use bonfire_benches::{Mlp, Sizes, median, timed};
use clap::Parser;

/// Time a training step with every compression of gradients.
#[derive(Clone, Debug, Parser)]
struct Args {
    #[command(flatten)]
    launch: LaunchArgs,

    #[command(flatten)]
    sizes: Sizes,
}

struct Contender {
    name: String,
    ddp: Ddp<Mlp>,
    times: Vec<Duration>,
    bytes: u64,
}

fn main() -> bonfire::Result<()> {
    let args: Args = bonfire::launcher::parse_args();
    let mut launch = args.launch.clone();
    launch.group.transport = Some(TransportKind::Tcp);
    bonfire::launch_with(&launch, |world| measure(&world, &args))
}

fn compressions() -> Vec<(String, GradientCompression)> {
    let power_sgd = |rank: usize| {
        let config = PowerSgdConfig::default().with_rank(rank).with_start_step(0);
        let name = format!("PowerSGD, rank {rank}");
        (name, GradientCompression::PowerSgd(config))
    };
    vec![
        ("none".to_owned(), GradientCompression::None),
        ("f16".to_owned(), GradientCompression::Fp16),
        ("bf16".to_owned(), GradientCompression::Bf16),
        power_sgd(1),
        power_sgd(4),
    ]
}

fn measure(world: &World, args: &Args) -> anyhow::Result<()> {
    let device = world.device();
    let model = args.sizes.model(&device);
    let mut contenders = Vec::new();
    for (name, compression) in compressions() {
        let config = DdpConfig::default().with_compression(compression);
        contenders.push(Contender {
            name,
            ddp: Ddp::with_config(model.clone(), world, config)?,
            times: Vec::new(),
            bytes: 0,
        });
    }
    let input = args.sizes.input(1, &device.autodiff());
    for round in args.sizes.rounds() {
        for contender in &mut contenders {
            let before = world.group().traffic().payload_bytes_sent;
            let time = timed(world, || {
                let ddp = &mut contender.ddp;
                ddp.backward(|model| model.loss(input.clone()))?;
                Ok(())
            })?;
            contender.bytes = world.group().traffic().payload_bytes_sent - before;
            if args.sizes.is_timed(round) {
                contender.times.push(time);
            }
        }
    }
    if world.is_main() {
        println!("{}", args.sizes.head(world, &model));
        report(contenders);
    }
    Ok(())
}

fn report(contenders: Vec<Contender>) {
    println!(
        "{:<18} {:>10} {:>22} {:>12}",
        "compression", "step (ms)", "relative to none", "sent (kB)"
    );
    let mut none = None;
    for contender in contenders {
        let time = median(contender.times);
        let relative = time.div_duration_f64(*none.get_or_insert(time));
        println!(
            "{:<18} {:>10.1} {:>22.3} {:>12.1}",
            contender.name,
            time.as_secs_f64() * 1e3,
            relative,
            contender.bytes as f64 / 1e3
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_pages_are_understood() {
        bonfire_testkit::assert_understood("compression", |words| Args::try_parse_from(words));
    }
}
