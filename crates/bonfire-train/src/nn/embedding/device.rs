//! The gradient of a table on CUDA devices.

use burn::backend::{Cube, CubeDevice, DispatchDevice};
use burn::tensor::{DType, Int, Tensor};
use burn_cubecl::cubecl::ir::{ElemType, FloatKind, IntKind};
use burn_cubecl::cubecl::prelude::{CubeCount, CubeDim};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros;

use super::kernel::{UNITS, sum_rows};
use crate::reducer::readback::resident::Resident;

pub(super) fn is_there(table: &Tensor<2>, indices: &Tensor<2, Int>) -> bool {
    let device = table.device().without_autodiff();
    let is_float = matches!(table.dtype(), DType::F32 | DType::F16 | DType::BF16);
    let is_int = matches!(indices.dtype(), DType::I32 | DType::I64);
    let ([rows, width], [batch, tokens]) = (table.dims(), indices.dims());
    // The kernel counts elements in 32 bits.
    let fits = (rows.max(batch * tokens) * width) >> 32 == 0;
    let is_cuda = matches!(device.as_dispatch(), DispatchDevice::Cube(CubeDevice::Cuda(_)));
    is_float && is_int && fits && is_cuda
}

/// For each row of a table, the sum of the gradients of the tokens that have looked it up.
pub(super) fn sums_of_rows(gradient: Tensor<3>, indices: Tensor<2, Int>, rows: usize) -> Tensor<2> {
    let [batch, tokens, width] = gradient.dims();
    // In one dimension, where no backend leaves gaps.
    let (gradient, indices) = (gradient.flatten::<1>(0, 2), indices.flatten::<1>(0, 1));
    let gradient = gradient.try_into_primitive::<Cube>().expect("it is on a CUDA device");
    let gradient = into_contiguous(Cube::resolved(gradient));
    let indices = indices.try_into_primitive::<Cube>().expect("it is where the table is");
    let indices = into_contiguous(Cube::resolved_int(indices));
    let sums = zeros(gradient.device.clone(), [rows * width].into(), gradient.dtype);
    let types = [gradient.dtype, indices.dtype].map(element);
    let tokens = batch * tokens;
    if tokens > 0 {
        sum_rows::launch(
            &gradient.client.clone(),
            CubeCount::Static(tokens as u32, 1, 1),
            CubeDim::new_1d(UNITS),
            gradient.into_tensor_arg(),
            indices.into_tensor_arg(),
            sums.clone().into_tensor_arg(),
            tokens as u32,
            width as u32,
            types,
        );
    }
    Tensor::<1>::from_primitive::<Cube>(Cube::known(sums)).reshape([rows, width])
}

fn element(dtype: DType) -> ElemType {
    match dtype {
        DType::F32 => ElemType::Float(FloatKind::F32),
        DType::F16 => ElemType::Float(FloatKind::F16),
        DType::BF16 => ElemType::Float(FloatKind::BF16),
        DType::I32 => ElemType::Int(IntKind::I32),
        DType::I64 => ElemType::Int(IntKind::I64),
        other => panic!("a table is not looked up by {other:?}"),
    }
}
