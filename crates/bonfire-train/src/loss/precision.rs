//! Mixed precision: parameters in f32, forward and backward passes in 16 bits.
//!
//! After Micikevicius et al. (2018): the optimizer updates parameters of 32 bits, of which every pass gets a copy of
//! 16 bits. The copy is an operation of the pass, so its backward step gives each parameter a gradient of 32 bits;
//! reducing, clipping and the optimizer only see 32 bits.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, FloatDType, Tensor};

use crate::TrainError;
use crate::config::Precision;
use crate::parameters::ParameterTable;

impl Precision {
    /// The type of passes, if it differs from that of the parameters.
    pub(crate) fn lower(self) -> Option<FloatDType> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(FloatDType::BF16),
            Self::F16 => Some(FloatDType::F16),
        }
    }

    /// Checks that all devices of a model support it.
    pub(crate) fn check<M: Module>(self, model: &M) -> Result<(), TrainError> {
        let Some(dtype) = self.lower() else {
            return Ok(());
        };
        match model.devices().iter().find(|d| !d.supports_dtype(dtype)) {
            None => Ok(()),
            Some(device) => Err(TrainError::UnsupportedPrecision {
                precision: self,
                device: format!("{device:?}"),
            }),
        }
    }

    /// Casts a tensor to the type of the pass: for its inputs.
    #[must_use]
    pub fn cast<const D: usize>(self, tensor: Tensor<D>) -> Tensor<D> {
        match self.lower() {
            Some(dtype) => tensor.cast(dtype),
            None => tensor,
        }
    }

    /// A parameter's values for a pass: those of f32 are cast, except where `place` is one that stays in f32.
    pub(crate) fn cast_parameter<const D: usize>(
        self,
        tensor: Tensor<D>,
        place: &Enclosing,
    ) -> Tensor<D> {
        match tensor.dtype() {
            DType::F32 | DType::Flex32 if !place.stays() => self.cast(tensor),
            _ => tensor,
        }
    }

    /// A model without autodiff whose trainable parameters are cast as for a pass. Frozen ones and running state are
    /// not touched: they cannot be distinguished, and Burn shares the latter with the original model.
    pub(crate) fn cast_model<M: Module>(self, model: M, table: &ParameterTable) -> M {
        match self {
            Self::F32 => model,
            _ => model.map(&mut Caster { precision: self, table, place: Enclosing::default() }),
        }
    }
}

/// The position of a mapper in a model: batch normalisation computes with running state, which stays in f32, so its
/// parameters do, too.
#[derive(Debug, Default)]
pub(crate) struct Enclosing {
    /// True for each surrounding module that is a batch norm.
    norms: Vec<bool>,
}

impl Enclosing {
    pub(crate) fn enter(&mut self, _name: &str, container: &str) {
        self.norms.push(container.ends_with("BatchNorm"));
    }

    pub(crate) fn exit(&mut self) {
        self.norms.pop();
    }

    pub(crate) fn stays(&self) -> bool {
        self.norms.contains(&true)
    }
}

struct Caster<'a> {
    precision: Precision,
    table: &'a ParameterTable,
    place: Enclosing,
}

impl ModuleMapper for Caster<'_> {
    crate::parameters::follow_path!(place);

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.table.index_of(param.id).is_none() {
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        let tensor = self.precision.cast_parameter(tensor, &self.place);
        Param::from_mapped_value(id, tensor, mapper)
    }
}
