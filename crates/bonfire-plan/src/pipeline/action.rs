//! The words of a pipeline: what a rank does, and how it is written.
//!
//! The text of an action is that of PyTorch's `torch.distributed.pipelining`: the stage, what is done, and
//! the micro-batch, as in `2F0`, `1SEND_B3` and `0REDUCE_GRAD`.

use std::fmt;
use std::str::FromStr;

/// A pass over the layers of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// `F`: from the stage's input to its output.
    Forward,
    /// `B`: the whole backward pass, an input gradient and a weight gradient in one.
    Backward,
    /// `I`: the gradient of the stage's input, which the stage before waits for.
    InputGradient,
    /// `W`: the gradient of the stage's parameters, which nobody waits for.
    WeightGradient,
}

impl Pass {
    /// Whether it ends the backward pass of the stage, and frees its activations.
    pub(super) fn adds_to_gradients(self) -> bool {
        matches!(self, Self::Backward | Self::WeightGradient)
    }
}

/// The seconds of the passes over some layers, for one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassTimes {
    /// Seconds of a forward pass, from input to output.
    pub forward_s: f64,
    /// Seconds of an input gradient, without the weight gradient.
    pub input_gradient_s: f64,
    /// Of a weight gradient. A whole backward pass takes both.
    pub weight_gradient_s: f64,
}

impl PassTimes {
    /// The seconds of a pass.
    pub fn of(&self, pass: Pass) -> f64 {
        match pass {
            Pass::Forward => self.forward_s,
            Pass::Backward => self.input_gradient_s + self.weight_gradient_s,
            Pass::InputGradient => self.input_gradient_s,
            Pass::WeightGradient => self.weight_gradient_s,
        }
    }
}

/// A pass over one stage for one micro-batch. Both are counted from 0, stages in the order of the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Compute {
    /// Forward, or which part of the backward pass.
    pub pass: Pass,
    /// The stage that is computed; stage 0 has the first layers.
    pub stage: u32,
    /// The part of the batch, counted from 0 in each step.
    pub micro_batch: u32,
}

/// What a message carries between stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Payload {
    /// The output of a stage, for the next one.
    Activation,
    /// The gradient of a stage's input, for the stage before.
    Gradient,
}

/// A message between two stages that follow one another. Sender and receiver name it alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// An activation, for the next stage, or a gradient, for the one before.
    pub payload: Payload,
    /// The stage in front of the boundary that it crosses; the other is the next one.
    pub boundary: u32,
    /// The micro-batch whose activation or gradient it carries, from 0.
    pub micro_batch: u32,
}

impl Message {
    /// The stage that sends it.
    pub fn source(self) -> u32 {
        let behind = u32::from(self.payload == Payload::Gradient);
        self.boundary.saturating_add(behind)
    }

    /// The stage that receives it.
    pub fn target(self) -> u32 {
        let behind = u32::from(self.payload == Payload::Activation);
        self.boundary.saturating_add(behind)
    }
}

/// One entry of a rank's list. Stages are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// `F`, `B`, `I` or `W`: compute.
    Compute(Compute),
    /// `SEND_F` or `SEND_B`: send what a pass made.
    Send(Message),
    /// `RECV_F` or `RECV_B`: receive what a pass needs.
    Receive(Message),
    /// `REDUCE_GRAD`: sum the gradients of a stage's parameters over its data-parallel ranks.
    ReduceGradients {
        /// The stage whose gradients all micro-batches have added to.
        stage: u32,
    },
    /// `UNSHARD`: gather the sharded parameters of a stage.
    Gather {
        /// The stage whose parameters are complete on this rank afterwards.
        stage: u32,
    },
    /// `RESHARD`: free the gathered parameters of a stage.
    Release {
        /// The stage of whose parameters the rank keeps only its shard.
        stage: u32,
    },
}

impl Action {
    /// The stage of the rank that does it.
    pub fn stage(self) -> u32 {
        match self {
            Self::Compute(compute) => compute.stage,
            Self::Send(message) => message.source(),
            Self::Receive(message) => message.target(),
            Self::ReduceGradients { stage } | Self::Gather { stage } | Self::Release { stage } => {
                stage
            }
        }
    }

    /// The micro-batch that it belongs to, if to one.
    pub fn micro_batch(self) -> Option<u32> {
        match self {
            Self::Compute(compute) => Some(compute.micro_batch),
            Self::Send(message) | Self::Receive(message) => Some(message.micro_batch),
            Self::ReduceGradients { .. } | Self::Gather { .. } | Self::Release { .. } => None,
        }
    }

    pub(super) fn compute(pass: Pass, stage: u32, micro_batch: u32) -> Self {
        Self::Compute(Compute { pass, stage, micro_batch })
    }

    fn word(self) -> &'static str {
        let is_activation = |message: Message| message.payload == Payload::Activation;
        match self {
            Self::Compute(compute) => match compute.pass {
                Pass::Forward => "F",
                Pass::Backward => "B",
                Pass::InputGradient => "I",
                Pass::WeightGradient => "W",
            },
            Self::Send(message) if is_activation(message) => "SEND_F",
            Self::Send(_) => "SEND_B",
            Self::Receive(message) if is_activation(message) => "RECV_F",
            Self::Receive(_) => "RECV_B",
            Self::ReduceGradients { .. } => "REDUCE_GRAD",
            Self::Gather { .. } => "UNSHARD",
            Self::Release { .. } => "RESHARD",
        }
    }

    /// All that a rank can do with a stage, for a micro-batch if it is for one.
    fn with_stage(stage: u32, micro_batch: u32) -> Vec<Self> {
        let mut all =
            vec![Self::ReduceGradients { stage }, Self::Gather { stage }, Self::Release { stage }];
        use Pass::{Backward, Forward, InputGradient, WeightGradient};
        let passes = [Forward, Backward, InputGradient, WeightGradient];
        all.extend(passes.map(|pass| Self::compute(pass, stage, micro_batch)));
        for boundary in stage.checked_sub(1).into_iter().chain([stage]) {
            for payload in [Payload::Activation, Payload::Gradient] {
                let message = Message { payload, boundary, micro_batch };
                all.extend([Self::Send(message), Self::Receive(message)]);
            }
        }
        all.retain(|action| action.stage() == stage);
        all
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micro_batch = self.micro_batch().map(|number| number.to_string());
        let micro_batch = micro_batch.unwrap_or_default();
        write!(formatter, "{}{}{micro_batch}", self.stage(), self.word())
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Action::Compute(*self), formatter)
    }
}

/// A text that is not an action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an action; write the stage, then F, B, I, W, SEND_F, RECV_F, SEND_B or RECV_B with a \
     micro-batch, or REDUCE_GRAD, UNSHARD or RESHARD without one, such as 2F0"
)]
pub struct UnknownAction {
    /// The text that was given.
    pub text: String,
}

impl FromStr for Action {
    type Err = UnknownAction;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let is_digit = |letter: char| letter.is_ascii_digit();
            let (stage, rest) = text.split_at(text.find(|letter| !is_digit(letter))?);
            let (word, micro_batch) = rest.split_at(rest.find(is_digit).unwrap_or(rest.len()));
            let micro_batch = match micro_batch {
                "" => None,
                digits => Some(digits.parse().ok()?),
            };
            let all = Self::with_stage(stage.parse().ok()?, micro_batch.unwrap_or(0));
            all.into_iter().find(|action| {
                action.micro_batch().is_some() == micro_batch.is_some() && action.word() == word
            })
        };
        parse().ok_or_else(|| UnknownAction { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_read_as_they_are_written() {
        let texts = ["2F0", "0B13", "1I2", "1W2", "0SEND_F1", "1RECV_F1", "1SEND_B1", "0RECV_B1"];
        for text in texts.into_iter().chain(["3REDUCE_GRAD", "0UNSHARD", "10RESHARD"]) {
            assert_eq!(text.parse::<Action>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn sender_and_receiver_name_a_message_alike() {
        for (send, receive) in [("1SEND_F4", "2RECV_F4"), ("2SEND_B4", "1RECV_B4")] {
            let (Ok(Action::Send(sent)), Ok(Action::Receive(received))) =
                (send.parse(), receive.parse())
            else {
                panic!("{send} and {receive} are messages");
            };
            assert_eq!(sent, received);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "F0",
            "0F",
            "2",
            "2X0",
            "0SEND_B1",
            "0RECV_F1",
            "0F-1",
            "0F0 ",
            "0UNSHARD3",
            "0f0",
            "99999999999F0",
            "0WAIT_SEND_F1",
        ] {
            assert!(text.parse::<Action>().is_err(), "{text}");
        }
    }
}
