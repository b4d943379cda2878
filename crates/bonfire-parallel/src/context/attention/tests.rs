use burn::tensor::{Bool, DType, Device, Distribution, Tensor, activation};

use super::{AttentionMask, SHORT, self_attention};
use crate::context::block::TILE;

/// Two sequences of three heads; queries, keys and values are made of it. The second one is in tiles, the last of them
/// smaller.
const SHAPES: [[usize; 4]; 2] = [[2, 3, 7, 5], [2, 3, SHORT + TILE / 2 + 5, 5]];

fn packed([n, heads, tokens, features]: [usize; 4], dtype: DType, scale: f64) -> Tensor<4> {
    let device = Device::flex().autodiff();
    device.seed(5);
    let options = (&device, DType::F64);
    let random: Tensor<4> =
        Tensor::random([3 * n, heads, tokens, features], Distribution::Normal(0.0, scale), options);
    random.cast(dtype).detach().require_grad()
}

/// Written with Burn's operations.
fn plain(packed: Tensor<4>, attend: AttentionMask) -> Tensor<4> {
    let [first, _, tokens, features] = packed.dims();
    let n = first / 3;
    let [query, key, value] = [0, 1, 2].map(|i| packed.clone().narrow(0, i * n, n));
    let scores = query.matmul(key.transpose()).mul_scalar(1.0 / (features as f64).sqrt());
    let later = Tensor::<2, Bool>::tril_mask([tokens; 2], 0, &scores.device());
    let scores = match attend {
        AttentionMask::All => scores,
        AttentionMask::Causal => {
            let later = later.unsqueeze::<4>().expand(scores.dims());
            scores.mask_fill(later, f32::NEG_INFINITY)
        }
    };
    activation::softmax(scores, 3).matmul(value)
}

/// The output, and the gradient of a sum in which every element counts differently.
fn found(packed: Tensor<4>, attention: impl FnOnce(Tensor<4>) -> Tensor<4>) -> [Vec<f64>; 2] {
    let output = attention(packed.clone());
    let (shape, count) = (output.dims(), output.shape().num_elements() as i64);
    let weights = Tensor::<1, burn::tensor::Int>::arange(0..count, &output.device());
    // The same in all types.
    let weights = weights.float().sin().cast(DType::BF16).cast(output.dtype()).reshape(shape);
    let gradients = (output.clone() * weights).sum().backward();
    [output, packed.grad(&gradients).unwrap()].map(|x| x.into_data().iter::<f64>().collect())
}

#[test]
fn outputs_and_gradients_are_those_of_burns_operations() {
    // The second scale makes exponentials of scores that overflow. Tolerances are of the short and of the long shape.
    let types = [
        (DType::F64, 1.0, [1e-13; 2]),
        (DType::F64, 30.0, [9e-11, 1e-10]),
        (DType::F32, 1.0, [1e-5; 2]),
        (DType::F32, 30.0, [9e-3, 1e-2]),
        (DType::BF16, 1.0, [0.05; 2]),
    ];
    for attend in [AttentionMask::All, AttentionMask::Causal] {
        for (place, (dtype, scale, tolerances)) in
            (0..SHAPES.len()).flat_map(|place| types.map(|of_type| (place, of_type)))
        {
            let (shape, tolerance) = (SHAPES[place], tolerances[place]);
            let input = packed(shape, dtype, scale);
            let exact = input.clone().cast(DType::F64).detach().require_grad();
            let exact = found(exact, |x| plain(x, attend));
            let close = found(input, |x| self_attention(x, attend));
            for (close, exact) in close.iter().flatten().zip(exact.iter().flatten()) {
                let case = format!("{attend}, {shape:?}, {dtype:?}, {scale}: {close} for {exact}");
                assert!((close - exact).abs() < tolerance * exact.abs().max(1.0), "{case}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "4 is not a number of queries, and as many keys and values")]
fn what_is_not_packed_is_refused() {
    let _ = self_attention(Tensor::<3>::zeros([4, 2, 2], &Device::flex()), AttentionMask::All);
}
