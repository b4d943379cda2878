use burn::Tensor;
use burn::tensor::Device;

use super::*;

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

#[test]
fn memory_of_ones_own_is_overwritten() {
    let tensor = Tensor::<2>::zeros([2, 2], &Device::flex());
    let changed = overwritten(
        tensor,
        &[(1..4, HostSlice::F32(&[2.0, 3.0, 4.0])), (0..1, HostSlice::F32(&[1.0]))],
    )
    .unwrap();
    assert_eq!(changed.dims(), [2, 2]);
    assert_eq!(values(changed), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn shared_transposed_and_other_memory_is_left_alone() {
    let new = &[(0..4, HostSlice::F32(&[1.0, 2.0, 3.0, 4.0]))];
    let tensor = Tensor::<2>::ones([2, 2], &Device::flex());
    assert!(overwritten(tensor.clone(), new).is_none());
    assert_eq!(values(tensor.clone()), [1.0; 4]);
    assert!(overwritten(tensor.transpose(), new).is_none());
    let short = Tensor::<1>::ones([3], &Device::flex());
    assert!(overwritten(short, new).is_none());
    let integers = &[(0..1, HostSlice::F64(&[1.0]))];
    assert!(overwritten(Tensor::<1>::ones([1], &Device::flex()), integers).is_none());
}
