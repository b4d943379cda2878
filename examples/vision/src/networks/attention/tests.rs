use super::*;

const SIZES: AttentionSizes = AttentionSizes { channels: 6, heads: 2, map: [3, 4] };

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// The definition, one pair of pixels at a time, in f64.
fn oracle(attention: &Attention, input: &Tensor<4>) -> Vec<f64> {
    let [batch, channels, height, width] = input.dims();
    let (heads, pixels) = (attention.heads, height * width);
    let depth = channels / heads;
    let weight = values(attention.query_key_value.weight.val());
    let rel_height = values(attention.rel_height.val());
    let rel_width = values(attention.rel_width.val());
    let x = values(input.clone());
    let mut output = vec![0.0; x.len()];
    for (b, head) in (0..batch).flat_map(|b| (0..heads).map(move |head| (b, head))) {
        let at = |part: usize, d: usize, pixel: usize| -> f64 {
            let row = part * channels + head * depth + d;
            (0..channels)
                .map(|c| weight[row * channels + c] * x[(b * channels + c) * pixels + pixel])
                .sum()
        };
        let query = |d, pixel| at(0, d, pixel) / (depth as f64).sqrt();
        for from in 0..pixels {
            let score = |to: usize| -> f64 {
                let down = to / width + height - 1 - from / width;
                let right = to % width + width - 1 - from % width;
                let place = |d| rel_height[down * depth + d] + rel_width[right * depth + d];
                (0..depth).map(|d| query(d, from) * (at(1, d, to) + place(d))).sum()
            };
            let scores: Vec<f64> = (0..pixels).map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            for d in 0..depth {
                let seen = |to: usize| weights[to] / total * at(2, d, to);
                let place = (b * channels + head * depth + d) * pixels + from;
                output[place] = (0..pixels).map(seen).sum();
            }
        }
    }
    output
}

#[test]
fn pixels_attend_by_content_and_distance() {
    let device = Device::flex();
    let mut draw = Draw::new(5, &device);
    let attention = Attention::new(SIZES, &mut draw);
    let input = draw.normal([2, 6, 3, 4], 1.0).val();
    let output = attention.forward(input.clone());
    assert_eq!(output.dims(), input.dims());
    // Each number is a sum over 12 pixels of values that are sums over 6 channels, weighted by an
    // exponential of a sum over 3 such products twice: about a hundred roundings of numbers near 1.
    let tolerance = 100.0 * f64::from(f32::EPSILON);
    let expected = oracle(&attention, &input);
    for (index, (got, want)) in values(output).into_iter().zip(expected).enumerate() {
        assert!((got - want).abs() < tolerance, "{index}: {got} against {want}");
    }
}

#[test]
fn distances_are_those_of_the_paper() {
    let row = indices(3, &Device::flex()).into_data();
    let row: Vec<i64> = row.iter::<i64>().collect();
    assert_eq!(row, [2, 3, 4, 1, 2, 3, 0, 1, 2]);
}

#[test]
#[should_panic(expected = "another feature map")]
fn a_feature_map_of_another_size_is_refused() {
    let device = Device::flex();
    let attention = Attention::new(SIZES, &mut Draw::new(5, &device));
    attention.forward(Tensor::zeros([1, 6, 4, 4], &device));
}
