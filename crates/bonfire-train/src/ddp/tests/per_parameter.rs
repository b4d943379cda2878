//! The reference for buckets: gradients are averaged after the backward pass, one parameter after the other.

use std::ops::{Deref, DerefMut};

use bonfire_collective::ReduceOp;

use super::*;
use crate::compression::cast;
use crate::reducer::collect::averaged;
use crate::reducer::hooks::Listener;
use crate::reducer::timing::StepTiming;
use crate::values::{BucketBuffer, CollectiveOp, HostSlice, Scale};

/// The way in which the ranks of a test average gradients.
#[derive(Clone)]
pub(super) struct Averaging {
    config: DdpConfig,
    is_per_parameter: bool,
}

impl Averaging {
    pub(super) fn per_parameter(config: DdpConfig) -> Self {
        Self { config, is_per_parameter: true }
    }
}

impl From<DdpConfig> for Averaging {
    fn from(config: DdpConfig) -> Self {
        Self { config, is_per_parameter: false }
    }
}

/// A [`Ddp`] whose gradients are averaged as [`Averaging`] says.
pub(super) struct Averager<M> {
    ddp: Ddp<M>,
    /// The sums of micro-batches by parameter; `None` where the model has buckets.
    sums: Option<Vec<Option<BucketBuffer>>>,
}

impl<M> Deref for Averager<M> {
    type Target = Ddp<M>;

    fn deref(&self) -> &Ddp<M> {
        &self.ddp
    }
}

impl<M> DerefMut for Averager<M> {
    fn deref_mut(&mut self) -> &mut Ddp<M> {
        &mut self.ddp
    }
}

impl<M: Module> Averager<M> {
    pub(super) fn new(model: M, world: &World, averaging: impl Into<Averaging>) -> Self {
        let Averaging { config, is_per_parameter } = averaging.into();
        let ddp = Ddp::with_config(model, world, config).unwrap();
        let sums = is_per_parameter.then(|| (0..ddp.table.len()).map(|_| None).collect());
        Self { ddp, sums }
    }

    pub(super) fn into_module(self) -> M {
        self.ddp.into_module()
    }

    pub(super) fn no_sync<L: IntoLoss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<MicroStep<L::Output>, TrainError> {
        if self.sums.is_none() {
            return self.ddp.no_sync(forward);
        }
        self.pass(forward)
    }

    pub(super) fn backward<L: IntoLoss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<Step<L::Output>, TrainError> {
        if self.sums.is_none() {
            return self.ddp.backward(forward);
        }
        let MicroStep { loss, output } = self.pass(forward)?;
        self.ddp.norm_groups.end_step()?;
        let mut averages = self.average()?;
        let average = |index: usize, shape: &[usize]| {
            let values = Arc::new(averages[index].take()?);
            Some(values.view(0..values.len(), shape))
        };
        let gradients = averaged(self.ddp.module(), self.ddp.no_gradients(), average);
        let presence = std::mem::take(&mut self.ddp.micro_batches).presence();
        self.ddp.group.end_step();
        self.ddp.agree_on_buffers(presence)?;
        Ok(Step { gradients, loss, output, timing: StepTiming::default() })
    }

    /// Adds the gradients of a batch to the sums.
    fn pass<L: IntoLoss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<MicroStep<L::Output>, TrainError> {
        let (start, step) = self.ddp.pass(forward, &Listener::Nobody)?;
        let scale = self.ddp.micro_batches.scale(start.weight);
        if let Some(gradients) = self.ddp.backward_pass(start)? {
            let mut adder = Adder {
                table: &self.ddp.table,
                gradients,
                scale,
                sums: self.sums.as_mut().expect("there are no buckets"),
            };
            self.ddp.module().visit(&mut adder);
        }
        Ok(step)
    }

    /// The averages of all parameters, in their order.
    fn average(&mut self) -> Result<Vec<Option<BucketBuffer>>, TrainError> {
        let Ddp { group, table, config, micro_batches, .. } = &self.ddp;
        let factor = micro_batches.normalizer(group).factor()?;
        let sums = self.sums.iter_mut().flatten();
        sums.zip(table.extents())
            .map(|(sum, extent)| -> Result<Option<BucketBuffer>, TrainError> {
                let sum = sum.take();
                let mut present = [u8::from(sum.is_some())];
                group.all_reduce(&mut present, ReduceOp::Max)?;
                if present == [0] {
                    return Ok(None);
                }
                let mut sum =
                    sum.unwrap_or_else(|| BucketBuffer::zeros(extent.dtype, extent.elems));
                if factor != 1.0 {
                    sum.scale(factor);
                }
                let (ranks, len) = (group.world_size().get(), sum.len());
                match config.compression.sixteen_bits(extent.dtype) {
                    Some(narrow) if ranks > 1 => {
                        sum.scale(1.0 / f64::from(ranks));
                        let mut share = BucketBuffer::zeros(narrow, len);
                        cast(&sum, &mut share);
                        share.run(group, len, CollectiveOp::AllReduce(ReduceOp::Sum))?;
                        cast(&share, &mut sum);
                    }
                    _ => sum.run(group, len, CollectiveOp::AllReduce(ReduceOp::Mean))?,
                }
                Ok(Some(sum))
            })
            .collect()
    }
}

struct Adder<'a> {
    table: &'a ParameterTable,
    gradients: burn::tensor::Gradients,
    scale: Scale,
    sums: &'a mut [Option<BucketBuffer>],
}

impl ModuleVisitor for Adder<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.table.index_of(param.id);
        let gradient = param.val().grad(&self.gradients);
        let (Some(index), Some(gradient)) = (index, gradient) else {
            return;
        };
        let gradient = gradient.into_data();
        let gradient = HostSlice::of(&gradient).expect("gradients have a type of parameters");
        let whole = 0..gradient.len();
        match &mut self.sums[index] {
            Some(sum) => sum.add(whole, gradient, self.scale),
            empty => empty
                .insert(BucketBuffer::zeros(gradient.dtype(), gradient.len()))
                .set(whole, gradient, self.scale),
        }
    }
}
