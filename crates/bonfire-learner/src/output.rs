//! Outputs of steps, sent to the metrics of rank 0.

mod tensor_message;

use bonfire_collective::Rank;
use burn::tensor::{Device, Tensor};
use burn_train::{
    ClassificationOutput, ItemLazy, MultiLabelClassificationOutput, RegressionOutput,
    SequenceOutput,
};

use crate::error::LearnerError;
use bonfire_train::World;
pub use tensor_message::TensorMessage;

/// The output of a training or validation step that can be sent to rank 0. Burn's own outputs implement it; implement
/// it for outputs of your own.
pub trait StepOutput: ItemLazy + 'static {
    /// Puts its tensors in a message.
    ///
    /// # Errors
    /// [`LearnerError::Output`] if one cannot be read from its device.
    fn pack(self, message: &mut TensorMessage) -> Result<(), LearnerError>;

    /// Returns the loss of its batch.
    fn loss(&self) -> Tensor<1>;

    /// Replaces the loss and keeps all else.
    #[must_use]
    fn with_loss(self, loss: Tensor<1>) -> Self;

    /// Takes its tensors out in the same order, onto `device`.
    ///
    /// # Errors
    /// [`LearnerError::Output`] if the message has other tensors.
    fn unpack(message: &mut TensorMessage, device: &Device) -> Result<Self, LearnerError>;
}

/// Repeats a loss that is the mean over `samples` samples as one element for each, so that it has their weight.
/// Returns a loss of several elements as it is.
#[must_use]
pub fn counted(loss: Tensor<1>, samples: usize) -> Tensor<1> {
    let loss = loss.without_autodiff();
    match loss.dims() {
        [1] => loss.expand([samples]),
        _ => loss,
    }
}

macro_rules! step_output {
    ($($output:ty { $($field:ident $put:ident $take:ident),* })*) => {$(
        impl StepOutput for $output {
            fn pack(self, message: &mut TensorMessage) -> Result<(), LearnerError> {
                $(message.$put(self.$field)?;)*
                Ok(())
            }

            fn loss(&self) -> Tensor<1> {
                self.loss.clone()
            }

            fn with_loss(self, loss: Tensor<1>) -> Self {
                Self { loss, ..self }
            }

            fn unpack(message: &mut TensorMessage, device: &Device) -> Result<Self, LearnerError> {
                Ok(Self { $($field: message.$take(device)?),* })
            }
        }
    )*};
}

step_output! {
    ClassificationOutput { loss put_float take_float, output put_float take_float, targets put_int take_int }
    MultiLabelClassificationOutput { loss put_float take_float, output put_float take_float, targets put_int take_int }
    RegressionOutput { loss put_float take_float, output put_float take_float, targets put_float take_float }
}

impl StepOutput for SequenceOutput {
    fn pack(self, message: &mut TensorMessage) -> Result<(), LearnerError> {
        message.put_float(self.loss)?;
        message.put_float(self.logits)?;
        message.put_int(self.targets)?;
        match self.predictions {
            Some(predictions) => message.put_int(predictions),
            None => Ok(()),
        }
    }

    fn loss(&self) -> Tensor<1> {
        self.loss.clone()
    }

    fn with_loss(self, loss: Tensor<1>) -> Self {
        Self { loss, ..self }
    }

    fn unpack(message: &mut TensorMessage, device: &Device) -> Result<Self, LearnerError> {
        let (loss, logits) = (message.take_float(device)?, message.take_float(device)?);
        let targets = message.take_int(device)?;
        let predictions = if message.is_empty() { None } else { Some(message.take_int(device)?) };
        Ok(Self::new(loss, logits, predictions, targets))
    }
}

/// The outputs of other ranks that the metrics of rank 0 see. The loss is always that of all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outputs {
    /// Losses only. Metrics of anything else see the batches of rank 0 alone.
    #[default]
    Losses,
    /// All outputs of validation, and losses of training: for metrics such as validation accuracy.
    Validation,
    /// All outputs. Burn's metrics take one batch after the other, so rank 0 passes them those of all ranks: any
    /// metric is that of one process that saw all of them. Costs the size of the outputs in every step, read from the
    /// device, sent and written to that of rank 0.
    All,
}

/// The outputs that are sent to rank 0 in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Loss,
    Output,
}

impl Outputs {
    pub(crate) fn of_training(self) -> Sent {
        match self {
            Self::Losses | Self::Validation => Sent::Loss,
            Self::All => Sent::Output,
        }
    }

    pub(crate) fn of_validation(self) -> Sent {
        match self {
            Self::Losses => Sent::Loss,
            Self::Validation | Self::All => Sent::Output,
        }
    }
}

/// The outputs that the metrics see on rank 0, empty elsewhere: the outputs of all ranks in their order, or that of
/// rank 0 with the losses of all. Every rank must call it with the numbers of samples of all ranks; one without
/// samples has no output.
#[track_caller]
pub(crate) fn gathered<T: StepOutput>(
    world: &World,
    sent: Sent,
    output: Option<T>,
    samples: &[usize],
) -> Result<Vec<T>, LearnerError> {
    let mut message = TensorMessage::default();
    let (own, block) = match output {
        Some(output) if world.is_main() => (Some(output), Vec::new()),
        Some(output) => {
            match sent {
                Sent::Loss => message.put_float(output.loss())?,
                Sent::Output => output.pack(&mut message)?,
            }
            (None, message.into_bytes()?)
        }
        None => (None, Vec::new()),
    };
    let Some(blocks) = world.group().gather_v(&block, Rank::new(0))? else {
        return Ok(Vec::new());
    };
    let own = own.map(|output| {
        let loss = counted(output.loss(), samples[0]);
        output.with_loss(loss)
    });
    let device = world.device();
    let others = blocks.iter().zip(samples.iter().copied()).skip(1);
    let others = others.filter(|(_, samples)| *samples > 0);
    if sent == Sent::Loss {
        // Rank 0 has a batch in every step that has any.
        let Some(own) = own else {
            return Ok(Vec::new());
        };
        let mut losses = vec![own.loss()];
        for (block, samples) in others {
            let loss = TensorMessage::from_bytes(block)?.take_float(&device)?;
            losses.push(counted(loss, samples));
        }
        return Ok(vec![own.with_loss(Tensor::cat(losses, 0))]);
    }
    let mut outputs = Vec::with_capacity(samples.len());
    outputs.extend(own);
    for (block, samples) in others {
        let output = T::unpack(&mut TensorMessage::from_bytes(block)?, &device)?;
        let loss = counted(output.loss(), samples);
        outputs.push(output.with_loss(loss));
    }
    Ok(outputs)
}
