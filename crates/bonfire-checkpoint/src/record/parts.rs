//! Files of a model of which ranks have different parts: stages of a pipeline, or pieces of divided layers.
//!
//! The ranks that have the same part make one record of it on the first of them, as ever. These first ranks, one for
//! each part, then make one record of all: each tensor is complete, and has the name that it had before the model was
//! cut. So the result is the record of an uncut model. A tensor is sent when it is written, and no rank holds more
//! than one.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bonfire_collective::{Blocks, ProcessGroup, Rank, WorldSize};
use bonfire_plan::Cut;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Bytes, DType, Int, Tensor};
use burn_pack::{Scalar, Tensor as Packed};
use serde::{Deserialize, Serialize};

use super::gathers::{Gathers, Recorded, told_by_all};
use super::{Record, RecordError, WRITER, unusable, unwritable};
use crate::CheckpointError;

/// The tensors of an uncut model, by which a checkpoint knows them.
///
/// Stages and divided layers that are made of a model keep the identities of its parameters, so a part can be located
/// in it.
#[derive(Clone, Debug, Default)]
pub struct Whole {
    tensors: Vec<Named>,
    places: HashMap<u64, usize>,
}

#[derive(Clone, Debug)]
struct Named {
    id: ParamId,
    name: String,
    shape: Vec<usize>,
}

impl Whole {
    /// Lists the tensors of an uncut model; parameters that Burn has not initialised yet stay as they are.
    pub fn of<M: Module>(model: &M) -> Self {
        let mut lister = Lister::default();
        model.visit(&mut lister);
        lister.whole
    }

    /// Returns names and shapes, in the order of the model.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &[usize])> + Clone {
        let tensors = self.tensors.iter();
        tensors.map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice()))
    }

    /// Returns parameter identities, in the order of the model.
    pub fn ids(&self) -> impl Iterator<Item = ParamId> {
        self.tensors.iter().map(|tensor| tensor.id)
    }

    fn place(&self, id: u64) -> Option<usize> {
        self.places.get(&id).copied()
    }
}

#[derive(Default)]
struct Lister {
    path: Vec<String>,
    whole: Whole,
}

impl Lister {
    fn add(&mut self, id: ParamId, shape: &[usize]) {
        self.whole.places.insert(id.val(), self.whole.tensors.len());
        self.whole.tensors.push(Named {
            id,
            name: self.path.join("."),
            shape: shape.to_vec(),
        });
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
        self.add(param.id, &param.lazy_shape());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.id, &param.lazy_shape());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param.id, &param.lazy_shape());
    }
}

/// The way in which parameters are divided among ranks. Clones share their entries.
#[derive(Clone, Debug, Default)]
pub struct Cuts(Arc<Mutex<HashMap<ParamId, Cut>>>);

impl Cuts {
    /// Records how `parameter` is cut.
    pub fn note(&self, parameter: ParamId, cut: Cut) {
        let mut cuts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cuts.insert(parameter, cut);
    }

    /// Returns how `parameter` is cut, or `None` if it is not.
    pub fn get(&self, parameter: ParamId) -> Option<Cut> {
        let cuts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cuts.get(&parameter).copied()
    }
}

/// A rank's place among those that have pieces of the same parameters.
#[derive(Clone, Debug)]
pub struct Place {
    /// The number of these ranks.
    pub ranks: WorldSize,
    /// This rank, as one of them.
    pub rank: Rank,
    /// The cuts of the parameters that they divide.
    pub cuts: Cuts,
}

/// The parts of a model that ranks have.
#[derive(Clone, Debug)]
pub struct Parts {
    whole: Arc<Whole>,
    place: Place,
    replicas: ProcessGroup,
    /// The first ranks of all parts, on these.
    leads: Option<ProcessGroup>,
}

#[derive(Serialize, Deserialize)]
struct Piece {
    place: usize,
    /// The rest of its name, behind the identity of the parameter.
    rest: String,
    dtype: DType,
    shape: Vec<usize>,
    cut: Option<Cut>,
}

#[derive(Serialize, Deserialize)]
struct Told {
    /// Its rank among those that have pieces of the same tensors.
    tp: u32,
    pieces: Vec<Piece>,
    scalars: Vec<(usize, String, Scalar)>,
    metadata: Vec<(usize, String, String)>,
}

/// The names of tensors in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Their paths in a model, as Burn names them.
    Path,
    /// The identity of a parameter, and the optimizer's name of its state.
    Identity,
}

impl Parts {
    /// Joins the parts of all ranks of a group, where the ranks of `replicas` have the same as this one. Every rank
    /// must call it, with the same `whole`.
    ///
    /// # Errors
    /// [`RecordError::Collective`].
    #[track_caller]
    pub fn new(
        whole: Arc<Whole>,
        place: Place,
        replicas: ProcessGroup,
        all: &ProcessGroup,
    ) -> Result<Self, RecordError> {
        let is_lead = replicas.rank() == WRITER;
        Ok(Self {
            leads: all.split(is_lead.then_some(0), 0)?,
            whole,
            place,
            replicas,
        })
    }

    /// Makes a copy for work beside the training, with groups that have no other users. Every rank must call it.
    ///
    /// # Errors
    /// [`RecordError::Collective`].
    #[track_caller]
    pub fn beside(&self, all: &ProcessGroup) -> Result<Self, RecordError> {
        let replicas = self
            .replicas
            .split(Some(0), 0)?
            .expect("every rank has a color");
        let (whole, place) = (Arc::clone(&self.whole), self.place.clone());
        Self::new(whole, place, replicas, all)
    }

    /// Sets the timeouts to those of another group.
    #[must_use]
    pub fn with_timeout_of(mut self, group: &ProcessGroup) -> Self {
        self.replicas = self.replicas.with_timeout(group.timeout());
        self
    }

    /// Returns the tensors of the uncut model.
    pub fn whole(&self) -> &Whole {
        &self.whole
    }

    /// Returns the ranks that have the same part as this one.
    pub fn replicas(&self) -> &ProcessGroup {
        &self.replicas
    }

    /// Returns true if this rank's pieces are the first ones: values that all ranks share are taken from these.
    pub fn has_first_pieces(&self) -> bool {
        self.place.rank == Rank::new(0)
    }

    /// The name that a parameter of this rank has in the whole.
    ///
    /// # Errors
    /// [`CheckpointError::Unwritable`] if it is not there.
    pub fn name(&self, parameter: ParamId) -> Result<&str, CheckpointError> {
        let place = self
            .whole
            .place(parameter.val())
            .ok_or_else(|| unknown(&parameter.to_string()))?;
        Ok(&self.whole.tensors[place].name)
    }

    /// Returns this rank's part of a complete tensor of a file.
    ///
    /// # Errors
    /// [`CheckpointError::Unwritable`] for a tensor that has another shape than its parameter, which ranks divide.
    pub fn part(&self, parameter: ParamId, whole: Packed) -> Result<Packed, RecordError> {
        let entry = self
            .whole
            .place(parameter.val())
            .map(|place| &self.whole.tensors[place]);
        let (Some(entry), Some(cut)) = (entry, self.place.cuts.get(parameter)) else {
            return Ok(whole);
        };
        let found = dims(&whole);
        let (name, dtype, _, id, bytes) = whole.into_parts().map_err(unusable)?;
        if found != entry.shape {
            return Err(indivisible(&name, &found, &entry.shape).into());
        }
        let (ranks, rank) = (self.place.ranks, self.place.rank);
        let mut own = Vec::new();
        for run in cut.runs(&found, ranks, rank) {
            own.extend_from_slice(&bytes[run.start * dtype.size()..run.end * dtype.size()]);
        }
        let shape = cut.part(&found, ranks, rank);
        let own = Bytes::from_bytes_vec(own);
        Ok(Packed::new(name, dtype, shape, id, own))
    }

    /// Joins the records of all first ranks to that of the uncut model or its optimizer's state. All first ranks call
    /// it, and the first of them writes.
    ///
    /// # Errors
    /// [`RecordError::Collective`]; [`RecordError::Checkpoint`] for a tensor that the uncut model lacks, or that is
    /// not divided as its parameter is.
    ///
    /// # Panics
    /// On other ranks.
    #[track_caller]
    pub fn joined(
        &self,
        own: Record,
        naming: Naming,
    ) -> Result<Recorded<Record, RecordError>, RecordError> {
        let leads = self
            .leads
            .as_ref()
            .expect("a first rank joins")
            .with_timeout(self.replicas.timeout());
        let told = told_by_all(&leads, &self.told(&own, naming)?)?;
        let mut found: BTreeMap<(usize, &str), Vec<Holder<'_>>> = BTreeMap::new();
        for (lead, told) in leads.world_size().ranks().zip(&told) {
            for piece in &told.pieces {
                let key = (piece.place, piece.rest.as_str());
                let tp = Rank::new(told.tp);
                found
                    .entry(key)
                    .or_default()
                    .push(Holder { lead, tp, piece });
            }
        }
        let mut gathers = Gathers::new(&leads);
        let mut tensors = Vec::new();
        for ((place, rest), holders) in found {
            let name = self.name_in_file(place, rest, naming);
            let plan = self.plan(&name, place, &holders)?;
            let is_own = |tensor: &&Packed| self.key(tensor, naming) == Some((place, rest));
            let own = own.tensors.iter().find(is_own);
            // Ranks that have the same have it from one of them.
            let own = own
                .filter(|_| plan.runs.contains_key(&leads.rank()))
                .cloned();
            let id = self.whole.tensors[place].id.val();
            let leads = leads.clone();
            let (dtype, shape) = (plan.dtype, plan.shape.clone());
            tensors.push(gathers.add(name, dtype, shape, id, move || {
                let bytes = match &own {
                    Some(own) => own.to_bytes().map_err(unusable)?.to_vec(),
                    None => Vec::new(),
                };
                let blocks = leads.gather_v::<u8>(&bytes, WRITER)?;
                Ok(blocks.map_or(Vec::new(), |blocks| plan.put_together(&blocks)))
            }));
        }
        let mut content = Record {
            tensors,
            scalars: own.scalars,
            metadata: own.metadata,
        };
        for told in told {
            for (place, rest, value) in told.scalars {
                let name = self.name_in_file(place, &rest, naming);
                content.scalars.insert(name, value);
            }
            for (place, rest, value) in told.metadata {
                let name = self.name_in_file(place, &rest, naming);
                content.metadata.insert(name, value);
            }
        }
        Ok(Recorded { content, gathers })
    }

    fn told(&self, own: &Record, naming: Naming) -> Result<Told, RecordError> {
        let piece = |tensor: &Packed| {
            let (place, rest) = self
                .key(tensor, naming)
                .ok_or_else(|| unknown(&tensor.name))?;
            Ok(Piece {
                place,
                rest: rest.to_owned(),
                dtype: tensor.dtype,
                shape: dims(tensor),
                cut: self.place.cuts.get(self.whole.tensors[place].id),
            })
        };
        let pieces = own.tensors.iter().map(piece);
        let scalars = own.scalars.iter().filter_map(|(name, value)| {
            let (place, rest) = self.split(name)?;
            Some((place, rest.to_owned(), *value))
        });
        let metadata = own.metadata.iter().filter_map(|(name, value)| {
            let (place, rest) = self.split(name)?;
            Some((place, rest.to_owned(), value.clone()))
        });
        Ok(Told {
            tp: self.place.rank.get(),
            pieces: pieces.collect::<Result<_, CheckpointError>>()?,
            scalars: scalars.collect(),
            metadata: metadata.collect(),
        })
    }

    /// The parameter of a tensor, and the rest of its name behind the identity.
    fn key<'a>(&self, tensor: &'a Packed, naming: Naming) -> Option<(usize, &'a str)> {
        match naming {
            Naming::Path => Some((self.whole.place(tensor.param_id?)?, "")),
            Naming::Identity => self.split(&tensor.name),
        }
    }

    fn split<'a>(&self, name: &'a str) -> Option<(usize, &'a str)> {
        let (id, rest) = name.split_at(name.find('.').unwrap_or(name.len()));
        Some((self.whole.place(id.parse().ok()?)?, rest))
    }

    fn name_in_file(&self, place: usize, rest: &str, naming: Naming) -> String {
        let Named { id, name, .. } = &self.whole.tensors[place];
        match naming {
            Naming::Path => name.clone(),
            Naming::Identity => format!("{}{rest}", id.val()),
        }
    }

    /// The assembly of a tensor. All first ranks compute the same.
    fn plan(&self, name: &str, place: usize, holders: &[Holder<'_>]) -> Result<Plan, RecordError> {
        let Holder { lead, piece, .. } = holders[0];
        let dtype = piece.dtype;
        let Some(cut) = piece.cut else {
            let all = 0..piece.shape.iter().product();
            return Ok(Plan {
                dtype,
                shape: piece.shape.clone(),
                runs: BTreeMap::from([(lead, vec![all])]),
            });
        };
        let (shape, ranks) = (&self.whole.tensors[place].shape, self.place.ranks);
        let mut runs = BTreeMap::new();
        for Holder { lead, tp, piece } in holders {
            if piece.shape != cut.part(shape, ranks, *tp) {
                return Err(indivisible(name, &piece.shape, shape).into());
            }
            runs.insert(*lead, cut.runs(shape, ranks, *tp).collect());
        }
        if runs.len() != ranks.len() {
            let cause = format!("{} of {ranks} ranks have their part of it", runs.len());
            return Err(unwritable(name, cause).into());
        }
        let shape = shape.clone();
        Ok(Plan { dtype, shape, runs })
    }
}

/// A first rank that has a tensor, or a piece of it.
struct Holder<'a> {
    lead: Rank,
    tp: Rank,
    piece: &'a Piece,
}

struct Plan {
    dtype: DType,
    shape: Vec<usize>,
    /// The elements that each rank sends, of those that are requested.
    runs: BTreeMap<Rank, Vec<Range<usize>>>,
}

impl Plan {
    fn put_together(&self, blocks: &Blocks<u8>) -> Vec<u8> {
        let size = self.dtype.size();
        let mut whole = vec![0; self.shape.iter().product::<usize>() * size];
        for (lead, runs) in &self.runs {
            let mut rest = blocks.of(*lead);
            for run in runs {
                let (own, behind) = rest.split_at(run.len() * size);
                whole[run.start * size..run.end * size].copy_from_slice(own);
                rest = behind;
            }
        }
        whole
    }
}

fn unknown(name: &str) -> CheckpointError {
    unwritable(
        &format!("parameter {name}"),
        "the uncut model of the checkpoints has no such parameter; take Whole::of of the model that the parts \
         are made of",
    )
}

fn dims(tensor: &Packed) -> Vec<usize> {
    tensor.shape.iter().copied().collect()
}

/// A tensor of a divided parameter that is not divided as the parameter is.
fn indivisible(name: &str, found: &[usize], shape: &[usize]) -> CheckpointError {
    unwritable(
        name,
        format!(
            "it has shape {found:?}, and belongs to a parameter of shape {shape:?} that ranks divide; take an \
             optimizer whose state has the shape of its parameters"
        ),
    )
}
