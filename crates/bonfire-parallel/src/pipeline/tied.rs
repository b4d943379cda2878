//! A parameter of the first stage that the last one uses, too: an embedding that is also the head.
//!
//! There is one parameter, with one gradient and one state of an optimizer, on the rank of the first stage. The last
//! stage has its values. Both parts of its gradient are added once in a step, and the values are sent again after it.

use std::any::Any;
use std::fmt;

use bonfire_collective::{CollectiveError, ProcessGroup, Rank};
use bonfire_plan::pipeline::Schedule;
use bonfire_train::TrainError;
use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::channels::{Channels, SOURCE, TARGET};
use super::error::PipelineError;
use super::output::{Layout, read};
use super::wire;

/// One end of the tie, on a rank that has it.
pub(super) struct Tie<M> {
    ends: Ends,
    device: Device,
    parameter: Box<dyn OfStage<M>>,
    /// On the rank of the last stage, the values as a tensor without a graph.
    pub(super) values: Option<Box<dyn Any>>,
}

enum Ends {
    Both,
    /// With the channel to the last stage.
    First(ProcessGroup),
    /// With the channel to the first stage.
    Last(ProcessGroup),
}

trait OfStage<M> {
    fn values(&self, stage: &M) -> Result<TensorData, TrainError>;

    fn add(&self, stage: &M, all: &mut GradientsParams, gradient: Tensor<1>);

    fn tensor(&self, data: TensorData, device: &Device) -> Box<dyn Any>;
}

struct Found<F, const D: usize>(F);

impl<M, F, const D: usize> OfStage<M> for Found<F, D>
where
    F: Fn(&M) -> &Param<Tensor<D>>,
{
    fn values(&self, stage: &M) -> Result<TensorData, TrainError> {
        read((self.0)(stage).val().without_autodiff(), "a tied parameter")
    }

    fn add(&self, stage: &M, all: &mut GradientsParams, gradient: Tensor<1>) {
        let parameter = (self.0)(stage);
        let gradient = gradient.reshape(parameter.val().shape());
        let sum = match all.remove::<D>(parameter.id) {
            Some(own) => own + gradient,
            None => gradient,
        };
        all.register(parameter.id, sum);
    }

    fn tensor(&self, data: TensorData, device: &Device) -> Box<dyn Any> {
        let dtype = data.dtype();
        Box::new(Tensor::<D>::from_data(data, (device, dtype)))
    }
}

impl<M: Module> Tie<M> {
    /// Ties the first and the last stage; `None` on ranks that have neither. Every rank calls it.
    #[track_caller]
    pub(super) fn new<const D: usize>(
        schedule: &Schedule,
        stages: &[M],
        world: &ProcessGroup,
        channels: &Channels,
        parameter: impl Fn(&M) -> &Param<Tensor<D>> + 'static,
        device: Device,
    ) -> Result<Option<Self>, PipelineError> {
        let (first, last) = (schedule.owner(0), schedule.owner(schedule.stages() - 1));
        let ends = if first == last {
            (world.rank() == first).then_some(Ends::Both)
        } else {
            let way = world.subgroup(&[first, last])?;
            way.map(|way| match way.rank() {
                SOURCE => Ends::First(way),
                _ => Ends::Last(way),
            })
        };
        let Some(ends) = ends else { return Ok(None) };
        let mut tie =
            Self { ends, device, parameter: Box::new(Found::<_, D>(parameter)), values: None };
        tie.share(stages, channels)?;
        Ok(Some(tie))
    }

    /// Sends the last stage the values of the first one.
    pub(super) fn share(&mut self, stages: &[M], channels: &Channels) -> Result<(), PipelineError> {
        let values = match &self.ends {
            Ends::Last(way) => receive(way, channels)?,
            Ends::Both | Ends::First(_) => {
                let values = self.parameter.values(&stages[0])?;
                if let Ends::First(way) = &self.ends {
                    return Ok(send(way, channels, values)?);
                }
                values
            }
        };
        self.values = Some(self.parameter.tensor(values, &self.device));
        Ok(())
    }

    /// Sends the last stage's gradient, unless the first one is on the same rank.
    pub(super) fn hand_over(
        &self,
        last: &mut Option<Tensor<1>>,
        channels: &Channels,
    ) -> Result<(), PipelineError> {
        let Ends::Last(way) = &self.ends else {
            return Ok(());
        };
        let last = last.take();
        let data = last.map(|last| read(last, "a tied gradient")).transpose()?;
        Ok(send(way, channels, data.unwrap_or_else(none))?)
    }

    /// Adds the last stage's gradient to that of the first.
    pub(super) fn add(
        &self,
        stage: &M,
        sum: &mut GradientsParams,
        last: Option<Tensor<1>>,
        channels: &Channels,
    ) -> Result<(), PipelineError> {
        let last = match &self.ends {
            Ends::Both | Ends::Last(_) => last,
            Ends::First(way) => {
                let data = receive(way, channels)?;
                let device = self.device.clone().without_autodiff();
                let dtype = data.dtype();
                (data.num_elements() > 0).then(|| Tensor::from_data(data, (&device, dtype)))
            }
        };
        if let Some(last) = last {
            self.parameter.add(stage, sum, last);
        }
        Ok(())
    }
}

/// The gradient if the last stage did not use it.
fn none() -> TensorData {
    TensorData::full_dtype([0], 0.0, DType::F32)
}

fn send(way: &ProcessGroup, channels: &Channels, data: TensorData) -> Result<(), CollectiveError> {
    let target = peer(way);
    let work = wire::background(way, vec![data], move |way, data| {
        wire::send_layout(way, target, &Layout::of(data))?;
        wire::send(way, target, data)
    });
    channels.wait(work).map(drop)
}

fn receive(way: &ProcessGroup, channels: &Channels) -> Result<TensorData, CollectiveError> {
    let source = peer(way);
    let work = wire::background(way, Vec::new(), move |way, data| {
        let layout = wire::receive_layout(way, source)?;
        *data = wire::receive(way, source, &layout)?;
        Ok(())
    });
    let data = channels.wait(work)?.pop();
    Ok(data.unwrap_or_else(none))
}

fn peer(way: &ProcessGroup) -> Rank {
    match way.rank() {
        SOURCE => TARGET,
        _ => SOURCE,
    }
}

impl<M> fmt::Debug for Tie<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tie").finish_non_exhaustive()
    }
}
