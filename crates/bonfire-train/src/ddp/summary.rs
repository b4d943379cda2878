//! Summaries of the buckets of gradients.

use bonfire_plan::DType;
use bonfire_plan::buckets::Assignment;
use burn::module::Module;

use super::Ddp;

/// Gradients that are sent together in one message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketSummary {
    /// The data type of the gradients.
    pub dtype: DType,
    /// The parameters, in the order in which their gradients are expected.
    pub parameters: Vec<String>,
    /// The size of the gradients in bytes.
    pub bytes: usize,
}

impl<M: Module> Ddp<M> {
    /// Returns the elements of trainable parameters that this rank keeps between passes: its rows where
    /// [`DdpConfig::placement`](crate::DdpConfig::placement) shards parameters, else all.
    pub fn parameters_held(&self) -> usize {
        let held = |parameter: usize| match self.gatherer {
            Some(_) => {
                let own = self.shards.own_piece(parameter);
                own.map_or(0, |piece| self.shards.pieces(parameter)[piece].len())
            }
            None => self.table.get(parameter).shape.iter().product(),
        };
        (0..self.table.len()).map(held).sum()
    }

    /// Returns the buckets in which gradients are sent.
    pub fn buckets(&self) -> Vec<BucketSummary> {
        let summary = |bucket: &Assignment| BucketSummary {
            dtype: bucket.dtype,
            bytes: bucket.parameters.iter().map(|&p| self.table.get(p).extent.bytes()).sum(),
            parameters: bucket.parameters.iter().map(|&p| self.table.get(p).name.clone()).collect(),
        };
        self.reducer.lock().assignments().iter().map(summary).collect()
    }
}
