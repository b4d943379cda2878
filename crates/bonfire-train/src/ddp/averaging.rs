//! The averaging of gradients, and its state between steps.

use std::sync::Arc;

use bonfire_collective::Mutex;
use burn::module::Module;

use super::Ddp;
use crate::compression::Compressor;
use crate::parameters::shards::Shards;
use crate::parameters::{ParameterTable, device_of};
use crate::reducer::Reducer;
use crate::reducer::collect::Site;
use crate::reducer::device_route::transfer::lane::DeviceLane;
use crate::reducer::device_route::{Fate, Ways, choose, over_devices};
use crate::world::timeouts::WarmUp;
use crate::{CompressionState, DdpConfig, GradientRoute, TrainError};

/// Makes the reducer of a model that is the same on all ranks. Every rank calls it.
pub(super) fn reducer_of<M: Module>(
    model: &M,
    group: &WarmUp,
    table: &Arc<ParameterTable>,
    shards: &Arc<Shards>,
    config: &DdpConfig,
) -> Result<Arc<Mutex<Reducer>>, TrainError> {
    let device = device_of(model);
    let copies = shards.groups().copies().is_some();
    let way = choose(Ways { config, device: device.as_ref(), copies, group })?;
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
    Ok(Arc::new(Mutex::new(reducer)))
}

/// The lane for parameters that are gathered when they are used, where gradients stay on their devices. It has memory
/// and a stream of its own. Every rank calls it.
pub(super) fn lane_of<M: Module>(
    model: &M,
    group: &WarmUp,
    reducer: &Mutex<Reducer>,
    config: &DdpConfig,
) -> Result<Option<DeviceLane>, TrainError> {
    let device = device_of(model).filter(|_| reducer.lock().site() == Site::Device);
    let Some(device) = device else {
        return Ok(None);
    };
    let found = over_devices(config.route, Some(&device), group, Fate::Shared)?;
    match (found, config.route) {
        (Ok(engine), _) => Ok(Some(DeviceLane::new(engine, device))),
        (Err(reason), GradientRoute::Auto) => {
            if group.rank().get() == 0 {
                tracing::warn!(rank = 0, reason, "parameters are gathered through host memory");
            }
            Ok(None)
        }
        (Err(reason), route) => Err(TrainError::NoDeviceRoute { route, reason }),
    }
}

impl<M: Module> Ddp<M> {
    /// Gathers the state of compression on all ranks, for the program's state in a checkpoint. Without it PowerSGD
    /// does not resume exactly. Every rank must call it, and gets the same.
    ///
    /// # Errors
    /// [`TrainError::Collective`] if a rank failed.
    #[track_caller]
    pub fn compression_state(&self) -> Result<CompressionState, TrainError> {
        Ok(self.reducer.lock().compressor.state(&self.group)?)
    }

    /// Restores a state that every rank has; on as many ranks as saved it, bit for bit. On more or fewer, every rank
    /// continues with the mean of the errors, so that nothing is lost; a lone rank compresses nothing, and drops it.
    /// The empty state changes nothing.
    ///
    /// # Errors
    /// [`TrainError::Compression`] if the state belongs to another model or configuration. Nothing is changed then.
    pub fn restore_compression(&mut self, state: &CompressionState) -> Result<(), TrainError> {
        let mut reducer = self.reducer.lock();
        Ok(reducer.compressor.restore(state, &self.group)?)
    }
}
