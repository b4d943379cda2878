use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use half::{bf16, f16};

use super::*;
use crate::world::device::open;
use crate::{DeviceKind, LocalRank, Occupancy};

fn device() -> Option<Device> {
    let alone = LocalRank { local_rank: 0, local_world_size: 1 };
    let opened = open(DeviceKind::Cuda, Occupancy::Oversubscribed, alone);
    opened.inspect_err(|error| println!("skipped: {error}")).ok().map(|(device, _)| device)
}

/// Rows looked up often, once and never, in more tokens than a block has threads, of more columns than that.
#[test]
fn cuda_gradients_of_a_table_are_sums_in_the_order_of_the_tokens() {
    let Some(device) = device() else { return };
    const ROWS: usize = 23;
    for [batch, tokens, width] in [[1, 1, 1], [2, 3, 5], [3, 87, 257]] {
        let indices: Vec<i32> = (0..batch * tokens).map(|t| (t * t % 7 * 3) as i32).collect();
        let factor = |place: usize| ((place * 7919 % 255) as f32 - 127.0) / 64.0;
        let factors: Vec<f32> = (0..batch * tokens * width).map(factor).collect();
        let mut expected = vec![0.0_f32; ROWS * width];
        for (token, index) in indices.iter().enumerate() {
            for column in 0..width {
                expected[*index as usize * width + column] += factors[token * width + column];
            }
        }
        let types = [DType::F32, DType::BF16, DType::F16];
        for dtype in types.into_iter().take(if tokens > 3 { 1 } else { 3 }) {
            let table = Tensor::<2>::ones([ROWS, width], (&device.clone().autodiff(), dtype));
            let table = table.require_grad();
            let data = TensorData::new(indices.clone(), [batch, tokens]);
            let indices = Tensor::<2, Int>::from_data(data, &device.clone().autodiff());
            let factors = TensorData::new(factors.clone(), [batch, tokens, width]);
            let factors = Tensor::<3>::from_data(factors, (&device.clone().autodiff(), dtype));
            let vectors = embedding(table.clone(), indices);
            assert_eq!(vectors.dims(), [batch, tokens, width]);
            let gradients = (vectors * factors).sum().backward();
            let found = table.grad(&gradients).unwrap().into_data();
            let found: Vec<f32> = found.iter::<f32>().collect();
            let rounded = |value: &f32| match dtype {
                DType::BF16 => bf16::from_f32(*value).to_f32(),
                DType::F16 => f16::from_f32(*value).to_f32(),
                _ => *value,
            };
            let expected: Vec<f32> = expected.iter().map(rounded).collect();
            assert_eq!(found, expected, "{dtype:?}, {batch} x {tokens} x {width}");
        }
    }
}
