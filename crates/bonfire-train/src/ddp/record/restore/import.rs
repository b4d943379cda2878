//! Puts parameters of rank 0 into a training, one at a time.

use bonfire_checkpoint::record::{WRITER, broadcast_value};
use bonfire_collective::ProcessGroup;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, Device, Int, Shape, Tensor, TensorData};

use super::{Rows, with_bools, with_floats, with_ints};
use crate::TrainError;
use crate::ddp::{Ddp, MODULE_PRESENT};

impl<M: Module> Ddp<M> {
    /// Replaces parameters by the output of a mapper on rank 0, one at a time; it gets complete parameters without
    /// values. Every rank must call it.
    #[track_caller]
    pub(crate) fn import<S: ModuleMapper>(
        &mut self,
        group: &ProcessGroup,
        source: Option<&mut S>,
    ) -> Result<(), TrainError> {
        self.call("load_weights", |ddp| {
            let mut importer = Importer {
                source,
                group,
                rows: Rows {
                    table: &ddp.table,
                    shards: ddp.gatherer.as_deref().map(|gatherer| gatherer.shards()),
                    offload: ddp.offload.as_ref(),
                },
                result: Ok(()),
            };
            let module = ddp.module.take().expect(MODULE_PRESENT);
            ddp.module = Some(module.map(&mut importer));
            importer.result
        })
    }
}

struct Importer<'a, S> {
    source: Option<&'a mut S>,
    group: &'a ProcessGroup,
    rows: Rows<'a>,
    result: Result<(), TrainError>,
}

impl<S: ModuleMapper> Importer<'_, S> {
    /// The values of rank 0 for a parameter, if any.
    fn broadcast(&mut self, own: impl FnOnce(&mut S) -> Option<TensorData>) -> Option<TensorData> {
        if self.result.is_err() {
            return None;
        }
        let own = self.source.as_deref_mut().and_then(own);
        let received = self.receive(own);
        received.unwrap_or_else(|error| {
            self.result = Err(error);
            None
        })
    }

    fn receive(&self, own: Option<TensorData>) -> Result<Option<TensorData>, TrainError> {
        let own = own.map(TensorData::into_parts);
        let about = own.as_ref().map(|(_, shape, dtype)| (shape.to_vec(), *dtype));
        let Some((shape, dtype)) = broadcast_value(self.group, &about)? else {
            return Ok(None);
        };
        let mut bytes = match own {
            Some((bytes, ..)) => bytes.to_vec(),
            None => vec![0; shape.iter().product::<usize>() * dtype.size()],
        };
        self.group.broadcast(&mut bytes, WRITER)?;
        Ok(Some(TensorData::from_bytes_vec(bytes, shape, dtype)))
    }
}

/// A parameter without values, and the mapper's output for it, if any.
macro_rules! mapped {
    ($source:expr, $map:ident, $tensor:ty, $param:expr, $shape:expr) => {{
        let no_values = |_: &Device, _| unreachable!("a stand-in has no values");
        let device = $param.lazy_device();
        let stand_in = Param::<$tensor>::uninitialized($param.id, no_values, device, false, $shape);
        let mapped = $source.$map(stand_in);
        mapped.is_initialized().then(|| mapped.val().into_data())
    }};
}

impl<S: ModuleMapper> ModuleMapper for Importer<'_, S> {
    fn enter_module(&mut self, name: &str, container: &str) {
        if let Some(source) = &mut self.source {
            source.enter_module(name, container);
        }
    }

    fn exit_module(&mut self, name: &str, container: &str) {
        if let Some(source) = &mut self.source {
            source.exit_module(name, container);
        }
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let rows = self.rows;
        let shape = match rows.cut(param.id) {
            Some((index, _)) => Shape::from(rows.table.get(index).shape.clone()),
            None => param.lazy_shape(),
        };
        match self.broadcast(|source| mapped!(source, map_float, Tensor<D>, param, shape)) {
            Some(values) => with_floats(param, values, rows, &mut self.result),
            None => param,
        }
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        match self
            .broadcast(|source| mapped!(source, map_int, Tensor<D, Int>, param, param.lazy_shape()))
        {
            Some(values) => with_ints(param, values),
            None => param,
        }
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        match self.broadcast(
            |source| mapped!(source, map_bool, Tensor<D, Bool>, param, param.lazy_shape()),
        ) {
            Some(values) => with_bools(param, values),
            None => param,
        }
    }
}
