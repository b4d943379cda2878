//! Plans whose frames stay where they are: the receiver reaches into the sender's buffer.
//!
//! An engine whose ranks reach each other's buffers need not move a frame to an inbox to read it there: the frame
//! becomes empty, a message that says "ready", and what was done with its content becomes a [`Step::ReduceDirect`] on
//! the sender's buffer. That is a different plan, and not every plan stays right: a sender may write the elements
//! again while they are still to be read, which it could do once a frame had a copy of them. The verifier knows
//! ([`check_plan`](crate::check_plan) finds races); the ring's plans stay right, because a rank writes a chunk that
//! its neighbour was to read only when the complete result has come round to it, by way of that neighbour.
//!
//! A barrier ends the plan: a neighbour may still be reading when a rank has done its own part. Where only two ranks
//! take part, they alone meet. Barriers in place are of one hop: everyone notifies everyone else and waits for
//! everyone else. Where frames stay in place a message is a store to the peer's memory, and a rank's stores are under
//! way side by side, so n - 1 of them take less time than the log2 n hops of a
//! [dissemination](Algorithm::Dissemination), which follow one another.
//!
//! Of ranks that wait for each other, the one that keeps the rest waiting is the one that has sent least of what it
//! was to send. In a ring all ranks send equally much, and send before they wait. In a [chain](Algorithm::Chain)
//! whose links are single ranks they do not, so there each rank first notifies the next one that it is there, and the
//! two at the ends, which have one neighbour instead of two, send it everything twice.

use crate::{Algorithm, Collective, ElemRange, Rank, Schedule, Source, Step, WorldSize};

impl Schedule {
    /// What `rank` does if frames stay where they are. All frames are empty, and every fold and copy is
    /// a [`Step::ReduceDirect`].
    ///
    /// [`Algorithm::Ring`], [`Algorithm::Chain`] as an all-reduce whose links are single ranks, and
    /// [`Algorithm::ZeroCopy`] are known to stay right; of the latter, as of a barrier, only the barriers change. So is
    /// [`Algorithm::OneShot`] where nothing is folded: gather, scatter, transfer and exchange, and an all-to-all
    /// between two buffers. Ask [`check_plan`](crate::check_plan) about others.
    ///
    /// ```
    /// use std::num::NonZeroUsize;
    ///
    /// use bonfire_plan::*;
    ///
    /// let world_size = WorldSize::new(4)?;
    /// let schedule = Schedule::new(ScheduleShape {
    ///     collective: Collective::AllReduce,
    ///     algorithm: Algorithm::Ring,
    ///     world_size,
    ///     count: 1003,
    ///     chunk_elems_max: NonZeroUsize::new(64).unwrap(),
    ///     partition: Partition::Balanced,
    ///     hosts: Hosts::one(world_size),
    /// })?;
    /// let steps = world_size.ranks().map(|rank| schedule.steps_in_place(rank)).collect();
    /// let plan = Plan::with_steps(schedule, steps);
    /// check_plan(&plan, NonZeroUsize::new(64).unwrap())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// When `rank` is not a member of the world.
    pub fn steps_in_place(&self, rank: Rank) -> Vec<Step> {
        let moved = self.steps(rank);
        match self.algorithm() {
            Algorithm::Dissemination => met(self.world_size(), rank),
            Algorithm::ZeroCopy => {
                let is_fold = |step: &Step| matches!(step, Step::ReduceDirect { .. });
                let mut steps = met(self.world_size(), rank);
                steps.extend(moved.into_iter().filter(is_fold));
                steps.extend(met(self.world_size(), rank));
                steps
            }
            Algorithm::Chain if self.has_links_of_one() => {
                let steps = sent_evenly(self.world_size(), rank, moved);
                in_place(self.world_size(), self.collective(), rank, steps)
            }
            _ => in_place(self.world_size(), self.collective(), rank, moved),
        }
    }

    /// Whether no rank is in a link of the chain with another.
    fn has_links_of_one(&self) -> bool {
        let hosts = &self.shape().hosts;
        hosts.runs().last().map(|run| run as usize + 1) == Some(hosts.rank_count())
    }
}

/// The steps of a chain of single ranks in which all send equally much, and before they wait.
fn sent_evenly(world: WorldSize, rank: Rank, moved: Vec<Step>) -> Vec<Step> {
    if world.len() == 1 {
        return moved;
    }
    let (next, prev) = (world.next(rank), world.prev(rank));
    let source = ElemRange::up_to(0);
    let mut steps = vec![
        Step::Put { peer: next, source },
        Step::Wait { peer: prev },
        Step::Release { peer: prev },
    ];
    let is_end = |rank: Rank| world.len() > 2 && (rank.get() == 0 || rank.get() + 1 == world.get());
    for step in moved {
        match step {
            Step::Put { .. } if is_end(rank) => steps.push(step.clone()),
            Step::Wait { peer } if is_end(peer) => {
                steps.extend([step.clone(), Step::Release { peer }]);
            }
            _ => {}
        }
        steps.push(step);
    }
    steps
}

fn in_place(world: WorldSize, collective: Collective, rank: Rank, moved: Vec<Step>) -> Vec<Step> {
    let mut steps = Vec::with_capacity(moved.len());
    let source = ElemRange::up_to(0);
    for step in moved {
        match step {
            Step::Put { peer, .. } => steps.push(Step::Put { peer, source }),
            Step::Reduce { target, sources, stage } if !target.is_empty() => {
                let owner = |source: &Source| match source {
                    Source::Own => rank,
                    Source::Inbox(peer) => *peer,
                };
                steps.push(Step::ReduceDirect {
                    range: target,
                    sources: sources.iter().map(owner).collect(),
                    targets: Box::new([rank]),
                    stage,
                });
            }
            Step::Copy { peer, target } if !target.is_empty() => steps.push(Step::ReduceDirect {
                range: target,
                sources: Box::new([peer]),
                targets: Box::new([rank]),
                stage: crate::Stage::Partial,
            }),
            Step::Reduce { .. } | Step::Copy { .. } => {}
            Step::Wait { .. } | Step::Release { .. } | Step::ReduceDirect { .. } => {
                steps.push(step);
            }
        }
    }
    if collective.involves(rank) {
        let ranks = world.ranks().filter(|&peer| collective.involves(peer));
        meet(ranks, rank, &mut steps);
    }
    steps
}

fn met(world: WorldSize, rank: Rank) -> Vec<Step> {
    let mut steps = Vec::new();
    meet(world.ranks(), rank, &mut steps);
    steps
}

/// A barrier of some ranks, of which this is one.
fn meet(ranks: impl Iterator<Item = Rank> + Clone, rank: Rank, steps: &mut Vec<Step>) {
    let peers = ranks.filter(|&peer| peer != rank);
    let source = ElemRange::up_to(0);
    steps.extend(peers.clone().map(|peer| Step::Put { peer, source }));
    steps.extend(peers.flat_map(|peer| [Step::Wait { peer }, Step::Release { peer }]));
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::{
        CheckError, Collective, Fault, Hosts, Order, Partition, Plan, ScheduleShape, check_plan,
    };

    /// Of shards of two chunks; the links of a chain are single ranks.
    fn plan(collective: Collective, algorithm: Algorithm, world: u32, count: usize) -> Plan {
        let chunk_elems_max = count.div_ceil(world as usize).div_ceil(2).max(1);
        plan_of(collective, algorithm, world, count, chunk_elems_max)
    }

    fn plan_of(
        collective: Collective,
        algorithm: Algorithm,
        world: u32,
        count: usize,
        chunk_elems_max: usize,
    ) -> Plan {
        let world_size = WorldSize::new(world).unwrap();
        let schedule = Schedule::new(ScheduleShape {
            collective,
            algorithm,
            world_size,
            count,
            chunk_elems_max: NonZeroUsize::new(chunk_elems_max).unwrap(),
            partition: Partition::Balanced,
            hosts: match algorithm {
                Algorithm::Chain => Hosts::new((0..world).collect()),
                _ => Hosts::one(world_size),
            },
        })
        .unwrap();
        let steps = world_size.ranks().map(|rank| schedule.steps_in_place(rank)).collect();
        Plan::with_steps(schedule, steps)
    }

    /// Frames are empty, so a word that counts them is enough: as many slots as there can be frames.
    fn slots() -> NonZeroUsize {
        NonZeroUsize::new(1 << 20).unwrap()
    }

    #[test]
    fn rings_stay_right_in_place() {
        let collectives = [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather];
        // Miri runs a thousand times slower.
        let most = if cfg!(miri) { 4 } else { 64 };
        for world in 1..=most {
            for count in [1, 2 * world as usize + 1, 5 * world as usize] {
                for collective in collectives {
                    let plan = plan(collective, Algorithm::Ring, world, count);
                    check_plan(&plan, slots())
                        .unwrap_or_else(|error| panic!("{collective} of {count}: {error}\n{plan}"));
                }
            }
        }
    }

    #[test]
    fn chains_of_single_ranks_stay_right_in_place() {
        let most = if cfg!(miri) { 4 } else { 64 };
        for world in 1..=most {
            let ranks = world as usize;
            for count in [0, 1, 2 * ranks + 1, 5 * ranks] {
                let plan = plan(Collective::AllReduce, Algorithm::Chain, world, count);
                let report = check_plan(&plan, slots())
                    .unwrap_or_else(|error| panic!("{count}: {error}\n{plan}"));
                assert!(report.order <= Order::Rounded, "{plan}");
            }
        }
        // Many more pieces than ranks.
        let plan = plan_of(Collective::AllReduce, Algorithm::Chain, 3, 513, 8);
        check_plan(&plan, slots()).unwrap_or_else(|error| panic!("{error}\n{plan}"));
    }

    #[test]
    fn ranks_of_a_chain_tell_equally_much_and_tell_before_they_wait() {
        for world in 2..=9 {
            for count in [0, 1, 4 * world as usize, 101] {
                let plan = plan(Collective::AllReduce, Algorithm::Chain, world, count);
                let puts = plan.schedule().world_size().ranks().map(|rank| {
                    let steps = plan.steps(rank);
                    assert!(matches!(steps[0], Step::Put { .. }), "{plan}");
                    let is_put = |step: &&Step| matches!(step, Step::Put { .. });
                    steps.iter().filter(is_put).count()
                });
                let puts: Vec<usize> = puts.collect();
                assert!(puts.iter().all(|own| *own == puts[0]), "{puts:?}: {plan}");
            }
        }
    }

    #[test]
    fn plans_that_only_move_blocks_stay_right_in_place() {
        let most = if cfg!(miri) { 3 } else { 16 };
        for world in 2..=most {
            let (root, last) = (Rank::new(1), Rank::new(world - 1));
            let first = Rank::new(0);
            let (source, target) = (last, first);
            for collective in [
                Collective::Gather { root },
                Collective::Scatter { root },
                Collective::AllToAll,
                Collective::Transfer { source, target },
                Collective::Exchange { first, second: last },
            ] {
                let count = 2 * (world * world) as usize;
                let plan = plan(collective, Algorithm::OneShot, world, count);
                check_plan(&plan, slots())
                    .unwrap_or_else(|error| panic!("{collective}: {error}\n{plan}"));
            }
        }
    }

    #[test]
    fn zero_copy_plans_stay_right_with_barriers_of_one_hop() {
        let most = if cfg!(miri) { 4 } else { 64 };
        for world in 1..=most {
            let root = Rank::new(world - 1);
            for collective in [
                Collective::AllReduce,
                Collective::ReduceScatter,
                Collective::AllGather,
                Collective::Broadcast { root },
                Collective::Reduce { root },
            ] {
                let plan = plan(collective, Algorithm::ZeroCopy, world, 23);
                check_plan(&plan, slots())
                    .unwrap_or_else(|error| panic!("{collective}: {error}\n{plan}"));
            }
            let barrier = plan(Collective::Barrier, Algorithm::Dissemination, world, 0);
            check_plan(&barrier, slots()).unwrap_or_else(|error| panic!("{error}\n{barrier}"));
        }
    }

    #[test]
    fn in_a_barrier_in_place_all_tell_all_before_they_wait() {
        for world in 1..=16 {
            let plan = plan(Collective::Barrier, Algorithm::Dissemination, world, 0);
            for rank in plan.schedule().world_size().ranks() {
                let peers = world as usize - 1;
                let (sent, waited) = plan.steps(rank).split_at(peers);
                assert!(sent.iter().all(|step| matches!(step, Step::Put { .. })));
                assert_eq!(waited.len(), 2 * peers, "{plan}");
            }
        }
    }

    #[test]
    fn a_plan_that_needs_its_frames_copied_is_found_out() {
        let plan = plan(Collective::AllReduce, Algorithm::OneShot, 3, 12);
        let error = check_plan(&plan, slots()).unwrap_err();
        assert!(matches!(&error, CheckError::Step { fault: Fault::Race { .. }, .. }), "{error:?}");
    }

    #[test]
    fn without_its_last_barrier_a_plan_races_with_what_follows() {
        for algorithm in [Algorithm::Ring, Algorithm::Chain] {
            let whole = plan(Collective::AllReduce, algorithm, 3, 12);
            let schedule = whole.schedule().clone();
            let peers = 2;
            let steps = schedule
                .world_size()
                .ranks()
                .map(|rank| {
                    let steps = whole.steps(rank);
                    steps[..steps.len() - 3 * peers].to_vec()
                })
                .collect();
            let cut = Plan::with_steps(schedule, steps);
            assert!(check_plan(&cut, slots()).is_err(), "{cut}");
        }
    }
}
