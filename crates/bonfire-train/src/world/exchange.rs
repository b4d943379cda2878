//! Messages of layers across ranks, and their replies: no I/O, only data.
//!
//! A layer sends a message of numbers; ranks send each other blocks of f64. An empty block is from a rank that has
//! ended its step and takes part so that the others need not wait for it.

pub(crate) mod group;
pub(crate) mod mapping;
pub(crate) mod moments;

use bonfire_collective::{CollectiveError, Rank};

use crate::error::TrainError;
use crate::error::{NormMismatch, Pass};
use moments::Moments;

/// The kind of a message, as its first number.
const FORWARD: f64 = 1.0;
const BACKWARD: f64 = 2.0;

/// Counts are sent as two numbers, so that f32 holds them exactly up to 2^44.
const COUNT_PART: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    Forward(Moments),
    /// The sums of its gradients and of their products with the normalised input.
    Backward(Vec<f64>),
}

pub(crate) type Reply = Vec<f64>;

/// The head of a message of the forward pass, before the numbers of the channels: its kind, and the number of values
/// of each channel.
pub(crate) fn forward_head(count: usize) -> [f32; 3] {
    let parts = [count / COUNT_PART, count % COUNT_PART];
    [FORWARD as f32, parts[0] as f32, parts[1] as f32]
}

pub(crate) fn backward_head() -> [f32; 1] {
    [BACKWARD as f32]
}

/// The length of the head of a forward pass's reply: one over the number of all values, or 0; and 1, or 0 if there are
/// no values.
pub(crate) const REPLY_HEAD: usize = 2;

impl Message {
    /// # Panics
    /// If no layer made it.
    pub(crate) fn parse(numbers: Vec<f64>) -> Self {
        let (kind, rest) = numbers.split_first().expect("a message has a first number");
        if *kind == BACKWARD {
            return Self::Backward(rest.to_vec());
        }
        assert_eq!(*kind, FORWARD, "messages are of forward or backward passes");
        let (count, rest) = rest.split_at(2);
        let (mean, squares) = rest.split_at(rest.len() / 2);
        Self::Forward(Moments {
            count: count[0] * COUNT_PART as f64 + count[1],
            mean: mean.to_vec(),
            squares: squares.to_vec(),
        })
    }

    pub(crate) fn is_forward(&self) -> bool {
        matches!(self, Self::Forward(_))
    }

    /// This rank's message to the others. In a backward pass a loss counts with its weight; one without weight counts
    /// nothing, even if its gradients are NaN.
    pub(crate) fn block(&self, weight: f64) -> Vec<f64> {
        match self {
            Self::Forward(moments) => {
                let mut block = vec![FORWARD, moments.count];
                block.extend(&moments.mean);
                block.extend(&moments.squares);
                block
            }
            Self::Backward(sums) => {
                let mut block = vec![BACKWARD];
                block.extend(sums.iter().map(|sum| match weight {
                    0.0 => 0.0,
                    weight => sum * weight,
                }));
                block
            }
        }
    }
}

/// The reply to a layer that sent `message`, from the blocks of all ranks in their order.
pub(crate) fn reply_to(
    message: &Message,
    weight: f64,
    blocks: &[Vec<f64>],
) -> Result<Reply, NormMismatch> {
    check(blocks)?;
    let present = blocks.iter().filter(|block| !block.is_empty());
    match message {
        Message::Forward(own) => {
            let mut all = Moments::none(own.mean.len());
            for block in present {
                let (mean, squares) = block[2..].split_at(all.mean.len());
                all.merge(&Moments {
                    count: block[1],
                    mean: mean.to_vec(),
                    squares: squares.to_vec(),
                });
            }
            let seen = all.count > 0.0;
            let inverse = if seen { all.count.recip() } else { 0.0 };
            let mut reply = vec![inverse, f64::from(u8::from(seen))];
            reply.extend(&all.mean);
            reply.extend(all.variance());
            Ok(reply)
        }
        Message::Backward(own) => {
            let mut sums = vec![0.0; own.len()];
            for block in present {
                for (sum, value) in sums.iter_mut().zip(&block[1..]) {
                    *sum += value;
                }
            }
            // Relative to this rank's own loss, with whose weight its gradients enter the mean.
            if weight > 0.0 {
                sums.iter_mut().for_each(|sum| *sum /= weight);
            }
            Ok(sums)
        }
    }
}

fn check(blocks: &[Vec<f64>]) -> Result<(), NormMismatch> {
    let ranks = (0..).map(Rank::new).zip(blocks);
    let mut present = ranks.filter(|(_, block)| !block.is_empty());
    let Some((rank, first)) = present.next() else {
        return Ok(());
    };
    match present.find(|(_, block)| (block[0], block.len()) != (first[0], first.len())) {
        None => Ok(()),
        Some((other_rank, other)) => Err(NormMismatch {
            rank,
            pass: Pass::of(first),
            other_rank,
            other_pass: Pass::of(other),
        }),
    }
}

impl Pass {
    fn of(block: &[f64]) -> Self {
        let (name, head) =
            if block[0] == FORWARD { ("forward pass", 2) } else { ("backward pass", 1) };
        Self { name, features: (block.len() - head) / 2 }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Mismatch(#[from] NormMismatch),
    #[error("cannot read the statistics of a batch from its device: {0}")]
    Unreadable(String),
}

impl From<Failure> for TrainError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Collective(error) => error.into(),
            Failure::Mismatch(mismatch) => mismatch.into(),
            Failure::Unreadable(cause) => {
                Self::UnreadableTensor { what: "the statistics of a batch".to_owned(), cause }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(count: f64, mean: f64, squares: f64) -> Message {
        Message::Forward(Moments { count, mean: vec![mean], squares: vec![squares] })
    }

    #[test]
    fn a_message_is_read_as_it_was_sent_with_counts_that_f32_could_not_hold() {
        let count = (1 << 30) + 1;
        let mut numbers: Vec<f64> = forward_head(count).map(f64::from).to_vec();
        numbers.extend([0.5, 2.0]);
        assert_eq!(Message::parse(numbers), moments(count as f64, 0.5, 2.0));
        let numbers = [f64::from(backward_head()[0]), 3.0, 4.0];
        assert_eq!(Message::parse(numbers.to_vec()), Message::Backward(vec![3.0, 4.0]));
    }

    #[test]
    fn ranks_that_have_ended_and_ranks_without_values_add_nothing() {
        let own = moments(2.0, 1.0, 2.0);
        let blocks = [own.block(1.0), Vec::new(), moments(0.0, 9.0, 9.0).block(1.0)];
        let reply = reply_to(&own, 1.0, &blocks).unwrap();
        assert_eq!(reply, [0.5, 1.0, 1.0, 1.0]);
        let nobody = moments(0.0, 0.0, 0.0);
        let blocks = [nobody.block(1.0), Vec::new()];
        assert_eq!(reply_to(&nobody, 1.0, &blocks).unwrap(), [0.0; 4]);
    }

    #[test]
    fn sums_are_weighted_and_relative_to_the_own_weight() {
        let own = Message::Backward(vec![1.0, 2.0]);
        let other = Message::Backward(vec![10.0, 20.0]);
        let broken = Message::Backward(vec![f64::NAN, f64::NAN]);
        let blocks = [own.block(2.0), other.block(1.0), broken.block(0.0)];
        assert_eq!(reply_to(&own, 2.0, &blocks).unwrap(), [6.0, 12.0]);
        assert_eq!(reply_to(&broken, 0.0, &blocks).unwrap(), [12.0, 24.0]);
    }

    #[test]
    fn ranks_at_different_layers_are_named() {
        let forward = moments(1.0, 0.0, 0.0);
        let backward = Message::Backward(vec![0.0; 6]);
        let blocks = [Vec::new(), forward.block(1.0), backward.block(1.0)];
        let mismatch = reply_to(&forward, 1.0, &blocks).unwrap_err();
        assert!(mismatch.to_string().starts_with(
            "rank 1 is in the forward pass of a layer of 1 features, but rank 2 in the backward pass \
             of a layer of 3 features; "
        ));
    }
}
