//! The context of a stage's forward pass.

use std::any::Any;

use bonfire_plan::pipeline::Compute;
use burn::tensor::{Device, Tensor, TensorData};

use super::error::PipelineError;
use super::output::{AnyRank, Layout};
use super::weights::WeightGradients;

/// The inputs and the position of a stage's forward pass, for one micro-batch.
pub struct Pass<'a, B> {
    pub(super) compute: Compute,
    pub(super) stages: u32,
    pub(super) micro_batch: &'a B,
    pub(super) device: &'a Device,
    pub(super) inputs: Vec<TensorData>,
    /// The inputs that were taken, as leaves of this stage's graph.
    pub(super) leaves: Vec<Box<dyn AnyRank>>,
    /// The tied parameter, on the last stage.
    pub(super) tied: Option<&'a dyn Any>,
    /// Its uses, as leaves of the last stage's graph.
    pub(super) tied_leaves: Vec<Box<dyn AnyRank>>,
    pub(super) weights: WeightGradients,
}

impl<B> Pass<'_, B> {
    /// Returns the stage, counted from 0 in the order of the layers.
    pub fn stage(&self) -> u32 {
        self.compute.stage
    }

    /// Returns true for the first stage, whose input is the micro-batch.
    pub fn is_first(&self) -> bool {
        self.stage() == 0
    }

    /// Returns true for the last stage, which returns the loss.
    pub fn is_last(&self) -> bool {
        self.stage() + 1 == self.stages
    }

    /// Returns the micro-batch, of which the first stage needs the input and the last the target.
    pub fn micro_batch(&self) -> &B {
        self.micro_batch
    }

    /// Returns the number of the micro-batch, counted from 0.
    pub fn micro_batch_number(&self) -> u32 {
        self.compute.micro_batch
    }

    /// Takes the next output tensor of the previous stage, in the order of its [`Output`](crate::Output).
    ///
    /// # Errors
    /// [`PipelineError::OtherInput`] if it is missing, or has another number of dimensions.
    pub fn input<const D: usize>(&mut self) -> Result<Tensor<D>, PipelineError> {
        let input = self.leaves.len();
        let data = self.inputs.get(input).filter(|data| data.shape().len() == D);
        let Some(data) = data else {
            return Err(PipelineError::OtherInput {
                stage: self.stage(),
                input,
                rank: D,
                given: Layout::of(&self.inputs).to_string(),
            });
        };
        let options = (self.device, data.dtype());
        let leaf = self.leaf(Tensor::<D>::from_data(data.clone(), options));
        self.leaves.push(Box::new(leaf.clone()));
        Ok(leaf)
    }

    /// Returns the parameter of the first stage that the last one uses, too: in the last stage alone, of a pipeline
    /// [`with_tied`](crate::Pipeline::with_tied).
    ///
    /// # Errors
    /// [`PipelineError::NotTied`] elsewhere, or for another number of dimensions.
    pub fn tied<const D: usize>(&mut self) -> Result<Tensor<D>, PipelineError> {
        let last = self.tied.filter(|_| self.is_last());
        let Some(values) = last.and_then(|tied| tied.downcast_ref::<Tensor<D>>()) else {
            let (stage, rank) = (self.stage(), D);
            return Err(PipelineError::NotTied { stage, rank });
        };
        let leaf = self.leaf(values.clone());
        self.tied_leaves.push(Box::new(leaf.clone()));
        Ok(leaf)
    }

    /// Values as a leaf of this pass's graph, or without a graph where it has none.
    fn leaf<const D: usize>(&self, values: Tensor<D>) -> Tensor<D> {
        if self.device.is_autodiff() {
            values.detach().require_grad()
        } else {
            values.without_autodiff()
        }
    }

    /// Returns the store of weight gradients that layers leave for later.
    pub fn weights(&self) -> &WeightGradients {
        &self.weights
    }
}
