//! How much memory segments take: the most that a program ever had, which it asks the system for in the
//! end. So each measurement is a program of its own, this one started again.

#![cfg(all(feature = "flex", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use bonfire_testkit::{measured, print_figure, task};
use bonfire_train::{Resident, recompute};
use burn::module::Param;
use burn::tensor::{Device, Tensor};

/// Of a block's input and of each activation in it.
const MIB: usize = 2;
const WIDTH: usize = 256;
const ROWS: usize = MIB * (1 << 20) / 4 / WIDTH;

/// Activations that a block keeps for its backward pass.
const ACTIVATIONS: usize = 8;

fn forward(gain: &Param<Tensor<2>>, mut x: Tensor<2>) -> Tensor<2> {
    for _ in 0..ACTIVATIONS / 2 {
        // The product keeps its factor, and the tangent its result.
        x = (x * gain.val()).tanh();
    }
    x
}

/// Trains a model of `blocks` blocks, `plain` or in `segments`.
fn train(task: &str) {
    let (kind, blocks) = task.split_once(' ').unwrap();
    let device = Device::flex().autodiff();
    let gain = Param::from_tensor(Tensor::<2>::ones([1, WIDTH], &device));
    let x = Tensor::<2>::full([ROWS, WIDTH], 0.5, &device);
    let output = (0..blocks.parse().unwrap()).fold(x, |x, _| match kind {
        "plain" => forward(&gain, x),
        _ => recompute(&gain, x, forward),
    });
    let gradients = output.mean().backward();
    assert!(gain.val().grad(&gradients).is_some());
}

#[test]
fn each_further_block_takes_its_input() {
    if let Some(task) = task() {
        train(&task);
        return print_figure(Resident::of_this_process().unwrap().peak_bytes);
    }
    let (few, many) = (8, 24);
    // In inputs: how much the peak grows with each block.
    let growth = |kind| {
        let [few_mib, many_mib] = [few, many].map(|blocks| {
            let peak = measured("each_further_block_takes_its_input", &format!("{kind} {blocks}"));
            peak as f64 / f64::from(1 << 20)
        });
        println!("{kind}: {few_mib} MiB with {few} blocks, {many_mib} MiB with {many}");
        (many_mib - few_mib) / ((many - few) * MIB) as f64
    };
    let (plain, segments) = (growth("plain"), growth("segments"));
    // The allocator may keep a little more than what is alive.
    assert!((0.9..1.5).contains(&segments), "{segments} inputs per block");
    assert!(plain > 0.9 * ACTIVATIONS as f64, "{plain} inputs per block without segments");
}
