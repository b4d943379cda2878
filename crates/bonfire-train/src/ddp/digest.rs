//! A hash of a model's complete state, to compare replicas and trainings.

use std::collections::HashSet;
use std::fmt;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor, TensorData};
use ring::digest::{self, Context, SHA256};

use super::Ddp;
use super::gather::Gatherer;
use crate::parameters::ModulePath;
use crate::parameters::buffers::Attendance;
use crate::{BufferSync, TrainError};

/// The SHA-256 of a model's tensors: parameters, frozen ones and running state. Written as 64 hexadecimal digits.
///
/// It covers one record for each tensor, in the order of their paths: the path, the type and the shape as text with a
/// line end each, and the SHA-256 of the elements in little-endian order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Computes the digest of a model. It waits for the device.
    ///
    /// # Errors
    /// [`TrainError::UnreadableTensor`].
    pub fn of<M: Module>(model: &M) -> Result<Self, TrainError> {
        Self::listed(Lister::default(), model)
    }

    /// Computes the digest. One tensor is in host memory at a time.
    fn listed<M: Module>(mut lister: Lister<'_>, model: &M) -> Result<Self, TrainError> {
        // Burn's running state holds the last update back until a mode changes.
        model.valid().visit(&mut lister);
        if let Some(error) = lister.error {
            return Err(error);
        }
        lister.records.sort_by(|(one, _), (other, _)| one.cmp(other));
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
    /// Computes the digest of the model, which is the same on every rank and in every placement. Every rank must call
    /// it. It waits for the device. Where parameters are sharded, each rank needs the memory of one complete parameter
    /// for it.
    ///
    /// In the middle of a step of several batches, the ranks agree on buffers first. Under [`BufferSync::Local`] buffers
    /// are left out: they are each rank's own.
    ///
    /// # Errors
    /// [`TrainError::ReplicasDiffer`] on all ranks if it differs; [`TrainError::UnreadableTensor`];
    /// [`TrainError::Collective`].
    #[track_caller]
    pub fn digest(&mut self) -> Result<Digest, TrainError> {
        let own = self.call("Ddp::digest", |ddp| {
            ddp.wait()?;
            if !ddp.micro_batches.is_empty() {
                ddp.agree_on_buffers(Attendance::All)?;
            }
            let is_local = ddp.config.buffers == BufferSync::Local;
            let lister = Lister {
                gatherer: ddp.gatherer.as_deref(),
                skipped: is_local.then(|| ddp.buffers.ids()),
                ..Lister::default()
            };
            Digest::listed(lister, ddp.module())
        })?;
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
struct Lister<'a> {
    /// Gathers the rest of parameters of which this rank has rows.
    gatherer: Option<&'a Gatherer>,
    skipped: Option<&'a HashSet<ParamId>>,
    path: ModulePath,
    records: Vec<(String, digest::Digest)>,
    error: Option<TrainError>,
}

impl Lister<'_> {
    fn list(&mut self, shape: &[usize], data: Result<TensorData, impl fmt::Debug>) {
        let path = self.path.to_string();
        match data {
            Ok(data) => {
                let dtype = format!("{:?}", data.dtype()).to_lowercase();
                let text = format!("{path}\n{dtype}\n{shape:?}\n");
                let elements = digest::digest(&SHA256, data.as_bytes());
                self.records.push((text, elements));
            }
            Err(cause) => {
                let error = TrainError::unreadable(format!("parameter {path}"))(cause);
                self.error.get_or_insert(error);
            }
        }
    }
}

impl ModuleVisitor for Lister<'_> {
    crate::parameters::follow_path!(path);

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let is_skipped = self.skipped.is_some_and(|ids| ids.contains(&param.id));
        if is_skipped || self.error.is_some() {
            return;
        }
        // A visitor is given this rank's rows.
        let rows = param.val();
        let cut = self.gatherer.and_then(|gatherer| Some((gatherer, gatherer.index_of(param.id)?)));
        let whole = match cut {
            Some((gatherer, index)) => gatherer.untracked(index, rows),
            None => Ok(rows),
        };
        let tensor = match whole {
            Ok(tensor) => tensor,
            Err(error) => return self.error = Some(error),
        };
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
