//! The averaging of gradients, and its state between steps.

use std::sync::{Arc, Mutex};

use burn::module::Module;

use super::{Ddp, lock};
use crate::compression::Compressor;
use crate::parameters::shards::Shards;
use crate::parameters::{ParameterTable, device_of};
use crate::reducer::Reducer;
use crate::reducer::device_route::{Ways, choose};
use crate::reducer::harvest::{Site, averaged, claimed};
use crate::reducer::naive::Naive;
use crate::reducer::timing::Stopwatch;
use crate::world::timeouts::WarmUp;
use crate::{CompressionError, CompressionState, DdpConfig, GradientSync, Gradients, TrainError};

#[derive(Debug)]
pub(super) enum Synchroniser {
    Bucketed(Arc<Mutex<Reducer>>),
    Naive(Naive),
}

impl Synchroniser {
    /// For a model that is the same on all ranks. Every rank calls it.
    pub(super) fn new<M: Module>(
        model: &M,
        group: &WarmUp,
        table: &Arc<ParameterTable>,
        shards: &Arc<Shards>,
        config: &DdpConfig,
    ) -> Result<Self, TrainError> {
        let device = device_of(model);
        let way = choose(Ways {
            config,
            device: device.as_ref(),
            group,
        })?;
        if config.sync == GradientSync::Naive {
            let naive = Naive::new(group.clone(), Arc::clone(table), config.compression);
            return Ok(Self::Naive(naive));
        }
        let compressor = Compressor::new(
            config.compression,
            (0..table.len()).map(|index| table.get(index).compressible()),
            group.world_size(),
        );
        let reducer = Reducer::new(
            group.clone(),
            Arc::clone(table),
            Arc::clone(shards),
            config.caps(),
            compressor,
            way,
        )?;
        if group.rank().get() == 0 {
            tracing::info!(
                parameters = table.len(),
                buckets = reducer.assignments().len(),
                compression = ?config.compression,
                placement = %config.placement,
                "gradients are sent in buckets"
            );
        }
        Ok(Self::Bucketed(Arc::new(Mutex::new(reducer))))
    }
}

/// The averages of a reducer that has settled.
pub(super) fn averages<M: Module>(
    module: &M,
    none: Gradients,
    own: Option<burn::tensor::Gradients>,
    reducer: &mut Reducer,
    watch: &mut Stopwatch,
) -> Result<Gradients, TrainError> {
    if reducer.site() == Site::Host {
        let average = |parameter, shape: &[usize]| reducer.average(parameter, shape);
        return Ok(averaged(module, none, average));
    }
    let table = none.table();
    if own.is_some() {
        reducer.release();
    }
    let mut claims = claimed(module, table, own, |parameter| {
        reducer.has_average(parameter)
    })?;
    reducer.deliver(std::mem::take(&mut claims.memory), watch)?;
    Ok(claims.finish(none))
}

impl<M: Module> Ddp<M> {
    /// Gathers the state of compression on all ranks, for the program's state in a checkpoint. Without it PowerSGD
    /// does not resume exactly. Every rank must call it, and gets the same.
    ///
    /// # Errors
    /// [`TrainError::Collective`] if a rank failed.
    #[track_caller]
    pub fn compression_state(&self) -> Result<CompressionState, TrainError> {
        match &self.synchroniser {
            Synchroniser::Bucketed(reducer) => Ok(lock(reducer).compressor.state(&self.group)?),
            Synchroniser::Naive(_) => Ok(CompressionState::default()),
        }
    }

    /// Restores a state that every rank has; on as many ranks as saved it, bit for bit. On more or fewer, every rank
    /// continues with the mean of the errors, so that nothing is lost; a lone rank compresses nothing, and drops it.
    /// The empty state changes nothing.
    ///
    /// # Errors
    /// [`TrainError::Compression`] if the state belongs to another model or configuration. Nothing is changed then.
    pub fn restore_compression(&mut self, state: &CompressionState) -> Result<(), TrainError> {
        let restored = match &self.synchroniser {
            Synchroniser::Bucketed(reducer) => {
                let mut reducer = lock(reducer);
                reducer.compressor.restore(state, &self.group)
            }
            Synchroniser::Naive(_) if *state == CompressionState::default() => Ok(()),
            Synchroniser::Naive(_) => Err(CompressionError::NothingToRestore),
        };
        restored.map_err(TrainError::from)
    }
}
