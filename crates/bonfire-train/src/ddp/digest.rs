//! A hash of all that a model holds, to tell replicas and trainings from each other.

use std::fmt;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Int, Tensor, TensorData};
use ring::digest::{self, Context, SHA256};

use super::Ddp;
use crate::TrainError;

/// The SHA-256 of a model's tensors: parameters, frozen ones and running state. Written as 64
/// hexadecimal digits.
///
/// It is that of one record for each tensor, in the order of their paths: the path, the type and the
/// shape as text with a line end each, and the SHA-256 of the elements in little-endian order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// That of a model. It waits for the device.
    ///
    /// # Errors
    /// [`TrainError::UnreadableTensor`].
    pub fn of<M: Module>(model: &M) -> Result<Self, TrainError> {
        let mut lister = Lister::default();
        // Burn's running state holds the last update back until a mode changes.
        model.valid().visit(&mut lister);
        if let Some(error) = lister.error {
            return Err(error);
        }
        lister
            .records
            .sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut hash = Context::new(&SHA256);
        for (text, elements) in lister.records {
            hash.update(text.as_bytes());
            hash.update(elements.as_ref());
        }
        let bytes = hash.finish().as_ref().try_into();
        Ok(Self(bytes.expect("SHA-256 has 32 bytes")))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<M: Module> Ddp<M> {
    /// The digest of the model, which is the same on every rank. Every rank must call it. It waits for
    /// the device.
    ///
    /// # Errors
    /// [`TrainError::ReplicasDiffer`] on all ranks if it is not the same;
    /// [`TrainError::UnreadableTensor`]; [`TrainError::Collective`].
    #[track_caller]
    pub fn digest(&mut self) -> Result<Digest, TrainError> {
        let own = match self.gatherer {
            Some(_) => Digest::of(&self.whole()?),
            None => Digest::of(self.module()),
        };
        let own = own.inspect_err(|error| self.group.abort(&error.to_string()))?;
        let all: Vec<u8> = self.group.all_gather(&own.0)?;
        let mut digests = all.chunks_exact(own.0.len());
        let first = digests.next().expect("this rank is among them");
        for (rank, digest) in self.group.world_size().ranks().skip(1).zip(digests) {
            if digest != first {
                return Err(TrainError::ReplicasDiffer { rank });
            }
        }
        Ok(own)
    }
}

#[derive(Default)]
struct Lister {
    path: Vec<String>,
    records: Vec<(String, digest::Digest)>,
    error: Option<TrainError>,
}

impl Lister {
    fn list(&mut self, shape: &[usize], data: Result<TensorData, impl fmt::Debug>) {
        let path = self.path.join(".");
        match data {
            Ok(data) => {
                let dtype = format!("{:?}", data.dtype()).to_lowercase();
                let text = format!("{path}\n{dtype}\n{shape:?}\n");
                let elements = digest::digest(&SHA256, data.as_bytes());
                self.records.push((text, elements));
            }
            Err(cause) => {
                self.error.get_or_insert(TrainError::UnreadableTensor {
                    what: format!("parameter {path}"),
                    cause: format!("{cause:?}"),
                });
            }
        }
    }
}

impl ModuleVisitor for Lister {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        self.list(&tensor.dims(), tensor.try_into_data());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let tensor = param.val();
        self.list(&tensor.dims(), tensor.try_into_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let tensor = param.val();
        self.list(&tensor.dims(), tensor.try_into_data());
    }
}
