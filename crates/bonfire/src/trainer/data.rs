//! The data of a training, and the position in it.

use std::fmt;
use std::sync::Arc;

use bonfire_data::{Loader, Prefetch, Prefetched, SamplerState};

use crate::error::{BoxError, Error, Result};

type Make<K, B> = Arc<dyn Fn(&K) -> Result<B, BoxError> + Send + Sync>;

/// The data from which batches are made.
pub struct Data<B> {
    pub(super) source: Source<B>,
}

pub(super) enum Source<B> {
    /// A number of samples, distributed to the ranks anew in each epoch.
    Samples(usize, Make<[usize], B>),
    /// The number of a forward pass.
    Passes(Make<u64, B>),
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
        let make = move |indices: &[usize]| batch(indices).map_err(Into::into);
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
        let make = move |pass: &u64| batch(*pass).map_err(Into::into);
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

    pub(super) fn batch(&self, indices: &[usize]) -> Result<B, BoxError> {
        match &self.source {
            Source::Samples(_, make) => make(indices),
            Source::Passes(_) => Err("data without end has no samples to evaluate".into()),
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
    Dealt {
        loader: Loader,
        make: Make<[usize], B>,
        prefetch: Prefetch,
        epoch: Option<Prefetched<B>>,
    },
    Passes(Make<u64, B>),
}

impl<B: Send + 'static> Feed<B> {
    /// The batch of a forward pass; `None` at the end of an epoch.
    pub(super) fn next(&mut self, pass: u64) -> Option<Result<(B, Fed), Error>> {
        match self {
            Self::Passes(make) => {
                let batch = make(&pass).map_err(Error::from_program);
                Some(batch.map(|batch| (batch, Fed::default())))
            }
            Self::Dealt { epoch, .. } => {
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
        if let Self::Dealt { loader, make, prefetch, epoch } = self {
            let make = Arc::clone(make);
            let batches = loader.next_epoch();
            *epoch = Some(batches.prefetch(*prefetch, move |indices: &[usize]| make(indices))?);
        }
        Ok(())
    }

    pub(super) fn epochs_begun(&self) -> u64 {
        match self {
            Self::Dealt { loader, .. } => loader.epoch(),
            Self::Passes(_) => 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Dealt { epoch, .. } => epoch.as_ref().is_none_or(|epoch| epoch.len() == 0),
            Self::Passes(_) => false,
        }
    }
}

impl<B> fmt::Debug for Feed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dealt { .. } => "Feed by epochs",
            Self::Passes(_) => "Feed without end",
        })
    }
}
