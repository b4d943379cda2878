//! The memory in which parameters are gathered, one after the other.
//!
//! A parameter that is gathered ahead is in the memory of the one before, which has been copied out by then: it needs
//! no more. It is an operation like others, issued in the order of the pass, so all ranks have the same operations in
//! the same order.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use bonfire_collective::CollectiveError;
use bonfire_plan::DType;
use burn::tensor::{DispatchTensor, Tensor, TensorData};

use super::{Gatherer, State};
use crate::TrainError;
use crate::reducer::device_route::transfer::lane::InFlight;
use crate::reducer::readback;
use crate::values::{BucketBuffer, BufferWork, CollectiveOp, HostSlice, Scale};

#[derive(Debug, Default)]
pub(super) struct Memory {
    buffers: HashMap<DType, BucketBuffer>,
    ahead: Option<(usize, Ahead)>,
}

/// A gather that has begun.
enum Ahead {
    Host(BufferWork),
    Device(InFlight),
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host(_) => "in host memory",
            Self::Device(_) => "on devices",
        })
    }
}

/// The values of a complete parameter.
pub(super) enum Collected {
    Host(TensorData),
    /// In one dimension.
    Device(Tensor<1>),
}

/// The parameter that was gathered ahead: in its buffer, or on the device.
pub(super) struct Arrived {
    parameter: usize,
    tensor: Option<Tensor<1>>,
}

impl Memory {
    #[cfg(test)]
    pub(super) fn ahead(&self) -> Option<usize> {
        self.ahead.as_ref().map(|(parameter, _)| *parameter)
    }
}

/// The places at which the rows of a parameter are gathered. All ranks have a block of the length of the largest.
struct Places {
    all: Vec<Range<usize>>,
    own: Range<usize>,
    elems: usize,
}

impl Gatherer {
    /// The values of a complete parameter, from this rank's rows. In a training pass, it starts the gather that came
    /// next in the last pass.
    pub(super) fn collect(
        &self,
        parameter: usize,
        rows: DispatchTensor,
    ) -> Result<Collected, TrainError> {
        let entry = self.table.get(parameter);
        let (dtype, places) = (entry.extent.dtype, self.places(parameter));
        let mut state = self.state.lock();
        let arrived = self.arrived(&mut state)?.filter(|arrived| arrived.parameter == parameter);
        if state.lane.is_some() {
            let tensor = match arrived.and_then(|arrived| arrived.tensor) {
                Some(tensor) => tensor,
                None => {
                    let flight = self.begin_on_devices(&mut state, parameter, rows)?;
                    self.end_flight(&mut state, flight)?
                }
            };
            self.continue_ahead(&mut state, parameter)?;
            return Ok(Collected::Device(tensor));
        }
        if arrived.is_none() {
            self.fill(&mut state, parameter, rows)?;
            let values = state.memory.buffers.get_mut(&dtype).expect(FILLED);
            let group = &self.groups[parameter];
            let gathered = values.run(group, places.elems, CollectiveOp::AllGather);
            gathered.map_err(|error| self.named(parameter, error))?;
        }
        let values = &state.memory.buffers[&dtype];
        let data = values.to_tensor_data(&places.all, &entry.shape);
        self.continue_ahead(&mut state, parameter)?;
        Ok(Collected::Host(data))
    }

    /// Starts the gather that came next in the last pass.
    fn continue_ahead(&self, state: &mut State, parameter: usize) -> Result<(), TrainError> {
        if state.pass.is_some()
            && let Some(next) = state.order.next(parameter)
        {
            self.gather_ahead(state, next)?;
        }
        Ok(())
    }

    fn begin_on_devices(
        &self,
        state: &mut State,
        parameter: usize,
        rows: DispatchTensor,
    ) -> Result<InFlight, TrainError> {
        let pieces = self.shards.pieces(parameter);
        let own = pieces[self.group.rank().index()].len();
        // Its rank is not looked at.
        let own = (own > 0).then(|| Tensor::<1>::from_dispatch(rows).reshape([own]));
        let lane = state.lane.as_mut().expect("asked before");
        let dtype = self.table.get(parameter).tensor_dtype;
        lane.begin_gather(own, dtype, &pieces, &self.group)
    }

    fn end_flight(&self, state: &mut State, flight: InFlight) -> Result<Tensor<1>, TrainError> {
        state.lane.as_mut().expect("asked before").end(flight)
    }

    /// Waits for the parameter that is gathered ahead.
    pub(super) fn arrived(&self, state: &mut State) -> Result<Option<Arrived>, TrainError> {
        let Some((parameter, ahead)) = state.memory.ahead.take() else {
            return Ok(None);
        };
        let tensor = match ahead {
            Ahead::Host(work) => {
                let values = work.wait().map_err(|error| self.named(parameter, error))?;
                state.memory.buffers.insert(values.dtype(), values);
                None
            }
            Ahead::Device(flight) => Some(self.end_flight(state, flight)?),
        };
        Ok(Some(Arrived { parameter, tensor }))
    }

    fn gather_ahead(&self, state: &mut State, parameter: usize) -> Result<(), TrainError> {
        let pass = state.pass.as_ref().expect("a pass has begun");
        let rows = pass.rows[&parameter].clone();
        if state.lane.is_some() {
            let flight = self.begin_on_devices(state, parameter, rows)?;
            state.memory.ahead = Some((parameter, Ahead::Device(flight)));
            return Ok(());
        }
        self.fill(state, parameter, rows)?;
        let dtype = self.table.get(parameter).extent.dtype;
        let values = state.memory.buffers.remove(&dtype).expect(FILLED);
        let (group, elems) = (&self.groups[parameter], self.places(parameter).elems);
        let work = values.start(group, elems, CollectiveOp::AllGather);
        state.memory.ahead = Some((parameter, Ahead::Host(work)));
        Ok(())
    }

    fn fill(
        &self,
        state: &mut State,
        parameter: usize,
        rows: DispatchTensor,
    ) -> Result<(), TrainError> {
        let mut filled = Ok(());
        // Its rank is not looked at.
        readback::read(Tensor::<1>::from_dispatch(rows), |values| {
            filled = values
                .map_err(|cause| self.unreadable(parameter, cause))
                .and_then(|values| self.put(state, parameter, values));
        });
        filled
    }

    fn put(
        &self,
        state: &mut State,
        parameter: usize,
        rows: Option<HostSlice<'_>>,
    ) -> Result<(), TrainError> {
        let entry = self.table.get(parameter);
        let rows = rows.ok_or_else(|| TrainError::UnsupportedDtype {
            parameter: entry.name.clone(),
            dtype: "none that gradients have".to_owned(),
        })?;
        let dtype = entry.extent.dtype;
        let buffers = &mut state.memory.buffers;
        let values = buffers.entry(dtype).or_insert_with(|| self.buffer(dtype));
        values.set(self.places(parameter).own, rows, Scale::One);
        Ok(())
    }

    fn places(&self, parameter: usize) -> Places {
        let pieces = self.shards.pieces(parameter);
        // The first rank has the most rows.
        let block = pieces[0].len();
        let starts = (0..pieces.len()).map(|rank| rank * block);
        let all = starts.zip(&pieces);
        let all: Vec<_> = all.map(|(start, piece)| start..start + piece.len()).collect();
        let own = self.shards.own_piece(parameter);
        Places {
            own: all[own.expect("it is cut into rows")].clone(),
            elems: block * all.len(),
            all,
        }
    }

    fn buffer(&self, dtype: DType) -> BucketBuffer {
        let parameters = (0..self.table.len()).filter(|&parameter| self.shards.is_cut(parameter));
        let elems = parameters
            .filter(|&parameter| self.table.get(parameter).extent.dtype == dtype)
            .map(|parameter| self.places(parameter).elems);
        BucketBuffer::shared(&self.group, dtype, elems.max().unwrap_or(0))
    }

    pub(super) fn named(&self, parameter: usize, error: CollectiveError) -> TrainError {
        match error {
            CollectiveError::Mismatch(mismatch) => TrainError::DifferentUses {
                parameter: self.table.get(parameter).name.clone(),
                mismatch,
            },
            error => error.into(),
        }
    }
}

const FILLED: &str = "its rows have been put there";
