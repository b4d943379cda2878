//! Files of a model of which ranks have different parts: stages of a pipeline, or pieces of divided layers.
//!
//! The ranks that have the same part make one record of it on the first of them, as ever. These first ranks, one for each
//! part, then make one record of all: each tensor is under the name that it had before the model was cut, and whole.
//! So it is the record of a model that was never cut. A tensor travels when it is written, and no rank has more than one.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bonfire_checkpoint::CheckpointError;
use bonfire_collective::{Blocks, ProcessGroup, Rank};
use bonfire_plan::{Axis, Cut};
use burn::module::{Module, ParamId};
use burn::tensor::{Bytes, DType};
use burn_pack::{Scalar, Tensor as Packed};
use serde::{Deserialize, Serialize};

use super::gathers::{Gathers, Recorded, told_by_all};
use super::{Record, WRITER, unusable, unwritable};
use crate::parameters::fingerprint::{self, Entry, Fingerprint};
use crate::parameters::replicate::outline;
use crate::{DdpConfig, Mesh, TrainError, World};

/// The tensors of a model before it is cut among ranks: what a checkpoint knows them by.
///
/// Stages and divided layers that are made of a model keep the identities of its parameters, so a part is found in
/// the whole again.
#[derive(Clone, Debug)]
pub struct Whole {
    tensors: Arc<Vec<(ParamId, Entry)>>,
    places: Arc<HashMap<u64, usize>>,
}

impl Whole {
    /// Those of a model. It may not have been cut yet; parameters that Burn has not initialised yet stay as they are.
    pub fn of<M: Module>(model: &M) -> Self {
        let tensors = outline(model);
        let places = tensors.iter().enumerate();
        Self {
            places: Arc::new(places.map(|(place, (id, _))| (id.val(), place)).collect()),
            tensors: Arc::new(tensors),
        }
    }

    /// Names and shapes, in their order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.tensors.iter().map(|(_, entry)| entry)
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Entry> {
        Some(&self.tensors[self.place(id)?].1)
    }

    fn place(&self, id: u64) -> Option<usize> {
        self.places.get(&id).copied()
    }
}

/// Which parts ranks have of a model.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) whole: Whole,
    tp: World,
    /// The ranks that have the same part as this one.
    pub(crate) replicas: ProcessGroup,
    /// The first ranks of all parts, on these.
    leads: Option<ProcessGroup>,
}

/// A tensor that a first rank has, of the model or of an optimizer's state.
#[derive(Serialize, Deserialize)]
struct Piece {
    /// Whose it is.
    place: usize,
    /// What its name has behind the identity of the parameter.
    rest: String,
    dtype: DType,
    shape: Vec<usize>,
    cut: Option<Cut>,
}

/// What a first rank has.
#[derive(Serialize, Deserialize)]
struct Told {
    /// Its rank among those that have pieces of the same tensors.
    tp: u32,
    pieces: Vec<Piece>,
    scalars: Vec<(usize, String, Scalar)>,
    metadata: Vec<(usize, String, String)>,
}

/// How tensors are named in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// By where they are in a model.
    Path,
    /// By the identity of a parameter, and what an optimizer keeps for it.
    Identity,
}

impl Parts {
    /// Those of a mesh of all ranks of a group. Every rank calls it.
    #[track_caller]
    pub(crate) fn new(whole: Whole, mesh: &Mesh, all: &ProcessGroup) -> Result<Self, TrainError> {
        let same = Fingerprint {
            config: DdpConfig::default(),
            entries: whole.entries().cloned().collect(),
        };
        fingerprint::verify(&same, all)?;
        Self::among(
            whole,
            mesh.sub(Axis::Tp),
            mesh.replicas().group().clone(),
            all,
        )
    }

    #[track_caller]
    fn among(
        whole: Whole,
        tp: &World,
        replicas: ProcessGroup,
        all: &ProcessGroup,
    ) -> Result<Self, TrainError> {
        let is_lead = replicas.rank() == WRITER;
        Ok(Self {
            leads: all.split(is_lead.then_some(0), 0)?,
            whole,
            tp: tp.clone(),
            replicas,
        })
    }

    /// The same, for work beside the training, in groups that nobody else uses. Every rank calls it.
    #[track_caller]
    pub(crate) fn beside(&self, all: &ProcessGroup) -> Result<Self, TrainError> {
        let replicas = self.replicas.split(Some(0), 0)?;
        let replicas = replicas.expect("every rank has a color");
        Self::among(self.whole.clone(), &self.tp, replicas, all)
    }

    /// Whether this rank's part of divided layers is the first, which counts what all ranks have.
    pub(crate) fn is_first(&self) -> bool {
        self.tp.is_main()
    }

    /// Has the first ranks of other parts not wait for this one.
    pub(crate) fn abort(&self, cause: &str) {
        for group in self.leads.iter().chain([&self.replicas]) {
            group.abort(cause);
        }
    }

    /// This rank's part of a tensor of a parameter that a file has as a whole.
    pub(crate) fn part(&self, parameter: ParamId, whole: Packed) -> Result<Packed, TrainError> {
        let (Some(entry), Some(cut)) = (self.whole.get(parameter.val()), self.tp.cut(parameter))
        else {
            return Ok(whole);
        };
        let found = dims(&whole);
        let (name, dtype, _, id, bytes) = whole.into_parts().map_err(unusable)?;
        if found != entry.shape {
            return Err(indivisible(&name, &found, &entry.shape).into());
        }
        let (ranks, rank) = (self.tp.world_size(), self.tp.rank());
        let mut own = Vec::new();
        for run in cut.runs(&found, ranks, rank) {
            own.extend_from_slice(&bytes[run.start * dtype.size()..run.end * dtype.size()]);
        }
        let shape = cut.part(&found, ranks, rank);
        let own = Bytes::from_bytes_vec(own);
        Ok(Packed::new(name, dtype, shape, id, own))
    }

    /// The record of the whole model, or of the optimizer's state for it, made of what this rank and the other first
    /// ranks have. They call it, and the first of them writes.
    #[track_caller]
    pub(crate) fn joined(
        &self,
        own: Record,
        naming: Naming,
    ) -> Result<Recorded<Record>, TrainError> {
        let leads = self.leads.as_ref().expect("a first rank joins");
        let leads = leads.with_timeout(self.replicas.timeout());
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
            let name = self.name(place, rest, naming);
            let plan = self.plan(&name, place, &holders)?;
            let is_own = |tensor: &&Packed| self.key(tensor, naming) == Some((place, rest));
            let own = own.tensors.iter().find(is_own);
            // Ranks that have the same have it from one of them.
            let own = own
                .filter(|_| plan.runs.contains_key(&leads.rank()))
                .cloned();
            let id = self.whole.tensors[place].0.val();
            let about = (name, plan.dtype, plan.shape.clone(), id);
            let leads = leads.clone();
            tensors.push(gathers.add(about, move || {
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
                let name = self.name(place, &rest, naming);
                content.scalars.insert(name, value);
            }
            for (place, rest, value) in told.metadata {
                let name = self.name(place, &rest, naming);
                content.metadata.insert(name, value);
            }
        }
        Ok(Recorded { content, gathers })
    }

    /// What this rank tells of what it has.
    fn told(&self, own: &Record, naming: Naming) -> Result<Told, TrainError> {
        let piece = |tensor: &Packed| {
            let (place, rest) = self
                .key(tensor, naming)
                .ok_or_else(|| unknown(&tensor.name))?;
            Ok(Piece {
                place,
                rest: rest.to_owned(),
                dtype: tensor.dtype,
                shape: dims(tensor),
                cut: self.tp.cut(self.whole.tensors[place].0),
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
            tp: self.tp.rank().get(),
            pieces: pieces.collect::<Result<_, CheckpointError>>()?,
            scalars: scalars.collect(),
            metadata: metadata.collect(),
        })
    }

    /// Whose a tensor is, and what its name has behind the identity.
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

    fn name(&self, place: usize, rest: &str, naming: Naming) -> String {
        let (id, entry) = &self.whole.tensors[place];
        match naming {
            Naming::Path => entry.name.clone(),
            Naming::Identity => format!("{}{rest}", id.val()),
        }
    }

    /// How a tensor is put together. All first ranks come to the same.
    fn plan(&self, name: &str, place: usize, holders: &[Holder<'_>]) -> Result<Plan, TrainError> {
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
        let (shape, ranks) = (&self.whole.tensors[place].1.shape, self.tp.world_size());
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

/// Where the pieces of a tensor go.
struct Plan {
    dtype: DType,
    shape: Vec<usize>,
    /// The elements that each rank brings, of those that are asked.
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

/// A tensor that the whole model has not.
pub(super) fn unknown(name: &str) -> CheckpointError {
    unwritable(
        &format!("parameter {name}"),
        "the whole model, as the checkpoints know it, has no such parameter; take Whole::of of the model that the parts \
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
