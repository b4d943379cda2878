//! The state of an optimizer for a parameter, under the names of Burn's own optimizer: a record of either continues
//! with the other.

use std::marker::PhantomData;

use burn::optim::{RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, Tensor};

use super::offloaded::Offloaded;
use super::{Arithmetic, host};
use crate::offload::FileTensor;

/// The master weights of a parameter of 16 bits; Burn's optimizers have none.
const MASTER: &str = "master";

/// The optimizer's state of one parameter.
pub struct State<N, const D: usize> {
    /// The number of steps taken.
    pub(super) time: usize,
    pub(super) moments: Vec<Offloaded<D>>,
    pub(super) master: Option<Offloaded<D>>,
    /// The memory of the parameter, where that is a file. It is not part of a record.
    pub(super) parameter: Option<FileTensor>,
    names: PhantomData<fn() -> N>,
}

impl<N, const D: usize> State<N, D> {
    pub(super) fn new(
        time: usize,
        moments: Vec<Offloaded<D>>,
        master: Option<Offloaded<D>>,
    ) -> Self {
        Self { time, moments, master, parameter: None, names: PhantomData }
    }

    pub(super) fn with_parameter(self, parameter: Option<FileTensor>) -> Self {
        Self { parameter, ..self }
    }
}

impl<N, const D: usize> Clone for State<N, D> {
    fn clone(&self) -> Self {
        Self::new(self.time, self.moments.clone(), self.master.clone())
            .with_parameter(self.parameter.clone())
    }
}

impl<N: Arithmetic, const D: usize> RecordState for State<N, D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        if let Some(name) = N::TIME {
            out.push_scalar(prefix, name, self.time.into());
        }
        for (name, moment) in N::MOMENTS.iter().zip(&self.moments) {
            out.push_tensor(prefix, name, moment.data());
        }
        if let Some(master) = &self.master {
            out.push_tensor(prefix, MASTER, master.data());
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let time = match N::TIME {
            Some(name) => source.take_scalar(prefix, name)?.try_into().ok()?,
            None => 0,
        };
        let device = resting_place(device);
        let mut take = |name: &&str| {
            let data = source.take_tensor(prefix, name)?;
            let dtype: DType = data.dtype();
            Some(Offloaded::Memory(Tensor::from_data(data, (&device, dtype))))
        };
        let moments: Vec<_> = N::MOMENTS.iter().map_while(&mut take).collect();
        if N::TIME.is_some() && moments.len() < N::MOMENTS.len() {
            // Steps are counted for the sake of moments.
            return None;
        }
        let master = take(&MASTER);
        Some(Self::new(time, moments, master))
    }
}

/// The device of a record's values until a step places them: the host. Burn passes its default device, which may be
/// another rank's, or missing.
fn resting_place(said: &Device) -> Device {
    if cfg!(feature = "flex") { host() } else { said.clone() }
}
