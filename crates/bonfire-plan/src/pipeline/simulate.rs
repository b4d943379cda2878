//! How long a schedule takes: its passes, in simulated time.

use super::action::{Action, Compute, PassTimes};
use super::error::Broken;
use super::run::run;
use super::schedule::Schedule;
use super::verify::verify;

/// What passes and messages cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    stages: Vec<PassTimes>,
    message_s: f64,
}

/// A cost that is negative, infinite or not a number.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{figure} is {value}; give a number of seconds that is 0 or more")]
pub struct CostsError {
    /// The name of the cost, such as `forward_s`.
    pub figure: &'static str,
    /// The seconds given: negative, infinite or not a number.
    pub value: f64,
}

impl Costs {
    /// The times of each stage, and the seconds from the end of a pass until what it sends has
    /// arrived. Ranks compute while messages are under way.
    ///
    /// # Errors
    /// [`CostsError`] when one of them is not a time.
    pub fn new(stages: Vec<PassTimes>, message_s: f64) -> Result<Self, CostsError> {
        let figures = stages.iter().flat_map(|times| {
            [
                ("forward_s", times.forward_s),
                ("input_gradient_s", times.input_gradient_s),
                ("weight_gradient_s", times.weight_gradient_s),
            ]
        });
        for (figure, value) in figures.chain([("message_s", message_s)]) {
            if !(value.is_finite() && value >= 0.0) {
                return Err(CostsError { figure, value });
            }
        }
        Ok(Self { stages, message_s })
    }

    /// The same times for all stages of a schedule: `rank` is for all stages of a rank together, so it does not
    /// depend on how many there are.
    ///
    /// # Errors
    /// As [`Costs::new`].
    pub fn even(rank: PassTimes, schedule: &Schedule, message_s: f64) -> Result<Self, CostsError> {
        let part = schedule.ranks().len() as f64 / f64::from(schedule.stages());
        let times = PassTimes {
            forward_s: rank.forward_s * part,
            input_gradient_s: rank.input_gradient_s * part,
            weight_gradient_s: rank.weight_gradient_s * part,
        };
        Self::new(vec![times; schedule.stages() as usize], message_s)
    }
}

/// A pass, and when it ran, in seconds from the start of the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// The pass, its stage and its micro-batch.
    pub compute: Compute,
    /// When its rank was free and its input had arrived.
    pub start_s: f64,
    /// When its result existed; a message with it leaves then.
    pub end_s: f64,
}

/// The outcome of a simulation.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Timing {
    /// When the last pass ended, in seconds from the start of the first.
    pub makespan_s: f64,
    /// How long each rank computed.
    pub busy_s: Vec<f64>,
    /// The most activations that each rank held at a time, as [`Schedule::live_max`] counts them.
    pub live_max: Vec<u32>,
    /// The passes of each rank, in order.
    pub spans: Vec<Vec<Span>>,
}

impl Timing {
    /// The part of the ranks' time in which they computed nothing, from 0 to 1: 1 - busy / (ranks x makespan).
    pub fn bubble(&self) -> f64 {
        match self.makespan_s * self.busy_s.len() as f64 {
            all_s if all_s > 0.0 => 1.0 - self.busy_s.iter().sum::<f64>() / all_s,
            _ => 0.0,
        }
    }
}

/// Runs the passes of a schedule in simulated time.
///
/// A pass starts when the one before it on the rank has ended and its input has arrived. Sends and receives keep
/// no rank from computing, whether they are in the lists or not; sums of gradients and gathers take no time.
///
/// # Errors
/// [`Broken`] when the verifier refuses the schedule.
///
/// # Panics
/// When the costs are not for as many stages as the schedule has.
pub fn simulate(schedule: &Schedule, costs: &Costs) -> Result<Timing, Broken> {
    let live_max = verify(schedule)?.live_max;
    let (given, stages) = (costs.stages.len(), schedule.stages() as usize);
    assert_eq!(given, stages, "costs for {given} stages, not {stages}");
    let ranks = schedule.ranks().len();
    let mut made_s = vec![0.0_f64; schedule.values()];
    let mut free_s = vec![0.0_f64; ranks];
    let mut busy_s = vec![0.0; ranks];
    let mut spans = vec![Vec::new(); ranks];
    run(schedule, |rank, action| {
        let Action::Compute(compute) = action else {
            return;
        };
        let arrived_s = schedule.input(compute).map_or(0.0, |message| {
            let made_s = made_s[schedule.value(message)];
            made_s + f64::from(schedule.crosses(message)) * costs.message_s
        });
        let start_s = free_s[rank.index()].max(arrived_s);
        let time_s = costs.stages[compute.stage as usize].of(compute.pass);
        let end_s = start_s + time_s;
        if let Some(message) = schedule.output(compute) {
            made_s[schedule.value(message)] = end_s;
        }
        free_s[rank.index()] = end_s;
        busy_s[rank.index()] += time_s;
        spans[rank.index()].push(Span { compute, start_s, end_s });
    })?;
    Ok(Timing { makespan_s: free_s.into_iter().fold(0.0, f64::max), busy_s, live_max, spans })
}
