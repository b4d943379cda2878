//! The kernels that work on buckets.

use bonfire_gpu::{Context, Nvrtc};
use bonfire_kernels::launch::stream::{
    CodeError, PackKernel, ReduceCode, ReduceKernel, ScaleKernel,
};
use bonfire_kernels::reduce::{Reduce, Role, Width};
use bonfire_kernels::{Element, FloatElement, Fold};
use bonfire_plan::DType;

#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) pack: PackKernel,
    pub(super) scale: ScaleKernel,
    pub(super) add: ReduceKernel,
}

impl Kernels {
    pub(super) fn load(context: &Context, nvrtc: Nvrtc, dtype: DType) -> Result<Self, CodeError> {
        let (element, float) = match dtype {
            DType::F32 => (Element::F32, FloatElement::F32),
            DType::F64 => (Element::F64, FloatElement::F64),
            DType::F16 => (Element::F16, FloatElement::F16),
            DType::BF16 => (Element::Bf16, FloatElement::Bf16),
            other => panic!("gradients are never of type {other}"),
        };
        let sum = Reduce::new(element, Fold::Sum, &[Role::Both, Role::Source], Width::Vector);
        let sum = sum.expect("floats have a sum of two buffers");
        Ok(Self {
            pack: PackKernel::load(context, nvrtc, dtype.size_bytes())?,
            scale: ScaleKernel::load(context, nvrtc, float)?,
            add: ReduceCode::compile(sum, nvrtc, context.device().capability())?.load(context)?,
        })
    }
}
