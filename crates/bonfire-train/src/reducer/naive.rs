//! Averages gradients in the simplest way: after the backward pass, one parameter after the other.
//!
//! It is slow, and the reference for the reducer.

use std::sync::Arc;

use bonfire_collective::{CollectiveError, ReduceOp};

use crate::TrainError;
use crate::compression::{GradientCompression, cast};
use crate::loss::weights::{MicroBatches, Normalizer};
use crate::parameters::ParameterTable;
use crate::reducer::harvest::{Gradient, GradientSink, Site};
use crate::reducer::timing::Stopwatch;
use crate::values::{Entering, Travel, Values};
use crate::world::timeouts::WarmUp;
use burn::tensor::TensorData;

/// The sums of a step's gradients, then their averages.
#[derive(Debug)]
pub(crate) struct Naive {
    group: WarmUp,
    table: Arc<ParameterTable>,
    compression: GradientCompression,
    sums: Vec<Option<Values>>,
    pub(crate) entering: Entering,
}

impl Naive {
    pub(crate) fn new(
        group: WarmUp,
        table: Arc<ParameterTable>,
        compression: GradientCompression,
    ) -> Self {
        Self {
            compression,
            sums: table.extents().iter().map(|_| None).collect(),
            group,
            table,
            entering: Entering::Plain,
        }
    }

    pub(crate) fn average_all(
        &mut self,
        mut normalizer: Normalizer,
        micro_batches: MicroBatches,
        watch: &mut Stopwatch,
    ) -> Result<(), TrainError> {
        let factor = watch.time(|| normalizer.factor())?;
        let comparable = micro_batches.comparable();
        let mut bounds = [comparable, -comparable];
        watch.time(|| self.group.all_reduce(&mut bounds, ReduceOp::Max))?;
        let [most, least] = [bounds[0], -bounds[1]];
        if most != least {
            return Err(TrainError::UnequalAccumulation { least, most });
        }
        for (index, extent) in self.table.extents().into_iter().enumerate() {
            let sum = self.sums[index].take();
            let mut present = [u8::from(sum.is_some())];
            watch.time(|| self.group.all_reduce(&mut present, ReduceOp::Max))?;
            if present[0] == 0 {
                continue;
            }
            let mut sum = sum.unwrap_or_else(|| Values::zeros(extent.dtype, extent.elems));
            if factor != 1.0 {
                sum.scale(factor);
            }
            self.sums[index] = Some(watch.time(|| self.average_one(sum))?);
        }
        Ok(())
    }

    fn average_one(&self, mut sum: Values) -> Result<Values, CollectiveError> {
        let (ranks, len) = (self.group.world_size().get(), sum.len());
        match self.compression.sixteen_bits(sum.dtype()) {
            Some(narrow) if ranks > 1 => {
                sum.scale(1.0 / f64::from(ranks));
                let mut share = Values::zeros(narrow, sum.len());
                cast(&sum, &mut share);
                let average = share
                    .start(&self.group, len, Travel::AllReduce(ReduceOp::Sum))
                    .wait()?;
                cast(&average, &mut sum);
                Ok(sum)
            }
            _ => sum
                .start(&self.group, len, Travel::AllReduce(ReduceOp::Mean))
                .wait(),
        }
    }

    /// The average of a parameter's gradient as the content of a tensor of this shape, if any rank had one.
    pub(crate) fn average(&mut self, parameter: usize, shape: &[usize]) -> Option<TensorData> {
        let values = Arc::new(self.sums[parameter].take()?);
        Some(values.view(0..values.len(), shape))
    }

    pub(crate) fn end(&mut self) {
        self.sums.fill_with(|| None);
        self.group.end_step();
    }
}

impl GradientSink for Naive {
    fn site(&self) -> Site {
        Site::Host
    }

    fn wants(&self, _parameter: usize) -> bool {
        true
    }

    fn take(&mut self, parameter: usize, gradient: Option<Gradient<'_>>) -> Result<(), TrainError> {
        let gradient = match gradient {
            Some(Gradient::Host(gradient)) => gradient,
            Some(other) => unreachable!("gradients are wanted in host memory: {other:?}"),
            None => return Ok(()),
        };
        let whole = 0..gradient.len();
        match &mut self.sums[parameter] {
            Some(sum) => sum.add(whole, gradient, self.entering),
            empty => empty
                .insert(Values::zeros(gradient.dtype(), gradient.len()))
                .set(whole, gradient, self.entering),
        }
        Ok(())
    }
}
