//! How gradients are averaged.

use std::sync::{Arc, Mutex};

use burn::module::Module;

use crate::compression::Compressor;
use crate::parameters::shards::Shards;
use crate::parameters::{ParameterTable, device_of};
use crate::reducer::Reducer;
use crate::reducer::device_route::{Ways, choose};
use crate::reducer::harvest::{Site, averaged, claimed};
use crate::reducer::naive::Naive;
use crate::reducer::timing::Stopwatch;
use crate::world::patience::WarmUp;
use crate::{DdpConfig, GradientSync, Gradients, TrainError};
use bonfire_plan::buckets::Caps;

/// How gradients are averaged.
#[derive(Debug)]
pub(super) enum Synchroniser {
    /// Shared with the backward pass under way.
    Bucketed(Arc<Mutex<Reducer>>),
    Naive(Naive),
}

impl Synchroniser {
    /// For a model that is the same on all ranks. Every rank calls it.
    pub(super) fn new<M: Module>(
        model: &M,
        group: &WarmUp,
        (table, shards): (&Arc<ParameterTable>, &Arc<Shards>),
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
        let caps = Caps {
            first_bytes_max: config.first_bucket_bytes_max.min(config.bucket_bytes_max),
            bytes_max: config.bucket_bytes_max,
        };
        let compressor = Compressor::new(config.compression, table, group.world_size());
        let parameters = (Arc::clone(table), Arc::clone(shards));
        let reducer = Reducer::new(group.clone(), parameters, (caps, compressor), way)?;
        if group.rank().get() == 0 {
            tracing::info!(
                parameters = table.len(),
                buckets = reducer.assignments().len(),
                compression = ?config.compression,
                placement = %config.placement,
                "gradients travel in buckets"
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
    (reducer, watch): (&mut Reducer, &mut Stopwatch),
) -> Result<Gradients, TrainError> {
    if reducer.site() == Site::Host {
        let average = |parameter| reducer.average(parameter);
        return Ok(averaged(module, none, own, average));
    }
    let table = none.table();
    if own.is_some() {
        reducer.release();
    }
    let mut claims = claimed(module, table, own, |parameter| {
        reducer.has_average(parameter)
    })?;
    reducer.deliver(std::mem::take(&mut claims.memory), watch)?;
    Ok(claims.finish(table))
}
