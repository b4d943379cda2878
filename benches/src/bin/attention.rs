//! Measures attention, forward and backward, and the memory that it takes beyond its input: of `self_attention`, with
//! the softmax kept for the backward pass, and by Burn's operations, in turns in one run.
//!
//! `RAYON_NUM_THREADS=1 cargo run --release -p bonfire-benches --bin attention -- --tokens 1024`

#![forbid(unsafe_code)]

use std::fs;
use std::time::Instant;

use bonfire::nn::{AttentionMask, self_attention};
use bonfire::parallel::custom_gradient;
use bonfire_benches::median;
use burn::tensor::{Bool, Device, Distribution, Tensor, activation};
use clap::Parser;

/// Time attention and measure its memory.
#[derive(Debug, Parser)]
struct Args {
    /// Tokens of a sequence
    #[arg(long, default_value_t = 1024)]
    tokens: usize,

    /// Sequences times heads
    #[arg(long, default_value_t = 12)]
    heads: usize,

    /// Features of a head
    #[arg(long, default_value_t = 64)]
    features: usize,

    /// Measurements of each way
    #[arg(long, default_value_t = 9)]
    rounds: usize,

    /// Attend to later tokens, too
    #[arg(long)]
    all: bool,
}

/// The name of a way, and its function.
type Way = (&'static str, fn(Tensor<3>, AttentionMask) -> Tensor<3>);

const WAYS: [Way; 3] = [
    ("self_attention", self_attention),
    ("softmax kept", kept),
    ("Burn's operations", by_operations),
];

fn main() {
    let args = Args::parse();
    let attend = if args.all { AttentionMask::All } else { AttentionMask::Causal };
    let device = Device::flex().autodiff();
    let shape = [3 * args.heads, args.tokens, args.features];
    let packed = Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), &device);
    let mut found = WAYS.map(|_| (Vec::new(), 0));
    for round in 0..=args.rounds {
        for ((_, attention), (times, peak)) in WAYS.iter().zip(&mut found) {
            let packed = packed.clone().require_grad();
            let before = start_peak();
            let started = Instant::now();
            let gradients = attention(packed.clone(), attend).sum().backward();
            let time = started.elapsed();
            assert!(packed.grad(&gradients).is_some());
            // The first round warms up.
            if round > 0 {
                times.push(time);
                *peak = (*peak).max(peak_kib().saturating_sub(before));
            }
        }
    }
    let Args { tokens, heads, features, .. } = args;
    println!("{heads} sequences or heads of {tokens} tokens with {features} features, {attend:?}");
    let first = median(found[0].0.clone()).as_secs_f64();
    for ((name, _), (times, peak)) in WAYS.iter().zip(found) {
        let time = median(times).as_secs_f64();
        println!(
            "{name:17}  {:8.1} ms  {:5.2}  {:7.1} MiB",
            time * 1e3,
            time / first,
            peak as f64 / 1024.0
        );
    }
}

/// Resets the peak of this process's memory; returns what it has, in KiB.
fn start_peak() -> u64 {
    fs::write("/proc/self/clear_refs", "5").expect("the kernel resets the peak");
    status("VmRSS:")
}

fn peak_kib() -> u64 {
    status("VmHWM:")
}

fn status(key: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("Linux has it");
    line.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
}

fn parts(packed: &Tensor<3>) -> [Tensor<3>; 3] {
    let [first, _, features] = packed.dims();
    let part = |i| packed.clone().narrow(0, i * (first / 3), first / 3);
    [part(0).div_scalar((features as f64).sqrt()), part(1), part(2)]
}

fn weights(queries: Tensor<3>, keys: Tensor<3>, attend: AttentionMask) -> Tensor<3> {
    let scores = queries.matmul(keys.transpose());
    let [_, rows, columns] = scores.dims();
    let scores = match attend {
        AttentionMask::Causal => {
            let later = Tensor::<2, Bool>::tril_mask([rows, columns], 0, &scores.device());
            let shape = scores.dims();
            scores.mask_fill(later.unsqueeze::<3>().expand(shape), f32::NEG_INFINITY)
        }
        _ => scores,
    };
    activation::softmax(scores, 2)
}

fn by_operations(packed: Tensor<3>, attend: AttentionMask) -> Tensor<3> {
    let [queries, keys, values] = parts(&packed);
    weights(queries, keys, attend).matmul(values)
}

fn kept(packed: Tensor<3>, attend: AttentionMask) -> Tensor<3> {
    let scale = (packed.dims()[2] as f64).sqrt();
    let [queries, keys, values] = parts(&packed.clone().without_autodiff());
    let weights = weights(queries.clone(), keys.clone(), attend);
    let output = weights.clone().matmul(values.clone());
    let kept = output.clone();
    let backward = move |gradient: Tensor<3>| {
        let inner = (gradient.clone() * kept).sum_dim(2);
        let of_values = weights.clone().transpose().matmul(gradient.clone());
        let of_scores = (gradient.matmul(values.transpose()) - inner) * weights;
        let of_queries = of_scores.clone().matmul(keys).div_scalar(scale);
        Tensor::cat(vec![of_queries, of_scores.transpose().matmul(queries), of_values], 0)
    };
    custom_gradient(packed, |_| output, backward)
}
