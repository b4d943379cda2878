//! Values that ranks exchange while one of them writes a file.

use std::fmt::Display;
use std::sync::Arc;

use bonfire_collective::{CollectiveError, Mutex, ProcessGroup, Rank};
use burn::tensor::{Bytes, DType};
use burn_pack::Tensor as Packed;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{RecordError, WRITER};

/// All-gathers a serialized value of each rank, in rank order.
///
/// # Errors
/// [`RecordError::Collective`]; [`RecordError::OtherProgram`].
#[track_caller]
pub fn all_gather_values<T: Serialize + DeserializeOwned>(
    group: &ProcessGroup,
    own: &T,
) -> Result<Vec<T>, RecordError> {
    let blocks = group.all_gather_v::<u8>(&encoded(own))?;
    let ranks = group.world_size().ranks();
    ranks.zip(blocks.iter()).map(|(rank, bytes)| decoded(rank, bytes)).collect()
}

fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("plain data can always be written");
    bytes
}

fn decoded<T: DeserializeOwned>(rank: Rank, bytes: &[u8]) -> Result<T, RecordError> {
    ciborium::from_reader(bytes)
        .map_err(|cause| RecordError::OtherProgram { rank, cause: cause.to_string() })
}

/// Broadcasts the writer's serialized value to all ranks.
///
/// # Errors
/// [`RecordError::Collective`]; [`RecordError::OtherProgram`].
#[track_caller]
pub fn broadcast_value<T: Serialize + DeserializeOwned>(
    group: &ProcessGroup,
    own: &T,
) -> Result<T, RecordError> {
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

/// Content for a file, whose tensors the writer gathers while it writes. Later steps of the training do not change it.
pub struct Snapshot<T, E> {
    /// The content that the writer writes.
    pub content: T,
    /// The tensors of the content that are gathered.
    pub gathers: Gathers<E>,
}

impl<T, E: From<CollectiveError> + Display + Send + 'static> Snapshot<T, E> {
    /// Converts the content, with the same tensors to gather.
    pub fn map<U>(self, form: impl FnOnce(T) -> U) -> Snapshot<U, E> {
        Snapshot { content: form(self.content), gathers: self.gathers }
    }

    /// Writes it, on the writer; the others send the tensors that it requests. Every rank must call it.
    ///
    /// # Errors
    /// The error of a tensor that did not arrive.
    pub fn write(self, write: impl FnOnce(T)) -> Result<(), E> {
        if self.gathers.group.rank() == WRITER {
            write(self.content);
        }
        self.gathers.finish()
    }
}

/// Tensors that the writer gathers, each on request.
pub struct Gathers<E> {
    group: ProcessGroup,
    gathers: Vec<Arc<Gather<E>>>,
    /// The error of a tensor that the writer did not get.
    failure: Arc<Mutex<Option<E>>>,
}

type Gather<E> = dyn Fn() -> Result<Vec<u8>, E> + Send + Sync;

/// Sent by the writer when it needs no more tensors.
const NO_MORE: u64 = u64::MAX;

impl<E: From<CollectiveError> + Display + Send + 'static> Gathers<E> {
    /// Makes an empty list. `group` waits as long as the writer may write one tensor.
    pub fn new(group: &ProcessGroup) -> Self {
        Self { group: group.clone(), gathers: Vec::new(), failure: Arc::default() }
    }

    /// Adds a tensor of this name, type, shape and parameter. All ranks add the same in the same order.
    pub fn add(
        &mut self,
        name: String,
        dtype: DType,
        shape: Vec<usize>,
        id: u64,
        gather: impl Fn() -> Result<Vec<u8>, E> + Send + Sync + 'static,
    ) -> Packed {
        let len = shape.iter().product::<usize>() * dtype.size();
        let index = self.gathers.len() as u64;
        let gather: Arc<Gather<E>> = Arc::new(gather);
        self.gathers.push(Arc::clone(&gather));
        let (group, failure) = (self.group.clone(), Arc::clone(&self.failure));
        let provider = move || {
            let requested = request(&group, index).map_err(E::from);
            let gathered = requested.and_then(|_| gather());
            gathered.map(Bytes::from_bytes_vec).map_err(|error| {
                let cause = error.to_string();
                failure.lock().get_or_insert(error);
                burn_pack::Error::IoError(cause)
            })
        };
        Packed::deferred(name, dtype, shape, Some(id), len, provider)
    }

    /// Called on the writer when it has written, on the others instead of writing.
    fn finish(self) -> Result<(), E> {
        if self.group.rank() == WRITER {
            let failure = self.failure.lock().take();
            failure.map_or(Ok(()), Err)?;
            request(&self.group, NO_MORE)?;
            return Ok(());
        }
        loop {
            match request(&self.group, NO_MORE)? {
                NO_MORE => return Ok(()),
                index => drop(self.gathers[index as usize]()?),
            }
        }
    }
}

/// Broadcasts the number of the tensor that the writer needs next.
fn request(group: &ProcessGroup, own: u64) -> Result<u64, CollectiveError> {
    let mut index = [own];
    group.broadcast(&mut index, WRITER)?;
    Ok(index[0])
}
