//! A model of numbers, trained by a schedule: each stage multiplies by its parameter. Arithmetic wraps around, so
//! sums have the same value in any order, and every gradient can be compared exactly.

use std::collections::HashMap;

use bonfire_plan::pipeline::{Action, Message, Pass, Schedule};

#[derive(Default)]
struct Rank {
    next: usize,
    /// The inputs of forward passes, by stage and micro-batch, until their last backward pass.
    activations: HashMap<(u32, u32), u64>,
    activations_max: usize,
    /// The gradients of outputs that wait for the weight gradient.
    queued: HashMap<(u32, u32), u64>,
    /// What it received, or what one of its stages made for another.
    values: HashMap<Message, u64>,
}

/// Runs the lists of a schedule with messages, each of which both ranks wait for. Returns the gradients of all
/// stages, and the most activations of each rank; `None` if ranks wait forever. Panics if something is not there.
pub(crate) fn train(schedule: &Schedule) -> Option<(Vec<u64>, Vec<u32>)> {
    let mut ranks: Vec<Rank> = Vec::new();
    ranks.resize_with(schedule.lists().len(), Rank::default);
    let mut gradients = vec![0_u64; schedule.stages() as usize];
    let head = |ranks: &[Rank], rank: usize| schedule.lists()[rank].get(ranks[rank].next).copied();
    let mut moved = true;
    while moved {
        moved = false;
        for rank in 0..ranks.len() {
            match head(&ranks, rank) {
                None | Some(Action::Receive(_)) => continue,
                Some(Action::Send(message)) => {
                    let target = schedule.owner(message.target()).index();
                    if head(&ranks, target) != Some(Action::Receive(message)) {
                        continue;
                    }
                    let value = ranks[rank].values.remove(&message).unwrap();
                    ranks[target].values.insert(message, value);
                    ranks[target].next += 1;
                }
                Some(action) => step(schedule, &mut ranks[rank], action, &mut gradients),
            }
            ranks[rank].next += 1;
            moved = true;
        }
    }
    if (0..ranks.len()).any(|rank| head(&ranks, rank).is_some()) {
        return None;
    }
    assert!(ranks.iter().all(|rank| rank.activations.is_empty() && rank.values.is_empty()));
    let most = ranks.iter().map(|rank| rank.activations_max as u32).collect();
    Some((gradients, most))
}

fn step(schedule: &Schedule, rank: &mut Rank, action: Action, gradients: &mut [u64]) {
    let Action::Compute(compute) = action else {
        return;
    };
    let (stage, micro_batch) = (compute.stage, compute.micro_batch);
    let key = (stage, micro_batch);
    let last = schedule.stages() - 1;
    let mut take = |text: String| {
        let Action::Send(message) = text.parse().unwrap() else {
            panic!("{text} is no message");
        };
        rank.values.remove(&message).unwrap()
    };
    let output = match compute.pass {
        Pass::Forward => {
            let input = match stage {
                0 => sample(micro_batch),
                _ => take(format!("{}SEND_F{micro_batch}", stage - 1)),
            };
            assert_eq!(rank.activations.insert(key, input), None);
            rank.activations_max = rank.activations_max.max(rank.activations.len());
            (stage < last).then(|| ("SEND_F", parameter(stage).wrapping_mul(input)))
        }
        Pass::Backward | Pass::InputGradient => {
            let gradient =
                if stage == last { 1 } else { take(format!("{}SEND_B{micro_batch}", stage + 1)) };
            assert!(rank.activations.contains_key(&key));
            rank.queued.insert(key, gradient);
            (stage > 0).then(|| ("SEND_B", parameter(stage).wrapping_mul(gradient)))
        }
        Pass::WeightGradient => None,
    };
    if let Some((word, value)) = output {
        let Action::Send(message) = format!("{stage}{word}{micro_batch}").parse().unwrap() else {
            panic!("{word} is a send");
        };
        rank.values.insert(message, value);
    }
    if matches!(compute.pass, Pass::Backward | Pass::WeightGradient) {
        let product =
            rank.activations.remove(&key).unwrap().wrapping_mul(rank.queued.remove(&key).unwrap());
        gradients[stage as usize] = gradients[stage as usize].wrapping_add(product);
    }
}

/// The gradients of all stages, by the product rule.
pub(crate) fn expected(schedule: &Schedule) -> Vec<u64> {
    let product = |stages: std::ops::Range<u32>| stages.map(parameter).fold(1, u64::wrapping_mul);
    let samples = (0..schedule.micro_batches()).map(sample).fold(0, u64::wrapping_add);
    let stages = schedule.stages();
    let gradient =
        |stage| samples.wrapping_mul(product(0..stage)).wrapping_mul(product(stage + 1..stages));
    (0..stages).map(gradient).collect()
}

fn parameter(stage: u32) -> u64 {
    2 * u64::from(stage) + 3
}

fn sample(micro_batch: u32) -> u64 {
    // Powers, so that no sum of some is a sum of others.
    7_u64.wrapping_pow(micro_batch + 1)
}
