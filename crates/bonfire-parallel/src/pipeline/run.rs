//! One step of a pipeline: the actions of this rank, in order.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use bonfire_collective::{Rank, Work, panic_message};
use bonfire_plan::pipeline::{Action, Compute, Message, Pass as PassKind, Schedule};
use bonfire_train::TrainError;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Gradients, Tensor, TensorData};

use super::channels::{Agreed, Channels};
use super::error::PipelineError;
use super::gradients::{Sum, Turns};
use super::output::{AnyRank, IntoOutput, Output, Start, loss_value};
use super::pass::Pass;
use super::tied::Tie;
use super::timing::Stopwatch;
use super::weights::WeightGradients;

pub(super) struct Run<'a, M, B, F, R> {
    pub(super) schedule: &'a Schedule,
    pub(super) me: Rank,
    pub(super) stages: &'a [M],
    pub(super) devices: &'a [Device],
    pub(super) micro_batches: &'a [B],
    pub(super) forward: F,
    pub(super) channels: &'a mut Channels,
    pub(super) tie: Option<&'a Tie<M>>,
    /// Takes the gradients of a stage, by its place on this rank.
    pub(super) reduce: R,
    pub(super) state: State<M>,
}

pub(super) struct State<M> {
    numbers: Vec<u32>,
    /// Results that wait for the next pass on this rank, or to be sent.
    made: HashMap<Message, (Vec<TensorData>, Agreed)>,
    receiving: HashMap<Message, Work<Vec<TensorData>>>,
    live: HashMap<(u32, u32), Live>,
    sums: Vec<Sum<M>>,
    /// The sum of the last stage's gradients of a tied parameter, all elements in a row.
    tied: Option<Tensor<1>>,
    tied_turns: Turns<Vec<Tensor<1>>>,
    /// The loss of each micro-batch, on the rank of the last stage.
    losses: HashMap<u32, Tensor<1>>,
    pub(super) watch: Stopwatch,
    current: Option<Compute>,
}

/// The values of a micro-batch that a stage keeps between two passes.
enum Live {
    Forward(Box<Forwarded>),
    InputGradient { gradients: GradientsParams, weights: WeightGradients },
}

struct Forwarded {
    inputs: Inputs,
    tied: Vec<Box<dyn AnyRank>>,
    end: End,
    weights: WeightGradients,
}

struct Inputs {
    leaves: Vec<Box<dyn AnyRank>>,
    /// Inputs that the forward pass did not take.
    ignored: Vec<TensorData>,
}

enum End {
    Loss(Box<Tensor<1>>),
    Output(Vec<Option<Start>>),
}

impl<M: Module> State<M> {
    pub(super) fn new(numbers: Vec<u32>) -> Self {
        Self {
            made: HashMap::new(),
            receiving: HashMap::new(),
            live: HashMap::new(),
            sums: numbers.iter().map(|_| Sum::new()).collect(),
            tied: None,
            tied_turns: Turns::default(),
            losses: HashMap::new(),
            numbers,
            watch: Stopwatch::start(),
            current: None,
        }
    }

    /// Adds the gradients of the tied parameter's leaves, in the order of the micro-batches.
    fn add_tied(
        &mut self,
        micro_batch: u32,
        leaves: Vec<Box<dyn AnyRank>>,
        all: Option<&mut Gradients>,
    ) {
        let Some(all) = all else { return };
        let found = leaves.iter().filter_map(|leaf| leaf.flat_gradient(all));
        for gradients in self.tied_turns.next(micro_batch, found.collect()) {
            for gradient in gradients {
                self.tied = Some(match self.tied.take() {
                    Some(sum) => sum + gradient,
                    None => gradient,
                });
            }
        }
    }

    /// The mean over the micro-batches; 0 on ranks without the last stage. It waits for the device.
    pub(super) fn loss(&mut self) -> Result<f64, TrainError> {
        let count = self.losses.len().max(1) as u32;
        let mut sum = 0.0;
        for micro_batch in 0..count {
            if let Some(loss) = self.losses.remove(&micro_batch) {
                sum += loss_value(loss)?;
            }
        }
        Ok(sum / f64::from(count))
    }
}

impl<M, B, F, O, R> Run<'_, M, B, F, R>
where
    M: Module,
    F: Fn(&M, &mut Pass<'_, B>) -> O,
    O: IntoOutput,
    R: FnMut(usize, GradientsParams),
{
    /// Runs all actions. Reports a failure to the other ranks.
    ///
    /// # Panics
    /// If the forward pass does, after reporting it to the other ranks.
    pub(super) fn run(mut self) -> Result<State<M>, PipelineError> {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.actions()));
        ended(outcome, self.state.current, self.channels)?;
        Ok(self.state)
    }

    fn actions(&mut self) -> Result<(), PipelineError> {
        let schedule = self.schedule;
        for action in schedule.actions(self.me) {
            self.channels.release_sent()?;
            match *action {
                Action::Compute(compute) => self.compute(compute)?,
                Action::Send(message) => {
                    let (values, agreed) = self.state.made.remove(&message).expect(VERIFIED);
                    self.channels.send(schedule.owner(message.target()), values, agreed);
                }
                Action::Receive(message) => {
                    let source = schedule.owner(message.source());
                    let work = self.channels.receive(message, source);
                    self.state.receiving.insert(message, work);
                }
                Action::ReduceGradients { stage } => self.reduce(stage)?,
                // Parameters are not sharded.
                Action::Gather { .. } | Action::Release { .. } => {}
            }
        }
        Ok(self.channels.finish()?)
    }

    fn compute(&mut self, compute: Compute) -> Result<(), PipelineError> {
        let values = match self.schedule.input(compute) {
            None => Vec::new(),
            Some(message) => match self.state.receiving.remove(&message) {
                Some(work) => self.channels.wait(work)?,
                None => self.state.made.remove(&message).expect(VERIFIED).0,
            },
        };
        // A long list of passes without a message should not hide that another rank has failed.
        self.channels.check()?;
        self.state.current = Some(compute);
        let start_s = self.state.watch.now_s();
        match compute.pass {
            PassKind::Forward => self.forward(compute, values)?,
            PassKind::Backward => self.backward(compute, values)?,
            PassKind::InputGradient => self.input_gradient(compute, values)?,
            PassKind::WeightGradient => self.weight_gradient(compute),
        }
        self.state.watch.note(compute, start_s);
        self.state.current = None;
        Ok(())
    }

    fn forward(&mut self, compute: Compute, inputs: Vec<TensorData>) -> Result<(), PipelineError> {
        let local = self.local(compute.stage);
        let mut pass = Pass {
            compute,
            stages: self.schedule.stages(),
            micro_batch: &self.micro_batches[compute.micro_batch as usize],
            device: &self.devices[local],
            inputs,
            leaves: Vec::new(),
            tied: self.tie.and_then(|tie| tie.values.as_deref()),
            tied_leaves: Vec::new(),
            weights: if self.is_split(compute) {
                WeightGradients::split()
            } else {
                WeightGradients::at_once()
            },
        };
        let output = (self.forward)(&self.stages[local], &mut pass)
            .into_output()
            .map_err(|source| PipelineError::Forward { pass: compute, source })?;
        let Pass { leaves, mut inputs, tied_leaves: tied, weights, .. } = pass;
        let ignored = inputs.split_off(leaves.len());
        let end = self.end(compute, output)?;
        let inputs = Inputs { leaves, ignored };
        let forwarded = Forwarded { inputs, tied, end, weights };
        let key = (compute.stage, compute.micro_batch);
        self.state.live.insert(key, Live::Forward(Box::new(forwarded)));
        Ok(())
    }

    /// Passes an output on, and returns the start of its backward pass.
    fn end(&mut self, compute: Compute, output: Output) -> Result<End, PipelineError> {
        let Some(message) = self.schedule.output(compute) else {
            let loss = output.loss()?;
            let value = loss.clone().without_autodiff();
            self.state.losses.insert(compute.micro_batch, value);
            let loss = match output.factor {
                1.0 => loss,
                factor => loss.mul_scalar(factor),
            };
            return Ok(End::Loss(Box::new(loss)));
        };
        let agreed = self.channels.agree(message, output.layout())?;
        self.state.made.insert(message, (output.values()?, agreed));
        let starts = output.tensors.iter().map(|tensor| tensor.start());
        Ok(End::Output(starts.collect()))
    }

    fn backward(&mut self, compute: Compute, values: Vec<TensorData>) -> Result<(), PipelineError> {
        let (mut gradients, weights) = self.towards_input(compute, values)?;
        weights.compute(&mut gradients);
        self.add(compute, gradients);
        Ok(())
    }

    fn input_gradient(
        &mut self,
        compute: Compute,
        values: Vec<TensorData>,
    ) -> Result<(), PipelineError> {
        let (gradients, weights) = self.towards_input(compute, values)?;
        let live = Live::InputGradient { gradients, weights };
        let key = (compute.stage, compute.micro_batch);
        self.state.live.insert(key, live);
        Ok(())
    }

    fn weight_gradient(&mut self, compute: Compute) {
        let Some(Live::InputGradient { mut gradients, weights }) = self.take(compute) else {
            panic!("{VERIFIED}");
        };
        weights.compute(&mut gradients);
        self.add(compute, gradients);
    }

    /// Runs the backward pass of a stage, and prepares the gradient of its input for the previous stage.
    fn towards_input(
        &mut self,
        compute: Compute,
        values: Vec<TensorData>,
    ) -> Result<(GradientsParams, WeightGradients), PipelineError> {
        let Some(Live::Forward(forwarded)) = self.take(compute) else {
            panic!("{VERIFIED}");
        };
        let Forwarded { inputs, tied, end, weights } = *forwarded;
        let mut gradients = match end {
            End::Loss(loss) => loss.is_tracked().then(|| loss.backward()),
            End::Output(starts) => Start::backward(starts, values),
        };
        if let Some(message) = self.schedule.output(compute) {
            let values = inputs.gradients(gradients.as_mut())?;
            // The previous stage has sent the layout of its output, and the gradient has the same.
            self.state.made.insert(message, (values, Agreed::Before));
        }
        if compute.stage + 1 == self.schedule.stages() {
            self.state.add_tied(compute.micro_batch, tied, gradients.as_mut());
        }
        let stage = &self.stages[self.local(compute.stage)];
        let gradients = gradients.map(|gradients| GradientsParams::from_grads(gradients, stage));
        Ok((gradients.unwrap_or_default(), weights))
    }

    fn add(&mut self, compute: Compute, gradients: GradientsParams) {
        let local = self.local(compute.stage);
        let stage = &self.stages[local];
        self.state.sums[local].add(stage, compute.micro_batch, gradients);
    }

    /// Passes the gradients of a stage on, with the last stage's part of a tied parameter's.
    fn reduce(&mut self, stage: u32) -> Result<(), PipelineError> {
        let local = self.local(stage);
        let mut sum = std::mem::replace(&mut self.state.sums[local], Sum::new()).take();
        if let Some(tie) = self.tie {
            if stage + 1 == self.schedule.stages() {
                tie.hand_over(&mut self.state.tied, self.channels)?;
            }
            if stage == 0 {
                let last = self.state.tied.take();
                tie.add(&self.stages[local], &mut sum, last, self.channels)?;
            }
        }
        (self.reduce)(local, sum);
        Ok(())
    }

    fn take(&mut self, compute: Compute) -> Option<Live> {
        let key = (compute.stage, compute.micro_batch);
        self.state.live.remove(&key)
    }

    fn is_split(&self, compute: Compute) -> bool {
        let half = Action::Compute(Compute { pass: PassKind::WeightGradient, ..compute });
        self.schedule.actions(self.me).contains(&half)
    }

    fn local(&self, stage: u32) -> usize {
        let mut numbers = self.state.numbers.iter();
        let place = numbers.position(|&number| number == stage);
        place.expect(VERIFIED)
    }
}

/// The result of passes. If they failed or panicked, reports it with the current pass to the other ranks.
pub(super) fn ended<T>(
    outcome: std::thread::Result<Result<T, PipelineError>>,
    current: Option<Compute>,
    channels: &Channels,
) -> Result<T, PipelineError> {
    if let Some(failure) = channels.take_failure() {
        // Of a layer that has no other way out; what else went wrong follows from it. The ranks know of it.
        return Err(failure.into());
    }
    match outcome {
        Ok(done) => channels.world.group().or_abort(done),
        Err(panic) => {
            let pass = current.map(|pass| format!(" in {pass}")).unwrap_or_default();
            let cause = format!("panicked{pass}: {}", panic_message(&*panic));
            channels.world.group().abort(&cause);
            resume_unwind(panic)
        }
    }
}

/// The reason why the inputs of a pass exist.
const VERIFIED: &str = "the verifier has proved the order of the actions";

impl Inputs {
    fn gradients(self, mut all: Option<&mut Gradients>) -> Result<Vec<TensorData>, TrainError> {
        let leaves = self.leaves.iter();
        let mut found =
            leaves.map(|leaf| leaf.gradient(all.as_deref_mut())).collect::<Result<Vec<_>, _>>()?;
        let zeros =
            |data: TensorData| TensorData::full_dtype(data.shape().clone(), 0.0, data.dtype());
        found.extend(self.ignored.into_iter().map(zeros));
        Ok(found)
    }
}
