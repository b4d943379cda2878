//! Loss and accuracy over samples, batches and ranks.
//!
//! Only counts and sums are sent, never means: ranks may have different numbers of samples.

use bonfire::World;
use bonfire::collective::ReduceOp;
use bonfire::ddp::TrainError;
use burn::tensor::{Int, Tensor};

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// The sum of all samples' losses.
    loss: f64,
    /// Samples whose class has the highest score.
    first: f64,
    /// Samples whose class is among the highest k.
    among: f64,
    samples: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// The mean loss, in nats.
    pub loss: f64,
    /// Per cent of the samples whose class has the highest score.
    pub top1: f64,
    /// Per cent of the samples whose class is among the highest k.
    pub topk: f64,
    pub samples: u64,
}

impl Tally {
    /// Adds a batch: scores `[batch, classes]`, labels `[batch]`, the mean of its losses, and the k of
    /// the second accuracy. Waits for the device.
    pub fn add(&mut self, scores: Tensor<2>, labels: Tensor<1, Int>, loss: f64, k: usize) {
        let places = places(scores, labels);
        let within = |k: usize| places.iter().filter(|&&place| place < k).count() as f64;
        self.first += within(1);
        self.among += within(k);
        self.samples += places.len() as f64;
        self.loss += loss * places.len() as f64;
    }

    /// Returns the figures of this rank alone.
    pub fn local(&self) -> Option<Figures> {
        figures([self.loss, self.first, self.among, self.samples])
    }

    /// Returns the figures of all ranks, or `None` without samples: the same bits on every rank. Every rank must call
    /// it.
    ///
    /// # Errors
    /// [`TrainError::Collective`].
    #[track_caller]
    pub fn over_ranks(&self, world: &World) -> Result<Option<Figures>, TrainError> {
        let mut sums = [self.loss, self.first, self.among, self.samples];
        world.group().all_reduce(&mut sums, ReduceOp::Sum)?;
        Ok(figures(sums))
    }
}

fn figures([loss, first, among, samples]: [f64; 4]) -> Option<Figures> {
    (samples > 0.0).then(|| Figures {
        loss: loss / samples,
        top1: 100.0 * first / samples,
        topk: 100.0 * among / samples,
        samples: samples as u64,
    })
}

/// For each sample the number of other classes with at least the score of its own: 0 is correct. So a network that
/// scores all classes alike, or with NaN, is never correct.
fn places(scores: Tensor<2>, labels: Tensor<1, Int>) -> Vec<usize> {
    let [samples, classes] = scores.dims();
    let own = scores.clone().gather(1, labels.reshape([samples, 1]));
    let below = scores.lower(own.expand([samples, classes]));
    let below = below.int().sum_dim(1).into_data();
    below.iter::<i64>().map(|below| classes - 1 - below as usize).collect()
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use proptest::prelude::*;

    use super::*;

    fn scores(rows: &[Vec<f32>]) -> Tensor<2> {
        let data = burn::tensor::TensorData::new(rows.concat(), [rows.len(), rows[0].len()]);
        Tensor::from_data(data, &Device::flex())
    }

    fn labels(labels: &[i32]) -> Tensor<1, Int> {
        Tensor::from_data(labels, &Device::flex())
    }

    #[test]
    fn the_place_counts_the_classes_that_are_not_below() {
        let rows = [
            vec![3.0, 1.0, 2.0],
            vec![3.0, 1.0, 2.0],
            vec![0.0, 0.0, 0.0],
            vec![f32::NAN, 1.0, 2.0],
            vec![f32::NAN; 3],
        ];
        let places = places(scores(&rows), labels(&[0, 1, 2, 2, 0]));
        assert_eq!(places, [0, 2, 2, 1, 2]);
    }

    #[test]
    fn figures_are_over_samples_and_not_over_ranks() {
        let all = bonfire::spawn(3, |world| {
            let mut tally = Tally::default();
            match world.rank().get() {
                0 => tally.add(
                    scores(&[vec![1.0, 0.0, 0.5], vec![1.0, 0.0, 0.5]]),
                    labels(&[0, 2]),
                    0.5,
                    2,
                ),
                1 => tally.add(scores(&[vec![1.0, 0.0, 0.5]]), labels(&[1]), 2.0, 2),
                _ => {}
            }
            Ok::<_, TrainError>((tally.local(), tally.over_ranks(&world)?))
        });
        let all = all.unwrap();
        let expected = Figures { loss: 1.0, top1: 100.0 / 3.0, topk: 200.0 / 3.0, samples: 3 };
        for (_, over_ranks) in &all {
            assert_eq!(*over_ranks, Some(expected));
        }
        assert_eq!(all[2].0, None);
        assert_eq!(all[1].0.unwrap().topk, 0.0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        /// Sorting is the definition.
        #[test]
        fn places_are_those_of_a_sorted_row(
            rows in prop::collection::vec(prop::collection::vec(-9.0..9.0_f32, 6), 1..9),
            label in 0_usize..6,
        ) {
            let own = vec![label as i32; rows.len()];
            let found = places(scores(&rows), labels(&own));
            for (row, place) in rows.iter().zip(found) {
                let mut order: Vec<usize> = (0..6).collect();
                order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
                let distinct = row.iter().filter(|&&score| score == row[label]).count() == 1;
                prop_assume!(distinct);
                prop_assert_eq!(order[place], label);
            }
        }
    }
}
