//! What the links of a group cost, measured when a choice first depends on it.
//!
//! Ranks meet in pairs: neighbours on each host, and the leaders of neighbouring hosts. One of a pair asks and holds
//! the clock: pings for the latency, then some frames in a row for the throughput. Then every rank sends every other
//! what it measured, and all take the worst, so all know the same.
//!
//! The frames carry the header of the operation that needs the figures: a rank that is in another
//! operation is found out here as it would be there.

use std::time::Duration;

use bonfire_plan::{LinkCosts, LinkFigures, Rank, ReduceOp, Stage, WorldSize};

use super::run::Run;
use crate::exec::fold::{FoldOptions, Operand, fold};
use crate::health::failure::{Failure, Result};
use crate::transport::topology::Topology;
use bonfire_connect::platform::clock;

/// Pings continue for this long after the first answer, which may be late because the peer was.
const PING_TIME: Duration = Duration::from_micros(500);
/// More pings than this show nothing new.
const PINGS_MAX: u32 = 16;
/// There are as many however long they take: on a busy machine one or two may wait for a core.
const PINGS_MIN: u32 = 4;
/// Bursts continue for this long; there is one in any case.
const BURST_TIME: Duration = Duration::from_millis(1);
/// More bursts than this show nothing new.
const BURSTS_MAX: u32 = 3;
/// A burst is half a megabyte at most: a few milliseconds on a gigabit link.
const BURST_FRAMES: usize = 8;
const BURST_FRAME_BYTES_MAX: usize = 64 << 10;
/// Elements of the fold that is measured: it stays in a second-level cache, as chunks do.
const FOLD_ELEMS: usize = 16 << 10;
const FOLDS: u32 = 4;
/// What the one who asks says to the other: what follows.
const PING: u64 = 1;
const BURST: u64 = 2;
const DONE: u64 = 3;
const FIGURES_BYTES: usize = 5 * size_of::<f64>();

/// Of what a rank measured, with zeros for links that the group does not have.
fn numbers(figures: &LinkFigures) -> [f64; 5] {
    let LinkFigures { intra_host, inter_host, gamma_s_per_byte } = figures;
    let [intra, inter] = [intra_host, inter_host].map(|link| [link.alpha_s, link.beta_s_per_byte]);
    [intra[0], intra[1], inter[0], inter[1], *gamma_s_per_byte]
}

fn of_numbers(numbers: [f64; 5]) -> LinkFigures {
    let link = |alpha_s, beta_s_per_byte| LinkCosts { alpha_s, beta_s_per_byte };
    LinkFigures {
        intra_host: link(numbers[0], numbers[1]),
        inter_host: link(numbers[2], numbers[3]),
        gamma_s_per_byte: numbers[4],
    }
}

fn encode(figures: &LinkFigures) -> [u8; FIGURES_BYTES] {
    let mut bytes = [0; FIGURES_BYTES];
    for (place, number) in bytes.chunks_exact_mut(8).zip(numbers(figures)) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// `None` if a number is not one that a clock can give.
fn decode(bytes: &[u8; FIGURES_BYTES]) -> Option<LinkFigures> {
    let mut numbers = [0.0; 5];
    for (number, place) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
        *number = f64::from_le_bytes(place.try_into().expect("eight bytes"));
    }
    let plausible = |number: &f64| number.is_finite() && *number >= 0.0;
    numbers.iter().all(plausible).then(|| of_numbers(numbers))
}

fn worst_of(one: &LinkFigures, other: &LinkFigures) -> LinkFigures {
    let (one, other) = (numbers(one), numbers(other));
    of_numbers(std::array::from_fn(|index| one[index].max(other[index])))
}

/// One pair, seen from one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meeting {
    peer: Rank,
    part: Part,
    span: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Asks,
    Answers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    IntraHost,
    InterHost,
}

/// Whom `me` meets, in the order in which it does. Pairs inside hosts come first for everybody, so
/// nobody waits in a circle.
fn meetings(topology: &Topology, me: Rank) -> Vec<Meeting> {
    let host = topology.host_of(me);
    let neighbour = |ranks: &[Rank], place: usize, span| {
        let (partner, part) = match place % 2 {
            0 => (place + 1, Part::Asks),
            _ => (place - 1, Part::Answers),
        };
        let peer = *ranks.get(partner)?;
        Some(Meeting { peer, part, span })
    };
    let local_rank = topology.local_rank(me) as usize;
    let inside = neighbour(topology.ranks_of(host), local_rank, Span::IntraHost);
    let leads = local_rank == 0;
    let across =
        leads.then(|| neighbour(&topology.leaders(), host as usize, Span::InterHost)).flatten();
    inside.into_iter().chain(across).collect()
}

impl Run<'_> {
    /// Measures, together with all ranks of the group, who must be at the same point.
    pub(super) fn measure(&mut self) -> Result<LinkFigures> {
        let meetings = meetings(self.executor.selector.topology(), self.executor.me);
        let mut burst = vec![0; self.executor.chunk_bytes.min(BURST_FRAME_BYTES_MAX)];
        let mut mine = LinkFigures {
            gamma_s_per_byte: measure_fold(self.executor.world_size),
            ..LinkFigures::default()
        };
        for meeting in meetings {
            match (meeting.part, meeting.span) {
                (Part::Asks, Span::IntraHost) => {
                    mine.intra_host = self.ask(meeting.peer, &burst)?;
                }
                (Part::Asks, Span::InterHost) => {
                    mine.inter_host = self.ask(meeting.peer, &burst)?;
                }
                (Part::Answers, _) => self.answer(meeting.peer, &mut burst)?,
            }
        }
        self.agree(mine)
    }

    fn ask(&mut self, peer: Rank, burst: &[u8]) -> Result<LinkCosts> {
        self.ping(peer)?;
        let mut round_trip = f64::INFINITY;
        let started = clock::now();
        for pings in 1..=PINGS_MAX {
            round_trip = round_trip.min(self.ping(peer)?);
            if pings >= PINGS_MIN && clock::since(started) >= PING_TIME {
                break;
            }
        }
        let mut burst_time = f64::INFINITY;
        let started = clock::now();
        for _ in 0..BURSTS_MAX {
            let sent = clock::now();
            self.put::<u8>(peer, &BURST.to_le_bytes())?;
            for _ in 0..BURST_FRAMES {
                self.put::<u8>(peer, burst)?;
            }
            self.receive_word(peer)?;
            burst_time = burst_time.min(clock::since(sent).as_secs_f64());
            if clock::since(started) >= BURST_TIME {
                break;
            }
        }
        self.put::<u8>(peer, &DONE.to_le_bytes())?;
        let bytes = (burst.len() * BURST_FRAMES) as f64;
        Ok(LinkCosts {
            alpha_s: round_trip / 2.0,
            beta_s_per_byte: (burst_time - round_trip).max(0.0) / bytes,
        })
    }

    fn ping(&mut self, peer: Rank) -> Result<f64> {
        let sent = clock::now();
        self.put::<u8>(peer, &PING.to_le_bytes())?;
        self.receive_word(peer)?;
        Ok(clock::since(sent).as_secs_f64())
    }

    fn answer(&mut self, peer: Rank, burst: &mut [u8]) -> Result<()> {
        // Ends by the deadline of the operation at the latest.
        loop {
            match self.receive_word(peer)? {
                PING => {}
                BURST => {
                    for _ in 0..BURST_FRAMES {
                        self.receive(peer, burst)?;
                    }
                }
                DONE => return Ok(()),
                word => return Err(self.nonsense(peer, word)),
            }
            self.put::<u8>(peer, &PING.to_le_bytes())?;
        }
    }

    /// Everybody's figures to everybody. Each pair of ranks has one frame under way in each
    /// direction, for which there is room, so nobody waits in a circle.
    fn agree(&mut self, mine: LinkFigures) -> Result<LinkFigures> {
        let (me, world_size) = (self.executor.me, self.executor.world_size);
        let bytes = encode(&mine);
        for peer in world_size.ranks().filter(|peer| *peer != me) {
            self.put::<u8>(peer, &bytes)?;
        }
        let mut worst = mine;
        for peer in world_size.ranks().filter(|peer| *peer != me) {
            let mut bytes = [0; FIGURES_BYTES];
            self.receive(peer, &mut bytes)?;
            let theirs = decode(&bytes).ok_or_else(|| self.nonsense(peer, 0))?;
            worst = worst_of(&worst, &theirs);
        }
        Ok(worst)
    }

    fn receive_word(&mut self, peer: Rank) -> Result<u64> {
        let mut word = [0; 8];
        self.receive(peer, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn receive(&mut self, peer: Rank, target: &mut [u8]) -> Result<()> {
        let waited = self.executor.links.wait(peer, self.limits);
        waited.map_err(|error| self.explain(peer, error))?;
        self.check_header(peer)?;
        let frame = self.executor.links.front(peer).expect("the wait returned");
        let payload = frame.payload();
        if payload.len() != target.len() {
            return Err(self.nonsense(peer, payload.len() as u64));
        }
        target.copy_from_slice(payload);
        self.executor.links.release(peer);
        Ok(())
    }

    fn nonsense(&self, peer: Rank, number: u64) -> Failure {
        Failure::Peer {
            rank: peer,
            cause: format!(
                "it sent something else ({number}) while the links were measured for {}; do all \
                 ranks run the same version with the same options?",
                self.operation()
            ),
        }
    }
}

/// The cost of arithmetic on this rank, per byte of one operand.
fn measure_fold(world_size: WorldSize) -> f64 {
    let options =
        FoldOptions { reduce: ReduceOp::Sum, stage: Stage::Partial, world_size, streams: false };
    let mut target = vec![1.0_f32; FOLD_ELEMS];
    let other = vec![1.0_f32; FOLD_ELEMS];
    let mut fastest = f64::INFINITY;
    for _ in 0..FOLDS {
        let started = clock::now();
        fold(&mut target, &[Operand::Target, Operand::Peer(&other)], options);
        fastest = fastest.min(clock::since(started).as_secs_f64());
    }
    std::hint::black_box(&target);
    fastest / size_of_val(&other[..]) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who meets whom, as each of the two sees it.
    fn check(hosts: &[u32]) -> Vec<(u32, u32, Span)> {
        let topology = Topology::of(hosts);
        let ranks = || (0..hosts.len() as u32).map(Rank::new);
        let mut pairs = Vec::new();
        for me in ranks() {
            for meeting in meetings(&topology, me) {
                let seen_there = Meeting {
                    peer: me,
                    part: match meeting.part {
                        Part::Asks => Part::Answers,
                        Part::Answers => Part::Asks,
                    },
                    span: meeting.span,
                };
                assert!(meetings(&topology, meeting.peer).contains(&seen_there));
                let same = topology.same_host(me, meeting.peer);
                assert_eq!(same, meeting.span == Span::IntraHost);
                if meeting.part == Part::Asks {
                    pairs.push((me.get(), meeting.peer.get(), meeting.span));
                }
            }
        }
        pairs
    }

    #[test]
    fn neighbours_meet_and_both_know_it() {
        assert_eq!(check(&[0]), []);
        assert_eq!(check(&[0, 0, 0]), [(0, 1, Span::IntraHost)]);
        assert_eq!(check(&[0, 1]), [(0, 1, Span::InterHost)]);
        assert_eq!(
            check(&[0, 1, 0, 1, 2]),
            [(0, 2, Span::IntraHost), (0, 1, Span::InterHost), (1, 3, Span::IntraHost)]
        );
    }

    #[test]
    fn the_worst_figures_count_and_nonsense_is_refused() {
        let one = of_numbers([1.0, 2.0, 0.0, 4.0, 5.0]);
        let other = of_numbers([2.0, 1.0, 3.0, 4.0, 0.5]);
        let worst = of_numbers([2.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(worst_of(&one, &other), worst);
        assert_eq!(decode(&encode(&worst)), Some(worst));
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            let figures = of_numbers([0.0, bad, 0.0, 0.0, 0.0]);
            assert_eq!(decode(&encode(&figures)), None);
        }
    }

    #[test]
    fn arithmetic_costs_something() {
        let cost = measure_fold(WorldSize::ONE);
        assert!(cost > 0.0 && cost.is_finite());
    }
}
