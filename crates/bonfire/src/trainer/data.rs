//! The data of a training, and the position in it.

use std::fmt;
use std::sync::Arc;

use bonfire_data::{Loader, Prefetch, Prefetched, SamplerState};

use crate::error::{BoxError, Error, Result};

/// Makes a batch of an epoch and the indices of its samples.
pub(super) type MakeBatch<B> = Arc<dyn Fn(u64, &[usize]) -> Result<B, BoxError> + Send + Sync>;
type MakePass<B> = Arc<dyn Fn(u64) -> Result<B, BoxError> + Send + Sync>;

/// The data from which batches are made.
pub struct Data<B> {
    pub(super) source: Source<B>,
}

pub(super) enum Source<B> {
    /// A number of samples, distributed to the ranks again in each epoch.
    Samples(usize, MakeBatch<B>),
    /// The number of a forward pass.
    Passes(MakePass<B>),
}

impl<B> Data<B> {
    /// Makes a data set of `len` samples, which each epoch distributes to the ranks. `batch` makes a batch of the
    /// samples with these indices, on a separate thread and ahead of time, and may put it on the rank's device.
    pub fn new(len: usize, batch: impl Fn(&[usize]) -> B + Send + Sync + 'static) -> Self {
        Self::try_new(len, move |indices: &[usize]| Ok::<_, BoxError>(batch(indices)))
    }

    /// Makes a data set whose `batch` may fail, which ends the training on all ranks.
    pub fn try_new<E: Into<BoxError>>(
        len: usize,
        batch: impl Fn(&[usize]) -> Result<B, E> + Send + Sync + 'static,
    ) -> Self {
        Self::try_by_epoch(len, move |_, indices: &[usize]| batch(indices))
    }

    /// Makes a data set whose `batch` takes the epoch, counted from 0, besides the indices: for random transforms that
    /// differ from epoch to epoch. In an evaluation the epoch is 0.
    pub fn try_by_epoch<E: Into<BoxError>>(
        len: usize,
        batch: impl Fn(u64, &[usize]) -> Result<B, E> + Send + Sync + 'static,
    ) -> Self {
        let make = move |epoch: u64, indices: &[usize]| batch(epoch, indices).map_err(Into::into);
        Self { source: Source::Samples(len, Arc::new(make)) }
    }

    /// Makes an unbounded data source: `batch` makes this rank's batch of a forward pass, which are counted from 0.
    /// The batch must depend on that number and the rank alone, so that a training can continue from a checkpoint:
    /// after N steps with pass N x `batch.accumulation`. It needs `steps` in the configuration.
    pub fn stream(batch: impl Fn(u64) -> B + Send + Sync + 'static) -> Self {
        Self::try_stream(move |pass| Ok::<_, BoxError>(batch(pass)))
    }

    /// Makes an unbounded source whose `batch` may fail, which ends the training on all ranks.
    pub fn try_stream<E: Into<BoxError>>(
        batch: impl Fn(u64) -> Result<B, E> + Send + Sync + 'static,
    ) -> Self {
        let make = move |pass| batch(pass).map_err(Into::into);
        Self { source: Source::Passes(Arc::new(make)) }
    }

    /// Returns the number of samples; 0 for an unbounded source.
    pub fn len(&self) -> usize {
        match &self.source {
            Source::Samples(len, _) => *len,
            Source::Passes(_) => 0,
        }
    }

    /// Returns true if there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns what makes batches for an evaluation.
    pub(super) fn samples(&self) -> Result<&MakeBatch<B>> {
        match &self.source {
            Source::Samples(_, make) => Ok(make),
            Source::Passes(_) => {
                let cause = "data without end has no samples to evaluate; use Data::new";
                Err(Error::Usage(cause.to_owned()))
            }
        }
    }
}

impl<B> fmt::Debug for Data<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Data of {} samples", self.len())
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Fed {
    pub(super) state: Option<SamplerState>,
    /// The samples of the batch, if they are counted.
    pub(super) samples: Option<usize>,
    pub(super) is_last: bool,
}

#[allow(clippy::large_enum_variant)] // there is one of them
pub(super) enum Feed<B> {
    Epochs { loader: Loader, make: MakeBatch<B>, prefetch: Prefetch, epoch: Option<Prefetched<B>> },
    Passes(MakePass<B>),
}

impl<B: Send + 'static> Feed<B> {
    /// The batch of a forward pass; `None` at the end of an epoch.
    pub(super) fn next(&mut self, pass: u64) -> Option<Result<(B, Fed), Error>> {
        match self {
            Self::Passes(make) => {
                let batch = make(pass).map_err(Error::from_program);
                Some(batch.map(|batch| (batch, Fed::default())))
            }
            Self::Epochs { epoch, .. } => {
                let epoch = epoch.as_mut()?;
                let prepared = epoch.next()?.map_err(Error::from);
                let is_last = epoch.len() == 0;
                Some(prepared.map(|prepared| {
                    let fed = Fed {
                        state: Some(prepared.state),
                        samples: Some(prepared.indices.len()),
                        is_last,
                    };
                    (prepared.batch, fed)
                }))
            }
        }
    }

    pub(super) fn next_epoch(&mut self) -> Result<()> {
        if let Self::Epochs { loader, make, prefetch, epoch } = self {
            let (make, number) = (Arc::clone(make), loader.epoch());
            let prepare = move |indices: &[usize]| make(number, indices);
            *epoch = Some(loader.next_epoch().prefetch(*prefetch, prepare)?);
        }
        Ok(())
    }

    pub(super) fn epochs_begun(&self) -> u64 {
        match self {
            Self::Epochs { loader, .. } => loader.epoch(),
            Self::Passes(_) => 0,
        }
    }

    /// The batches that are left of the epoch that has begun, if one has.
    pub(super) fn batches_left(&self) -> usize {
        match self {
            Self::Epochs { epoch, .. } => epoch.as_ref().map_or(0, |epoch| epoch.len()),
            Self::Passes(_) => 0,
        }
    }
}
