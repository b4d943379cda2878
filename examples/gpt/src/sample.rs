//! Text from the model: one character after the other, each drawn from the model's own odds.
//!
//! Every character costs a forward pass over the complete window; good for a sample of the model, not for serving.

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
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
    let device = model.devices().remove(0);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut tokens = vec![vocabulary.token('\n').unwrap_or(0)];
    for _ in 0..len {
        let window = &tokens[tokens.len().saturating_sub(model.config.context)..];
        let scores = last_scores(model, window, &device);
        tokens.push(draw(&scores, temperature, rng.random()));
    }
    vocabulary.decode(&tokens[1..])
}

fn last_scores(model: &Gpt, window: &[i32], device: &Device) -> Vec<f32> {
    let shape = [1, window.len()];
    let tokens = Tensor::from_data(TensorData::new(window.to_vec(), shape), device);
    let scores = model.forward(tokens); // [T, V]
    let last = window.len() - 1;
    let scores = scores.slice(last..last + 1); // [1, V]
    scores.into_data().iter::<f32>().collect()
}

/// The character at which the odds, added up, pass `point` of their sum; `point` is below one.
fn draw(scores: &[f32], temperature: f64, point: f64) -> i32 {
    assert!(!scores.is_empty(), "a character is drawn from at least one");
    assert!((0.0..1.0).contains(&point), "{point} is from zero to below one");
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let odds = scores.iter().map(|&score| (f64::from(score - highest) / temperature).exp());
    let odds: Vec<f64> = odds.collect();
    let mut left = point * odds.iter().sum::<f64>();
    let passed = odds.iter().position(|odds| {
        left -= odds;
        left < 0.0
    });
    // Rounding may leave a trace behind the last one.
    i32::try_from(passed.unwrap_or(odds.len() - 1)).expect("a vocabulary is far below 2^31")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::GptConfig;

    #[test]
    fn draws_follow_the_odds() {
        let scores = [0.0, 2f32.ln(), 0.0];
        let at = |point| draw(&scores, 1.0, point);
        assert_eq!([at(0.0), at(0.2), at(0.3), at(0.7), at(0.8), at(0.999)], [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn a_low_temperature_takes_the_best() {
        assert_eq!(draw(&[1.0, 3.0, 2.9], 1e-3, 0.999), 1);
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
