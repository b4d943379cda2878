//! What ranks tell each other while one of them reads or writes files.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bonfire_collective::{ProcessGroup, Rank};
use burn::tensor::{Bytes, DType};
use burn_pack::Tensor as Packed;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::WRITER;
use crate::TrainError;

/// What all ranks tell, in rank order.
#[track_caller]
pub(super) fn told_by_all<T: Serialize + DeserializeOwned>(
    group: &ProcessGroup,
    own: &T,
) -> Result<Vec<T>, TrainError> {
    let blocks = group.all_gather_v::<u8>(&encoded(own))?;
    let ranks = group.world_size().ranks();
    ranks
        .zip(blocks.iter())
        .map(|(rank, bytes)| decoded(rank, bytes))
        .collect()
}

fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("plain data can always be written");
    bytes
}

fn decoded<T: DeserializeOwned>(rank: Rank, bytes: &[u8]) -> Result<T, TrainError> {
    ciborium::from_reader(bytes).map_err(|cause| TrainError::OtherProgram {
        rank,
        cause: cause.to_string(),
    })
}

/// Gives everybody what the writer has.
#[track_caller]
pub(crate) fn announced<T: Serialize + DeserializeOwned>(
    group: &ProcessGroup,
    own: &T,
) -> Result<T, TrainError> {
    let mut bytes = match group.rank() {
        WRITER => encoded(own),
        _ => Vec::new(),
    };
    let mut len = [bytes.len() as u64];
    group.broadcast(&mut len, WRITER)?;
    bytes.resize(len[0] as usize, 0);
    group.broadcast(&mut bytes, WRITER)?;
    decoded(WRITER, &bytes)
}

/// Something for files, whose tensors the writer gathers while it writes. It is as it was when this was made,
/// whatever becomes of the training.
pub(crate) struct Recorded<T> {
    pub(super) content: T,
    pub(super) gathers: Gathers,
}

impl<T> Recorded<T> {
    /// The same in another form.
    pub(crate) fn map<U>(self, form: impl FnOnce(T) -> U) -> Recorded<U> {
        Recorded {
            content: form(self.content),
            gathers: self.gathers,
        }
    }

    /// Writes it, on the writer; the others give it what it asks for. Every rank must call it.
    pub(crate) fn write<R>(self, write: impl FnOnce(T) -> R) -> Result<Option<R>, TrainError> {
        let is_writer = self.gathers.group.rank() == WRITER;
        let written = is_writer.then(|| write(self.content));
        self.gathers.finish()?;
        Ok(written)
    }
}

/// Tensors that are gathered on the writer, each when it asks for it.
pub(super) struct Gathers {
    group: ProcessGroup,
    /// The same on every rank.
    gathers: Vec<Arc<Gather>>,
    /// Why the writer did not get one.
    failure: Arc<Mutex<Option<TrainError>>>,
}

type Gather = dyn Fn() -> Result<Vec<u8>, TrainError> + Send + Sync;

/// What the writer asks for when it has all that it wants.
const NO_MORE: u64 = u64::MAX;

impl Gathers {
    /// None yet. `group` waits as long as the writer may write one.
    pub(super) fn new(group: &ProcessGroup) -> Self {
        Self {
            group: group.clone(),
            gathers: Vec::new(),
            failure: Arc::default(),
        }
    }

    /// One more, of this name, type, shape and parameter.
    pub(super) fn add(
        &mut self,
        (name, dtype, shape, id): (String, DType, Vec<usize>, u64),
        gather: impl Fn() -> Result<Vec<u8>, TrainError> + Send + Sync + 'static,
    ) -> Packed {
        let len = shape.iter().product::<usize>() * dtype.size();
        let index = self.gathers.len() as u64;
        let gather: Arc<Gather> = Arc::new(gather);
        self.gathers.push(Arc::clone(&gather));
        let (group, failure) = (self.group.clone(), Arc::clone(&self.failure));
        let provider = move || {
            let gathered = wanted(&group, index).and_then(|_| gather());
            gathered.map(Bytes::from_bytes_vec).map_err(|error| {
                let cause = error.to_string();
                lock(&failure).get_or_insert(error);
                burn_pack::Error::IoError(cause)
            })
        };
        Packed::deferred(name, dtype, shape, Some(id), len, provider)
    }

    /// On the writer when it has written, on the others instead.
    pub(super) fn finish(self) -> Result<(), TrainError> {
        if self.group.rank() == WRITER {
            let failure = lock(&self.failure).take();
            failure.map_or(Ok(()), Err)?;
            return wanted(&self.group, NO_MORE).map(drop);
        }
        loop {
            match wanted(&self.group, NO_MORE)? {
                NO_MORE => return Ok(()),
                index => drop(self.gathers[index as usize]()?),
            }
        }
    }
}

/// Which one the writer asks for.
fn wanted(group: &ProcessGroup, own: u64) -> Result<u64, TrainError> {
    let mut index = [own];
    group.broadcast(&mut index, WRITER)?;
    Ok(index[0])
}

fn lock(failure: &Mutex<Option<TrainError>>) -> MutexGuard<'_, Option<TrainError>> {
    failure.lock().unwrap_or_else(PoisonError::into_inner)
}
