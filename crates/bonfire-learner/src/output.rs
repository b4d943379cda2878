//! What steps return, on its way to the metrics of rank 0.

mod parcel;

use bonfire_collective::Rank;
use burn::tensor::{Device, Tensor};
use burn_train::{
    ClassificationOutput, ItemLazy, MultiLabelClassificationOutput, RegressionOutput,
    SequenceOutput,
};

use crate::error::LearnerError;
use bonfire_train::World;
pub use parcel::Parcel;

/// What a training or validation step returns, if rank 0 is to see it from all ranks.
///
/// Burn's metrics take one batch after the other, so rank 0 gives them the batches of all ranks: the
/// result is that of one process that saw all of them, whatever the metric does with them. Burn's own
/// outputs have it; implement it for outputs of your own.
pub trait StepOutput: ItemLazy + 'static {
    /// Puts its tensors in a parcel.
    ///
    /// # Errors
    /// [`LearnerError::Output`] if one cannot be read from its device.
    fn pack(self, parcel: &mut Parcel) -> Result<(), LearnerError>;

    /// The same, counting for `samples` samples. Burn's loss metric weights a loss by its number of
    /// elements; [`counted`] makes a mean loss of one element into that.
    #[must_use]
    fn counting(self, samples: usize) -> Self;

    /// Takes them out in the same order, onto `device`.
    ///
    /// # Errors
    /// [`LearnerError::Output`] if the parcel has other tensors.
    fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, LearnerError>;
}

/// A loss that is the mean over `samples` samples as one element for each, so that it counts as many
/// times; a loss of several elements as it is.
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
            fn pack(self, parcel: &mut Parcel) -> Result<(), LearnerError> {
                $(parcel.$put(self.$field)?;)*
                Ok(())
            }

            fn counting(self, samples: usize) -> Self {
                Self {
                    loss: counted(self.loss, samples),
                    ..self
                }
            }

            fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, LearnerError> {
                Ok(Self { $($field: parcel.$take(device)?),* })
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
    fn pack(self, parcel: &mut Parcel) -> Result<(), LearnerError> {
        parcel.put_float(self.loss)?;
        parcel.put_float(self.logits)?;
        parcel.put_int(self.targets)?;
        match self.predictions {
            Some(predictions) => parcel.put_int(predictions),
            None => Ok(()),
        }
    }

    fn counting(self, samples: usize) -> Self {
        Self {
            loss: counted(self.loss, samples),
            ..self
        }
    }

    fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, LearnerError> {
        let (loss, logits) = (parcel.take_float(device)?, parcel.take_float(device)?);
        let targets = parcel.take_int(device)?;
        let predictions = match parcel.is_empty() {
            true => None,
            false => Some(parcel.take_int(device)?),
        };
        Ok(Self::new(loss, logits, predictions, targets))
    }
}

/// The outputs of all ranks in rank order on rank 0, none elsewhere. Every rank must call it with the
/// numbers of samples of all ranks; one without samples has no output.
#[track_caller]
pub(crate) fn gathered<T: StepOutput>(
    world: &World,
    output: Option<T>,
    samples: &[usize],
) -> Result<Vec<T>, LearnerError> {
    let (own, block) = match output {
        Some(output) if world.is_main() => (Some(output), Vec::new()),
        Some(output) => {
            let mut parcel = Parcel::default();
            output.pack(&mut parcel)?;
            (None, parcel.into_bytes()?)
        }
        None => (None, Vec::new()),
    };
    let Some(blocks) = world.group().gather_v(&block, Rank::new(0))? else {
        return Ok(Vec::new());
    };
    let mut outputs = Vec::with_capacity(samples.len());
    outputs.extend(own.map(|output| output.counting(samples[0])));
    for (block, samples) in blocks.iter().zip(samples).skip(1) {
        if *samples > 0 {
            let output = T::unpack(&mut Parcel::from_bytes(block)?, &world.device())?;
            outputs.push(output.counting(*samples));
        }
    }
    Ok(outputs)
}
