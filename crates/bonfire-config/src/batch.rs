//! The number of samples in a step.

use crate::error::ConfigError;

/// Batch sizes as a file gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchSizes {
    /// Samples of a step, on all ranks.
    pub train: Option<u64>,
    /// Samples of a forward pass, on one rank.
    pub micro: Option<u64>,
    /// Forward passes of a step, on one rank.
    pub accumulation: Option<u64>,
}

/// All three sizes: `train = micro * accumulation * ranks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    /// Samples of a step, on all ranks.
    pub train: u64,
    /// Samples of a forward pass, on one rank.
    pub micro: u64,
    /// Forward passes of a step, on one rank.
    pub accumulation: u64,
}

impl BatchSizes {
    /// Resolves the sizes on `ranks` ranks. A missing size follows from the rest; the total alone means one forward
    /// pass a step.
    ///
    /// # Errors
    /// [`ConfigError::Missing`] if neither the total nor the micro-batch is there; [`ConfigError::Batch`] if they do
    /// not multiply, or do not divide without a remainder, which DeepSpeed reports as three unequal numbers, or are
    /// too many to count.
    pub fn resolve(self, ranks: u64) -> Result<Batches, ConfigError> {
        let wrong =
            |cause: String| ConfigError::Batch { path: "train_batch_size".to_owned(), cause };
        let times = |one: u64, other: u64| {
            let product = one.checked_mul(other);
            product.ok_or_else(|| wrong(format!("{one} x {other} samples are too many to count")))
        };
        let divided = |total: u64, by: u64, what: &str| {
            let quotient = total.checked_div(by).filter(|part| part * by == total);
            let cause = || format!("{total} samples do not divide by {by}, which is {what}");
            quotient.ok_or_else(|| wrong(cause()))
        };
        let (train, micro, accumulation) = match (self.train, self.micro, self.accumulation) {
            (Some(train), Some(micro), Some(accumulation)) => (train, micro, accumulation),
            (Some(train), Some(micro), None) => {
                let what = format!("{micro} on each of {ranks} ranks");
                let by = times(micro, ranks)?;
                (train, micro, divided(train, by, &what)?)
            }
            (Some(train), None, accumulation) => {
                let accumulation = accumulation.unwrap_or(1);
                let what = format!("{accumulation} forward passes on each of {ranks} ranks");
                let micro = divided(train, times(accumulation, ranks)?, &what)?;
                (train, micro, accumulation)
            }
            (None, Some(micro), accumulation) => {
                let accumulation = accumulation.unwrap_or(1);
                let train = times(times(micro, accumulation)?, ranks)?;
                (train, micro, accumulation)
            }
            (None, None, _) => {
                return Err(ConfigError::Missing {
                    path: "train_batch_size".to_owned(),
                    advice: "give it, or train_micro_batch_size_per_gpu".to_owned(),
                });
            }
        };
        let product = times(times(micro, accumulation)?, ranks)?;
        if train != product || micro == 0 {
            return Err(wrong(format!(
                "{train} is not {micro} samples x {accumulation} forward passes x {ranks} ranks = {product}"
            )));
        }
        Ok(Batches { train, micro, accumulation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(train: u64, micro: u64, accumulation: u64) -> Result<[u64; 3], String> {
        let some = |size| (size > 0).then_some(size);
        let sizes =
            BatchSizes { train: some(train), micro: some(micro), accumulation: some(accumulation) };
        let found = sizes.resolve(4).map_err(|error| error.to_string())?;
        Ok([found.train, found.micro, found.accumulation])
    }

    #[test]
    fn what_is_missing_follows() {
        assert_eq!(sizes(64, 8, 2), Ok([64, 8, 2]));
        assert_eq!(sizes(64, 8, 0), Ok([64, 8, 2]));
        assert_eq!(sizes(64, 0, 2), Ok([64, 8, 2]));
        assert_eq!(sizes(0, 8, 2), Ok([64, 8, 2]));
        assert_eq!(sizes(64, 0, 0), Ok([64, 16, 1]));
        assert_eq!(sizes(0, 8, 0), Ok([32, 8, 1]));
    }

    #[test]
    fn what_does_not_go_together_is_reported_with_its_numbers() {
        assert!(sizes(0, 0, 2).unwrap_err().contains("missing"));
        let assert_error = |result: Result<_, String>, part: &str| {
            let error = result.unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        assert_error(sizes(64, 8, 3), "64 is not 8 samples x 3 forward passes x 4 ranks = 96");
        assert_error(sizes(30, 8, 0), "30 samples do not divide by 32");
        assert_error(sizes(66, 0, 0), "66 samples do not divide by 4");
        assert_error(sizes(2, 0, 1), "2 samples do not divide by 4");
        for (train, micro, accumulation) in [(0, u64::MAX, 2), (8, u64::MAX, 0), (8, 0, u64::MAX)] {
            assert_error(sizes(train, micro, accumulation), "too many to count");
        }
        assert_error(sizes(8, u64::MAX / 2, u64::MAX / 2), "too many to count");
    }
}
