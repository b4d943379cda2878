//! A step in the memory of tensors on Flex.

use std::path::Path;
use std::sync::Arc;

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Element, Tensor};
use bytemuck::Pod;
use half::{bf16, f16};

use super::Weights;
use super::master::Stored;
use super::number::Real;
use super::offloaded::Offloaded;
use super::slices::{self, Multiplied, Rule};
use crate::gradient::Factors;
use crate::offload::FileTensor;

/// One step. Copies only memory that is shared or not row-major.
///
/// # Panics
/// If a tensor is of another backend.
pub(super) fn step<const D: usize, const M: usize>(
    rule: impl Rule<M>,
    weights: Weights<D>,
    gradient: Tensor<D>,
    factors: [f64; Factors::MAX],
    moments: [Offloaded<D>; M],
) -> (Weights<D>, [Offloaded<D>; M]) {
    let gradient = Gradient { tensor: primitive(gradient).to_contiguous(), factors };
    let mut moments = moments.map(Own::from);
    let mut parameter = Own::from(weights.parameter);
    let mut master = weights.master.map(Own::from);
    match (parameter.dtype(), &mut master) {
        (DType::F64, None) => whole::<f64, M>(rule, &mut parameter, &gradient, &mut moments),
        (DType::F32, None) => whole::<f32, M>(rule, &mut parameter, &gradient, &mut moments),
        (DType::F16, Some(master)) => {
            halves::<f16, M>(rule, &mut parameter, master, &gradient, &mut moments);
        }
        (DType::BF16, Some(master)) => {
            halves::<bf16, M>(rule, &mut parameter, master, &gradient, &mut moments);
        }
        (other, _) => panic!("parameters on Flex are never of type {other:?}"),
    }
    let weights = Weights { parameter: parameter.kept(), master: master.map(Own::idle) };
    (weights, moments.map(Own::idle))
}

/// A parameter in its file. Makes a new file if there is none, or if the parameter was changed elsewhere.
pub(super) fn in_file<const D: usize>(
    parameter: Tensor<D>,
    file: Option<FileTensor>,
    folder: &Arc<Path>,
) -> FileTensor {
    let parameter = primitive(parameter).to_contiguous();
    let shape = parameter.layout().shape();
    match file.filter(|file| file.has(parameter.bytes(), shape)) {
        Some(file) => file,
        None => FileTensor::copied(&parameter.into_data(), folder),
    }
}

/// A gradient in row-major memory, and what it is multiplied with.
struct Gradient {
    tensor: FlexTensor,
    factors: [f64; Factors::MAX],
}

impl Gradient {
    fn values<T: Element + Pod>(&self) -> Multiplied<'_, T> {
        Multiplied {
            values: self.tensor.as_slice().expect("row-major, of this type"),
            factors: self.factors,
        }
    }
}

/// A tensor whose memory is not shared.
enum Own {
    Memory(FlexTensor),
    File(FileTensor),
}

impl Own {
    fn kept<const D: usize>(self) -> Offloaded<D> {
        match self {
            Self::Memory(tensor) => Offloaded::Memory(Tensor::from_primitive::<Flex>(tensor)),
            Self::File(file) => Offloaded::File(file),
        }
    }

    /// The tensor between steps: marks its memory as idle.
    fn idle<const D: usize>(self) -> Offloaded<D> {
        if let Self::File(file) = &self {
            file.set_idle();
        }
        self.kept()
    }

    fn dtype(&self) -> DType {
        match self {
            Self::Memory(tensor) => tensor.dtype(),
            Self::File(file) => file.dtype(),
        }
    }

    fn values_mut<T: Element + Pod>(&mut self) -> &mut [T] {
        match self {
            Self::Memory(tensor) => values_mut(tensor),
            Self::File(file) => file.values_mut(),
        }
    }
}

impl<const D: usize> From<Offloaded<D>> for Own {
    fn from(kept: Offloaded<D>) -> Self {
        match kept {
            Offloaded::Memory(tensor) => Self::Memory(own(tensor)),
            Offloaded::File(file) => Self::File(file),
        }
    }
}

fn whole<T: Real + Element + Pod, const M: usize>(
    rule: impl Rule<M>,
    parameter: &mut Own,
    gradient: &Gradient,
    moments: &mut [Own; M],
) {
    slices::step(
        rule,
        parameter.values_mut::<T>(),
        gradient.values::<T>(),
        moments.each_mut().map(Own::values_mut::<T>),
    );
}

fn halves<H: Stored + Element, const M: usize>(
    rule: impl Rule<M>,
    parameter: &mut Own,
    master: &mut Own,
    gradient: &Gradient,
    moments: &mut [Own; M],
) {
    let parameters = parameter.values_mut::<H>();
    let masters = master.values_mut::<f32>();
    let moments = moments.each_mut().map(Own::values_mut::<f32>);
    match gradient.tensor.dtype() {
        DType::F32 => {
            slices::step_half(rule, parameters, masters, gradient.values::<f32>(), moments);
        }
        _ => slices::step_half(rule, parameters, masters, gradient.values::<H>(), moments),
    }
}

fn primitive<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    let primitive = tensor.try_into_primitive::<Flex>();
    primitive.expect("its device is Flex")
}

/// The tensor in unshared row-major memory, copied only if it is not.
fn own<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    FlexTensor::from_data(primitive(tensor).into_data())
}

fn values_mut<T: Element + Pod>(tensor: &mut FlexTensor) -> &mut [T] {
    let (start, end) = tensor.layout().contiguous_offsets().expect("row-major");
    let values = tensor.try_storage_mut().expect("its memory is not shared");
    &mut values[start..end]
}
