//! How much memory attention takes: the most that a program ever had, which it asks the system for in the end. So what
//! is measured is a program of its own, this one started again.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use bonfire_parallel::{AttentionMask, self_attention};
use bonfire_testkit::{measured, print_figure, task};
use bonfire_train::Resident;
use burn::tensor::{Device, Tensor};

const HEADS: usize = 4;
const FEATURES: usize = 16;

fn pass(tokens: usize) {
    let device = Device::flex().autodiff();
    let packed = Tensor::<3>::ones([3 * HEADS, tokens, FEATURES], &device).require_grad();
    let gradients = self_attention(packed.clone(), AttentionMask::Causal).sum().backward();
    assert_eq!(packed.grad(&gradients).unwrap().dims(), packed.dims());
}

#[test]
fn the_memory_of_attention_grows_with_the_tokens_and_not_with_their_square() {
    const NAME: &str = "the_memory_of_attention_grows_with_the_tokens_and_not_with_their_square";
    if let Some(tokens) = task() {
        pass(tokens.parse().unwrap());
        return print_figure(Resident::of_this_process().unwrap().peak_bytes);
    }
    let [nothing, short, long] =
        [1, 2048, 8192].map(|tokens: usize| measured(NAME, &tokens.to_string()) as f64);
    let scores = (HEADS * 8192 * 8192 * size_of::<f32>()) as f64;
    let growth = (long - nothing) / (short - nothing);
    println!("{growth:.1} times as much, {:.2} of all scores", (long - nothing) / scores);
    assert!(growth < 8.0, "4 times as many tokens take {growth:.1} times as much memory");
    assert!(long - nothing < scores / 4.0, "{long} bytes beside {scores} of all scores");
}
