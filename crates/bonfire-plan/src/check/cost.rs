//! What a plan costs: frames, elements and rounds, counted while the verifier runs it.

use std::fmt;

use crate::{Bytes, DType};

/// What one rank sends, receives and folds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RankCost {
    /// Frames put into the inboxes of peers, empty ones included.
    pub frames_sent: u64,
    /// Frames awaited from peers, empty ones included.
    pub frames_received: u64,
    /// Elements in the frames that it puts; none of direct steps.
    pub elems_sent: u64,
    /// Elements in the frames that it waits for; none of direct steps.
    pub elems_received: u64,
    /// Elements read from the buffers of peers, without a frame.
    pub elems_read_direct: u64,
    /// Elements written to the buffers of peers, without a frame.
    pub elems_written_direct: u64,
    /// Additions (or whatever the fold does): every operand after the first, element by element.
    pub elems_folded: u64,
}

impl RankCost {
    /// The bytes sent, without headers.
    pub const fn bytes_sent(&self, dtype: DType) -> Bytes {
        Bytes::of(self.elems_sent, dtype)
    }

    /// The bytes received, without headers.
    pub const fn bytes_received(&self, dtype: DType) -> Bytes {
        Bytes::of(self.elems_received, dtype)
    }
}

/// What a whole plan costs.
///
/// Rounds count frames one after the other, under two models of a rank. In the first it sends
/// any number of frames at once, and only what it waited for holds a frame back. In the second,
/// the *one-port* model, a rank sends one frame at a time, each taking one unit of time. The first
/// is the latency of small messages on links of their own, the second that of a shared uplink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    pub(crate) ranks: Vec<RankCost>,
    pub(crate) rounds: u64,
    pub(crate) rounds_one_port: u64,
}

impl Cost {
    /// The cost of each rank, in rank order.
    pub fn ranks(&self) -> &[RankCost] {
        &self.ranks
    }

    /// The longest chain of frames of which each had to arrive before the next could be put.
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// The time at which the last frame arrives when a rank sends one frame per unit of time.
    pub const fn rounds_one_port(&self) -> u64 {
        self.rounds_one_port
    }

    /// The most that any rank sends, without headers.
    pub fn bytes_sent_max(&self, dtype: DType) -> Bytes {
        let sent = self.ranks.iter().map(|rank| rank.bytes_sent(dtype));
        sent.max().unwrap_or_default()
    }

    /// What all ranks send together, without headers.
    pub fn bytes_sent_total(&self, dtype: DType) -> Bytes {
        Bytes::of(self.ranks.iter().map(|rank| rank.elems_sent).sum(), dtype)
    }
}

impl fmt::Display for Cost {
    /// One line per rank, and the rounds.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rounds, one_port) = (self.rounds, self.rounds_one_port);
        writeln!(formatter, "rounds {rounds}, one-port {one_port}")?;
        writeln!(formatter, " rank  frames out/in  elements out/in  folded")?;
        for (rank, cost) in self.ranks.iter().enumerate() {
            let frames = format!("{}/{}", cost.frames_sent, cost.frames_received);
            let elems = format!("{}/{}", cost.elems_sent, cost.elems_received);
            let folded = cost.elems_folded;
            writeln!(formatter, "{rank:>5}  {frames:>13}  {elems:>15}  {folded:>6}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use crate::{
        Algorithm, Collective, Hosts, Partition, Schedule, ScheduleShape, WorldSize, check,
    };

    #[test]
    fn a_cost_prints_one_line_per_rank() {
        let world_size = WorldSize::new(3).unwrap();
        let schedule = Schedule::new(ScheduleShape {
            collective: Collective::AllReduce,
            algorithm: Algorithm::Ring,
            world_size,
            count: 10,
            chunk_elems_max: NonZeroUsize::new(64).unwrap(),
            partition: Partition::Balanced,
            hosts: Hosts::one(world_size),
        });
        let report = check(&schedule.unwrap(), NonZeroUsize::MIN).unwrap();
        let expected = "\
rounds 4, one-port 4
 rank  frames out/in  elements out/in  folded
    0            4/4            13/13       7
    1            4/4            14/13       6
    2            4/4            13/14       7
";
        assert_eq!(report.cost.to_string(), expected);
    }
}
