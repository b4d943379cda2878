//! Changes of the model that are not steps of an optimizer.

use bonfire_collective::ReduceOp;
use bonfire_plan::ShardUnit;
use burn::Tensor;
use burn::module::{Module, ModuleMapper, Param};

use super::{Ddp, MODULE_PRESENT, Setup};
use crate::TrainError;
use crate::parameters::ParameterTable;
use crate::parameters::buffers::Buffers;
use crate::parameters::replicate::Where;
use crate::reducer::hooks::Anchors;
use crate::world::exchange::mapping::{Meaning, meant};

impl<M: Module> Ddp<M> {
    /// Changes the model between two steps: clips its parameters, copies others into it, freezes or unfreezes some, or
    /// replaces a layer. Every rank must call it, and make the same changes: values are not compared and stay as
    /// `change` sets them.
    ///
    /// Where it has other parameters than before, or other trainable ones, the ranks compare their models and rank 0's
    /// values go to all of them, as in [`with_config`](Self::with_config); gradients are assigned to new buckets.
    /// Otherwise it costs a small message.
    ///
    /// ```no_run
    /// # use bonfire_train::{Ddp, TrainError};
    /// # use burn::{Tensor, module::{Module, ModuleMapper, Param}};
    /// /// Keeps every parameter near zero, as the critic of a Wasserstein GAN needs it.
    /// struct Near(f32);
    ///
    /// impl ModuleMapper for Near {
    ///     fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
    ///         param.map(|tensor| tensor.clamp(-self.0, self.0))
    ///     }
    /// }
    ///
    /// # fn clipped<M: Module>(critic: &mut Ddp<M>) -> Result<(), TrainError> {
    /// critic.map_module(|model| model.map(&mut Near(0.01)))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`with_config`](Self::with_config); [`TrainError::UnfinishedStep`] if other parameters are to be
    /// trained between [`no_sync`](Self::no_sync) and [`backward`](Self::backward);
    /// [`TrainError::UnsupportedPlacement`] if they are to be trained after a step where ranks have
    /// [whole parameters](crate::Placement::of_whole_parameters). The group has ended then.
    ///
    /// # Panics
    /// If `change` panics, after reporting it to the other ranks.
    #[track_caller]
    pub fn map_module(&mut self, change: impl FnOnce(M) -> M) -> Result<(), TrainError> {
        self.passes = 0;
        self.call("Ddp::map_module", |ddp| ddp.change(change))
    }

    #[track_caller]
    fn change(&mut self, change: impl FnOnce(M) -> M) -> Result<(), TrainError> {
        self.wait()?;
        if self.gatherer.is_some() {
            return Err(TrainError::unsupported(
                self.config.placement,
                "a model whose parameters are sharded cannot be changed; change it before Ddp::new",
            ));
        }
        let module = change(self.module.take().expect(MODULE_PRESENT));
        let module = super::trainable(meant(Meaning::Share, || module.map(&mut Leaves)));
        self.module = Some(module.clone());
        let table = ParameterTable::of(&module)?;
        let mut is_other = [u8::from(!table.is_same(&self.table))];
        self.group.all_reduce(&mut is_other, ReduceOp::Max)?;
        if is_other == [0] {
            self.buffers = Buffers::of(&module);
            return Ok(());
        }
        if !self.micro_batches.is_empty() {
            return Err(TrainError::UnfinishedStep);
        }
        let placement = self.config.placement;
        if placement.is_sharded() && placement.unit == ShardUnit::Parameters && self.steps > 0 {
            return Err(TrainError::unsupported(
                placement,
                "with other trainable parameters, each would be another rank's, and its optimizer's state stay \
                 behind; change them before the first step, or shard by rows",
            ));
        }
        // A model that is offloaded from a GPU is sharded.
        let place = Where { offload: self.offload.as_ref(), computing: None };
        let setup = Setup::new(module, &self.group, &self.failures, &self.config, place)?;
        self.module = Some(setup.module);
        self.table = setup.table;
        self.shards = setup.shards;
        self.reducer = setup.reducer;
        self.buffers = setup.buffers;
        self.anchors = Anchors::default();
        Ok(())
    }
}

/// Makes leaves of computed parameters: their history is not part of a loss.
struct Leaves;

impl ModuleMapper for Leaves {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let tensor = param.val();
        if !tensor.is_tracked() || tensor.is_require_grad() {
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        Param::from_mapped_value(id, tensor.detach().require_grad(), mapper)
    }
}
