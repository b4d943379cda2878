//! The outer optimizer, which combines the workers' differences.

use std::collections::BTreeMap;

use crate::{Axis, Ddp, Mesh, TrainError};
use bonfire_collective::{ProcessGroup, Rank, Work, WorldSize};
use burn::module::Module;
use serde::{Deserialize, Serialize};

use super::message::Message;
use super::{DilocoConfig, DilocoError, floats};

/// Keeps the common parameters of all workers, and updates them. See [the crate](crate).
///
/// All ranks of all workers call the same methods in the same order. Only trained parameters are exchanged: each
/// worker keeps its own running statistics, as of a batch norm.
///
/// The ranks of a worker share the work: each keeps the outer optimizer's state of some parameters, 8 bytes for each
/// of their elements, and sends these to the same ranks of other workers. So the links between workers carry each
/// parameter once.
#[derive(Debug)]
pub struct Diloco {
    config: DilocoConfig,
    workers: ProcessGroup,
    /// The ranks of this worker that have the same parameters.
    inner: ProcessGroup,
    step: u64,
    parameters: Vec<Parameter>,
    fragments: Vec<Fragment>,
}

#[derive(Debug)]
struct Parameter {
    len: usize,
    /// The rank of `inner` that keeps it.
    owner: Rank,
    outer: Option<Outer>,
}

#[derive(Debug)]
struct Outer {
    /// The values of all workers after the last exchange.
    common: Vec<f32>,
    momentum: Vec<f32>,
}

#[derive(Debug, Default)]
struct Fragment {
    parameters: Vec<usize>,
    /// Steps of this worker since it sent its parameters, or took the common ones.
    steps: u64,
    exchange: Option<Exchange>,
}

#[derive(Debug)]
struct Exchange {
    ends: u64,
    work: Work<Message>,
}

/// The use of the differences between workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// A step of the outer optimizer.
    Round,
    /// The mean of the workers' parameters. In the middle of a round the momentum would continue without the local
    /// steps that correct it.
    Finish,
}

/// The position of a training with DiLoCo, beside the parameters: for a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DilocoState {
    step: u64,
    /// The outer optimizer's momentum of each trained parameter, in the order of the model.
    momentum: Vec<Vec<f32>>,
}

impl Diloco {
    /// Begins a training: all ranks get the model of rank 0 of worker 0. Workers are the ranks along
    /// [`Axis::DpReplicate`]; those along [`Axis::DpShard`] are one worker, and train with a [`Ddp`] over
    /// `mesh.sub(Axis::DpShard)`.
    ///
    /// # Errors
    /// [`DilocoError::Config`], [`DilocoError::ConfigMismatch`], [`DilocoError::NoParameters`]; those of [`Ddp::new`].
    #[track_caller]
    pub fn new<M: Module>(
        model: M,
        mesh: &Mesh,
        config: DilocoConfig,
    ) -> Result<(Self, M), DilocoError> {
        Self::resume(model, mesh, config, None)
    }

    /// Continues from a [`state`](Self::state) and its model; with other workers, too. Those that join have no state:
    /// they get the model, the outer momentum and the count of steps from worker 0, which must have them.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`DilocoError::NewcomerFirst`], [`DilocoError::StateMismatch`],
    /// [`DilocoError::OtherModel`].
    #[track_caller]
    pub fn resume<M: Module>(
        model: M,
        mesh: &Mesh,
        config: DilocoConfig,
        state: Option<DilocoState>,
    ) -> Result<(Self, M), DilocoError> {
        config.check()?;
        let (workers, inner) = (mesh.sub(Axis::DpReplicate), mesh.sub(Axis::DpShard));
        let step = agree(mesh, &config, state.as_ref())?;
        // It compares the models and gives all ranks that of rank 0.
        let model = Ddp::new(model, inner)?.into_module();
        let model = Ddp::new(model, workers)?.into_module();
        let lengths = floats::lengths(&model);
        let elements = lengths.iter().sum::<usize>();
        if elements == 0 {
            return Err(DilocoError::NoParameters);
        }
        let count = config.fragments.get();
        if count > lengths.len() {
            return Err(DilocoError::Config {
                what: format!(
                    "there are {count} fragments and {} trained parameters; take fewer fragments",
                    lengths.len()
                ),
            });
        }
        if let Some(state) = &state {
            let found: Vec<usize> = state.momentum.iter().map(Vec::len).collect();
            if found != lengths {
                return Err(DilocoError::OtherModel {
                    found: found.iter().sum(),
                    expected: elements,
                });
            }
        }
        let (workers, inner) = (workers.group().clone(), inner.group().clone());
        let fragments = assign(&lengths, count);
        let parameters = owned(&model, &lengths, &fragments, &workers, &inner, state)?;
        let fragments =
            fragments.into_iter().map(|parameters| Fragment { parameters, ..Fragment::default() });
        let diloco =
            Self { config, workers, inner, step, parameters, fragments: fragments.collect() };
        Ok((diloco, model))
    }

    /// Returns the number of steps of each worker.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Counts a local step of this worker, with the model after it. When an exchange is due, the workers exchange
    /// parameters, and the model is returned with the common ones.
    ///
    /// # Errors
    /// [`DilocoError::NonFinite`]; [`DilocoError::Train`] with the rank at fault, where a worker does not answer within
    /// the deadline of the group.
    #[track_caller]
    pub fn step<M: Module>(&mut self, model: M) -> Result<M, DilocoError> {
        self.advance();
        self.exchange(model)
    }

    /// Counts a step of a [`Ddp`] over the ranks of this worker, as [`step`](Self::step) does.
    ///
    /// # Errors
    /// As [`step`](Self::step), and as [`Ddp::map_module`], which refuses sharded parameters.
    #[track_caller]
    pub fn step_in<M: Module>(&mut self, ddp: &mut Ddp<M>) -> Result<(), DilocoError> {
        self.advance();
        if self.is_time() { inside(ddp, |model| self.exchange(model)) } else { Ok(()) }
    }

    /// Ends all exchanges in progress, and sets all workers to the mean of the parameters that they have changed
    /// since: at the end of a training or before it stops, before a [`state`](Self::state) is saved, and before
    /// workers join or leave. It does not step the outer optimizer, whose momentum stays as it was.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    #[track_caller]
    pub fn finish<M: Module>(&mut self, mut model: M) -> Result<M, DilocoError> {
        for fragment in 0..self.fragments.len() {
            // Without one, `end` would put the common parameters over those that this worker has learnt.
            if self.fragments[fragment].exchange.is_some() {
                model = self.end(fragment, model, Ending::Round)?;
            }
        }
        for fragment in 0..self.fragments.len() {
            if self.fragments[fragment].steps > 0 {
                self.begin(fragment, &model)?;
            }
        }
        for fragment in 0..self.fragments.len() {
            model = self.end(fragment, model, Ending::Finish)?;
        }
        Ok(model)
    }

    /// Ends the exchanges for the model of a [`Ddp`] over the ranks of this worker.
    ///
    /// # Errors
    /// As [`finish`](Self::finish), and as [`Ddp::map_module`].
    #[track_caller]
    pub fn finish_in<M: Module>(&mut self, ddp: &mut Ddp<M>) -> Result<(), DilocoError> {
        inside(ddp, |model| self.finish(model))
    }

    /// Gathers the state of a checkpoint beside the model: the outer optimizer's momentum. All ranks of this worker
    /// call it.
    ///
    /// # Errors
    /// [`DilocoError::UnfinishedRound`] unless [`finish`](Self::finish) comes before it, or all parameters were
    /// exchanged after the last step; [`DilocoError::Train`].
    #[track_caller]
    pub fn state(&self) -> Result<DilocoState, DilocoError> {
        let is_open = |fragment: &Fragment| fragment.steps > 0 || fragment.exchange.is_some();
        if self.fragments.iter().any(is_open) {
            return Err(DilocoError::UnfinishedRound);
        }
        let mut momentum = Vec::with_capacity(self.parameters.len());
        for parameter in &self.parameters {
            momentum.push(self.shared(parameter, |outer| &outer.momentum)?);
        }
        Ok(DilocoState { step: self.step, momentum })
    }

    fn advance(&mut self) {
        self.step += 1;
        self.fragments.iter_mut().for_each(|fragment| fragment.steps += 1);
    }

    fn is_time(&self) -> bool {
        let mut fragments = self.fragments.iter().enumerate();
        fragments.any(|(index, fragment)| {
            self.config.begins(index, self.step) || fragment.ends() == Some(self.step)
        })
    }

    #[track_caller]
    fn exchange<M: Module>(&mut self, mut model: M) -> Result<M, DilocoError> {
        for fragment in 0..self.fragments.len() {
            if self.fragments[fragment].ends() == Some(self.step) {
                model = self.end(fragment, model, Ending::Round)?;
            }
            if self.config.begins(fragment, self.step) {
                self.begin(fragment, &model)?;
                if self.config.delay == 0 {
                    model = self.end(fragment, model, Ending::Round)?;
                }
            }
        }
        Ok(model)
    }

    /// Sends this worker's differences, in the background.
    #[track_caller]
    fn begin<M: Module>(&mut self, fragment: usize, model: &M) -> Result<(), DilocoError> {
        let fragment = &mut self.fragments[fragment];
        fragment.steps = 0;
        let owned: Vec<usize> = fragment
            .parameters
            .iter()
            .copied()
            .filter(|index| self.parameters[*index].outer.is_some())
            .collect();
        let own = floats::read(model, &owned)?;
        let lengths: Vec<usize> = own.values().map(Vec::len).collect();
        let mut differences = Vec::with_capacity(lengths.iter().sum());
        for (index, values) in own {
            let outer = self.parameters[index].outer.as_ref().expect("it is owned");
            differences.extend(outer.common.iter().zip(values).map(|(common, own)| common - own));
        }
        let message = Message::new(differences, lengths, self.config.outer_gradients);
        fragment.exchange = Some(Exchange {
            ends: self.step + self.config.delay,
            work: self.workers.background(message, |workers, message| message.average(workers)),
        });
        Ok(())
    }

    /// Waits for an exchange, if there is one, ends it as `ending` says, and puts the common parameters into the
    /// model.
    #[track_caller]
    fn end<M: Module>(
        &mut self,
        fragment: usize,
        model: M,
        ending: Ending,
    ) -> Result<M, DilocoError> {
        if let Some(exchange) = self.fragments[fragment].exchange.take() {
            let mean = exchange.work.wait()?.into_values();
            if mean.iter().any(|value| !value.is_finite()) {
                let error = DilocoError::NonFinite { step: self.step };
                // Ranks that keep the same parameters see it themselves, in all workers.
                if self.inner.world_size() > WorldSize::ONE {
                    self.inner.abort(&error.to_string());
                }
                return Err(error);
            }
            self.update(fragment, &mean, ending);
        }
        let mut common = BTreeMap::new();
        for index in self.fragments[fragment].parameters.iter().copied() {
            let values = self.shared(&self.parameters[index], |outer| &outer.common)?;
            common.insert(index, values);
        }
        let mixing = match ending {
            Ending::Round => self.config.mixing,
            Ending::Finish => 0.0,
        };
        if mixing == 0.0 {
            self.fragments[fragment].steps = 0;
        }
        Ok(floats::write(model, common, mixing))
    }

    /// Changes the parameters that this rank keeps: in a round by SGD with Nesterov momentum, as PyTorch's
    /// `SGD(nesterov=True)`.
    fn update(&mut self, fragment: usize, mut mean: &[f32], ending: Ending) {
        let (rate, decay) = (self.config.outer_rate as f32, self.config.outer_momentum as f32);
        // In the order in which `floats::read` gave them.
        let mut indices = self.fragments[fragment].parameters.clone();
        indices.sort_unstable();
        for index in indices {
            let parameter = &mut self.parameters[index];
            let Some(outer) = &mut parameter.outer else {
                continue;
            };
            let (gradients, rest) = mean.split_at(parameter.len);
            let pairs = outer.common.iter_mut().zip(&mut outer.momentum);
            for ((common, momentum), gradient) in pairs.zip(gradients) {
                match ending {
                    Ending::Round => {
                        *momentum = decay * *momentum + gradient;
                        *common -= rate * (gradient + decay * *momentum);
                    }
                    Ending::Finish => *common -= gradient,
                }
            }
            mean = rest;
        }
    }

    /// The owner's state of a parameter, on all ranks of the worker.
    #[track_caller]
    fn shared(
        &self,
        parameter: &Parameter,
        what: impl Fn(&Outer) -> &Vec<f32>,
    ) -> Result<Vec<f32>, DilocoError> {
        let own = parameter.outer.as_ref().map(what);
        let mut values = own.map_or_else(|| vec![0.0; parameter.len], Clone::clone);
        self.inner.broadcast(&mut values, parameter.owner)?;
        Ok(values)
    }
}

impl Fragment {
    /// The step after which the result of the present exchange is taken.
    fn ends(&self) -> Option<u64> {
        self.exchange.as_ref().map(|exchange| exchange.ends)
    }
}

#[track_caller]
fn inside<M: Module>(
    ddp: &mut Ddp<M>,
    change: impl FnOnce(M) -> Result<M, DilocoError>,
) -> Result<(), DilocoError> {
    let mut result = Ok(());
    ddp.map_module(|model| {
        change(model.clone()).unwrap_or_else(|error| {
            result = Err(error);
            model
        })
    })?;
    result
}

/// The step from which all workers continue, if they have the same options, and the ranks of each worker the same
/// state.
#[track_caller]
fn agree(
    mesh: &Mesh,
    config: &DilocoConfig,
    state: Option<&DilocoState>,
) -> Result<u64, DilocoError> {
    let worker = mesh.sub(Axis::DpReplicate).rank().get();
    let own = (config, worker, state.map(|state| state.step));
    let own = serde_json::to_vec(&own).expect("numbers and names can be written");
    let all = mesh.data().group().all_gather_bytes(&own)?;
    let mut said = Vec::with_capacity(all.len());
    for (rank, bytes) in all.iter().enumerate() {
        let read: Result<(DilocoConfig, u32, Option<u64>), _> = serde_json::from_slice(bytes);
        let rank = Rank::new(rank as u32);
        let cause =
            |error: serde_json::Error| TrainError::OtherProgram { rank, cause: error.to_string() };
        said.push(read.map_err(cause)?);
    }
    let (first, _, step) = said[0];
    let mut steps = BTreeMap::new();
    for (theirs, worker, other) in said {
        let rank = Rank::new(worker);
        if theirs != first {
            return Err(DilocoError::ConfigMismatch {
                rank,
                theirs: format!("{theirs:?}"),
                ours: format!("{first:?}"),
            });
        }
        if *steps.entry(worker).or_insert(other) != other {
            return Err(DilocoError::StateMismatch { rank });
        }
        if let (None, Some(step)) = (step, other) {
            return Err(DilocoError::NewcomerFirst { rank, step });
        }
    }
    Ok(step.unwrap_or(0))
}

/// Assigns parameters to fragments: each in turn to the fragment that has the fewest elements.
fn assign(lengths: &[usize], count: usize) -> Vec<Vec<usize>> {
    let mut fragments = vec![(0, Vec::new()); count];
    for (index, len) in lengths.iter().enumerate() {
        let smallest = fragments.iter_mut().min_by_key(|(elements, _)| *elements);
        let (elements, fragment) = smallest.expect("there is a fragment");
        *elements += len;
        fragment.push(index);
    }
    fragments.into_iter().map(|(_, fragment)| fragment).collect()
}

/// This rank's state of each parameter: within a fragment, ranks of a worker have about as many elements.
#[track_caller]
fn owned<M: Module>(
    model: &M,
    lengths: &[usize],
    fragments: &[Vec<usize>],
    workers: &ProcessGroup,
    inner: &ProcessGroup,
    state: Option<DilocoState>,
) -> Result<Vec<Parameter>, DilocoError> {
    let mut owners = vec![Rank::new(0); lengths.len()];
    for fragment in fragments {
        let sizes: Vec<usize> = fragment.iter().map(|index| lengths[*index]).collect();
        let shares = assign(&sizes, inner.world_size().get() as usize);
        for (rank, share) in (0..).zip(shares) {
            for place in share {
                owners[fragment[place]] = Rank::new(rank);
            }
        }
    }
    let own: Vec<usize> =
        (0..lengths.len()).filter(|index| owners[*index] == inner.rank()).collect();
    let mut values = floats::read(model, &own)?;
    let mut saved = state.map(|state| state.momentum);
    let mut parameters = Vec::with_capacity(lengths.len());
    for (index, (len, owner)) in lengths.iter().copied().zip(owners).enumerate() {
        let outer = match values.remove(&index) {
            None => None,
            Some(common) => {
                let mut momentum = match &mut saved {
                    Some(saved) => std::mem::take(&mut saved[index]),
                    None => vec![0.0; len],
                };
                workers.broadcast(&mut momentum, Rank::new(0))?;
                Some(Outer { common, momentum })
            }
        };
        parameters.push(Parameter { len, owner, outer });
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests;
