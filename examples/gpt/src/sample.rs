//! Text from the model: one character after the other, each drawn from the model's own odds.
//!
//! Every character costs a forward pass over the complete window; good for a sample of the model, not for serving.

use burn::module::Module;
use burn::tensor::{Tensor, TensorData};
use chacha20::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::corpus::Vocabulary;
use crate::model::Gpt;

/// Generates `len` characters with `model`, beginning with a new line where the text has lines. `temperature` divides
/// the scores before the softmax.
pub fn sample(
    model: &Gpt,
    vocabulary: &Vocabulary,
    len: usize,
    temperature: f64,
    seed: u64,
) -> String {
    let (device, context) = (model.devices().remove(0), model.config.context);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut tokens = vec![vocabulary.token('\n').unwrap_or(0)];
    for _ in 0..len {
        let window = tokens[tokens.len().saturating_sub(context)..].to_vec();
        let shape = [1, window.len()];
        let window = Tensor::from_data(TensorData::new(window, shape), &device);
        let scores = model.forward(window); // [T, V]
        let last: Vec<f32> = scores.slice(-1..).into_data().iter().collect();
        tokens.push(draw(&last, temperature, &mut rng));
    }
    vocabulary.decode(&tokens[1..])
}

/// Draws a character from the softmax of the scores by the temperature. The highest score with Gumbel noise is one, see
/// section 2 of <https://arxiv.org/abs/1411.0030>; the noise is multiplied in place of dividing the scores.
fn draw(scores: &[f32], temperature: f64, rng: &mut ChaCha8Rng) -> i32 {
    let noisy = |score: &f32| f64::from(*score) - temperature * (-rng.random::<f64>().ln()).ln();
    let best = (0..).zip(scores.iter().map(noisy)).max_by(|one, other| one.1.total_cmp(&other.1));
    best.expect("a character is drawn from at least one").0
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::model::GptConfig;

    /// How often each character is drawn.
    fn counts(scores: [f32; 3], temperature: f64) -> [u32; 3] {
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        let mut counts = [0; 3];
        for _ in 0..DRAWS {
            counts[draw(&scores, temperature, &mut rng) as usize] += 1;
        }
        counts
    }

    const DRAWS: u32 = 4000;

    #[test]
    fn draws_follow_the_odds() {
        for (temperature, odds) in
            [(1.0, [0.25, 0.5, 0.25]), (0.5, [1.0 / 6.0, 4.0 / 6.0, 1.0 / 6.0])]
        {
            let counts = counts([0.0, 2f32.ln(), 0.0], temperature);
            for (count, odds) in counts.into_iter().zip(odds) {
                // Four standard deviations of a count.
                let tolerance = 4.0 * (f64::from(DRAWS) * odds * (1.0 - odds)).sqrt();
                let expected = f64::from(DRAWS) * odds;
                assert!((f64::from(count) - expected).abs() < tolerance, "{counts:?}");
            }
        }
    }

    #[test]
    fn a_low_temperature_takes_the_best() {
        assert_eq!(counts([1.0, 3.0, 2.9], 1e-3), [0, DRAWS, 0]);
    }

    #[test]
    fn a_seed_gives_one_text_of_the_length_asked_for() {
        let vocabulary = Vocabulary::of("\nabcdefg");
        let config = GptConfig {
            vocabulary: 8,
            context: 4,
            layers: 1,
            heads: 2,
            width: 8,
            checkpoint_blocks: false,
        };
        let model = config.init(3, &Device::flex());
        let text = |seed| sample(&model, &vocabulary, 50, 1.0, seed);
        assert_eq!(text(1).chars().count(), 50);
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
    }
}
