//! The rounds in which a group is rebuilt, seen from one of its ranks.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use bonfire_plan::{Rank, WorldSize};

use super::super::roster::{Origin, Regrown, Roster};
use super::super::{Core, Parts, ProcessGroup};
use super::{RebuildError, RebuildOptions, Rebuilt, WaitFor};
use crate::error::Failure;
use crate::options::GroupOptions;
use crate::platform::clock;
use crate::rendezvous::{
    Address, AtTheEnd, ConnectError, Deadline, Formation, Formed, Home, Listeners, Outcome,
    Presence, Round, Settings,
};
use crate::store::{Store, StoreError};
use crate::topology::Topology;

/// How often a rank that connects looks whether the round has failed.
const ROUND_LOOK: Duration = Duration::from_millis(100);

/// How long a decision may take to be told.
const DECIDING_MAX: Duration = Duration::from_secs(2);

/// One rank on its way to the next group.
pub(super) struct Reunion<'a> {
    /// In the first group of the job.
    pub(super) me: Rank,
    /// Of the first group of the job.
    pub(super) job_size: WorldSize,
    pub(super) picked: &'a Arc<AtomicU32>,
    pub(super) group_options: &'a GroupOptions,
    pub(super) origin: &'a Origin,
    /// The group that it comes from, and its generation.
    pub(super) old: Option<(u32, &'a Core)>,
    pub(super) options: &'a RebuildOptions,
}

/// What came of a round.
enum Ended {
    Ready(Box<Rebuilt>),
    /// Another one is needed.
    Broken(Option<ConnectError>),
}

/// Those who meet in a round.
struct Party {
    generation: u32,
    number: u32,
    me: Rank,
    present: Vec<Presence>,
}

/// What a rank has of the new group before all agree that it is complete.
enum Draft {
    /// It will take its seat at the hub.
    Seat,
    Connected(Box<Formed>),
}

impl Reunion<'_> {
    pub(super) fn meet(&self) -> Result<Rebuilt, RebuildError> {
        let deadline = Deadline::after(self.options.timeout);
        match self.origin {
            Origin::Threads(hub) => self.meet_in(hub.store(), 0, deadline),
            Origin::Processes(home) => {
                let meeting = home.meeting.as_ref().ok_or(RebuildError::NoStore)?;
                let store = meeting.connect(deadline.left().min(self.options.join_timeout));
                let store = store.map_err(RebuildError::StoreGone)?;
                self.meet_in(&store, meeting.attempt, deadline)
            }
        }
    }

    fn meet_in(
        &self,
        store: &dyn Store,
        attempt: u32,
        deadline: Deadline,
    ) -> Result<Rebuilt, RebuildError> {
        let mut generation = self.old.map_or(0, |(generation, _)| generation) + 1;
        let mut rounds = 0;
        loop {
            let mut round = Round::of(store, attempt, generation);
            let is_over = round
                .outcome(Duration::ZERO)
                .map_err(RebuildError::StoreGone)?;
            if is_over.is_none() {
                rounds += 1;
                match self.attend(&mut round, generation, deadline)? {
                    Ended::Ready(rebuilt) => return Ok(*rebuilt),
                    Ended::Broken(source) if deadline.left().is_zero() => {
                        return Err(RebuildError::GaveUp {
                            rounds,
                            waited: deadline.waited(),
                            source,
                        });
                    }
                    Ended::Broken(source) => tracing::info!(
                        target: "bonfire",
                        "rank {}: generation {generation} did not form: {source:?}", self.me
                    ),
                }
            } else if is_over == Some(Outcome::Ready) && self.old.is_some() {
                return Err(self.left_behind(generation));
            }
            generation += 1;
        }
    }

    fn attend(
        &self,
        round: &mut Round<'_>,
        generation: u32,
        deadline: Deadline,
    ) -> Result<Ended, RebuildError> {
        let (listeners, mine) = self.present_itself()?;
        // Who comes back waits for the others, however long they take to notice.
        let (window, at_the_end) = match self.old {
            Some(_) => (
                self.options.join_timeout.min(deadline.left()),
                AtTheEnd::Close,
            ),
            None => (deadline.left(), AtTheEnd::Leave),
        };
        let window = (Deadline::after(window), at_the_end);
        let present = round.muster(&mine, window, |present| self.is_complete(present));
        let Some(present) = present.map_err(RebuildError::StoreGone)? else {
            return Ok(Ended::Broken(None));
        };
        let Some(place) = present.iter().position(|one| one.rank == self.me) else {
            return match round.outcome(self.options.join_timeout) {
                Ok(Some(Outcome::Ready)) => Err(self.left_behind(generation)),
                Ok(_) => Ok(Ended::Broken(None)),
                Err(error) => Err(RebuildError::StoreGone(error)),
            };
        };
        if present.len() < self.options.min_world.len() {
            let _ = round.decide(Outcome::Failed);
            return Err(RebuildError::TooFew {
                present: present.iter().map(|one| one.rank).collect(),
                min_world: self.options.min_world,
            });
        }
        let lowest = &present[0];
        let party = Party {
            generation,
            // As of a split: unique among the groups of the job.
            number: lowest
                .picked
                .wrapping_mul(self.job_size.get())
                .wrapping_add(lowest.rank.get()),
            me: Rank::new(place as u32),
            present,
        };
        for (peer, theirs) in (0..).map(Rank::new).zip(&party.present) {
            if let Err(error) = mine.settings.agree(party.me, peer, &theirs.settings) {
                let _ = round.decide(Outcome::Failed);
                return Err(error.into());
            }
        }
        self.connect(round, party, listeners)
    }

    fn left_behind(&self, generation: u32) -> RebuildError {
        RebuildError::LeftBehind {
            rank: self.me,
            generation,
        }
    }

    fn present_itself(&self) -> Result<(Option<Listeners>, Presence), RebuildError> {
        let (listeners, address) = match self.origin {
            Origin::Threads(_) => (None, None),
            Origin::Processes(home) => {
                let (listeners, address) = home.listen()?;
                (Some(listeners), Some(address))
            }
        };
        let presence = Presence {
            rank: self.me,
            generation: self.old.map(|(generation, _)| generation),
            picked: super::super::roster::pick(self.picked),
            settings: Settings::new(self.group_options),
            address,
        };
        Ok((listeners, presence))
    }

    /// Whether nobody is missing for whom it makes sense to wait.
    fn is_complete(&self, present: &[Presence]) -> bool {
        let is_present = |rank: Rank| present.iter().any(|one| one.rank == rank);
        match (self.options.wait_for, self.old) {
            (WaitFor::Survivors, Some((_, core))) => core.world_size.ranks().all(|rank| {
                is_present(core.roster.world_rank(rank))
                    || core.poison.has_departed(rank)
                    || core.poison.is_lost(rank)
            }),
            _ => self.job_size.ranks().all(is_present),
        }
    }

    fn connect(
        &self,
        round: &Round<'_>,
        party: Party,
        listeners: Option<Listeners>,
    ) -> Result<Ended, RebuildError> {
        let draft = match self.origin {
            Origin::Threads(hub) => {
                let laid = match party.me.get() {
                    0 => hub.lay(party.number, party.world_size(), self.chunk_bytes()?),
                    _ => Ok(()),
                };
                laid.map(|()| Draft::Seat)
            }
            Origin::Processes(home) => {
                let listeners = listeners.expect("a process listens");
                let formed = self.form(round, &party, home, listeners);
                formed.map(|formed| Draft::Connected(Box::new(formed)))
            }
        };
        let ended = match &draft {
            Ok(_) => round.connected(party.present.len()),
            Err(_) => round.decide(Outcome::Failed),
        };
        let is_ready = ended.and_then(|()| self.is_ready(round, &party));
        let is_ready = is_ready.map_err(RebuildError::StoreGone)?;
        match draft {
            Ok(draft) if is_ready => Ok(self.conclude(party, draft)?),
            Ok(_) => {
                if let Origin::Threads(hub) = self.origin {
                    let cause = "the round failed".to_owned();
                    let rank = party.me;
                    hub.abandon(party.number, Failure::Peer { rank, cause });
                }
                Ok(Ended::Broken(None))
            }
            Err(error) => Ok(Ended::Broken(Some(error))),
        }
    }

    /// Waits for the decision; who has waited for too long decides.
    fn is_ready(&self, round: &Round<'_>, party: &Party) -> Result<bool, StoreError> {
        let deadline = Deadline::after(self.options.join_timeout);
        let mut outcome = round.outcome(ROUND_LOOK)?;
        while outcome.is_none() && !deadline.left().is_zero() && self.lost_of(party).is_none() {
            outcome = round.outcome(ROUND_LOOK)?;
        }
        if outcome.is_none() {
            round.decide(Outcome::Failed)?;
            outcome = round.outcome(DECIDING_MAX)?;
        }
        Ok(outcome == Some(Outcome::Ready))
    }

    fn form(
        &self,
        round: &Round<'_>,
        party: &Party,
        home: &Home,
        listeners: Listeners,
    ) -> Result<Formed, ConnectError> {
        let address = |presence: &Presence| {
            let reason = "it has no address".to_owned();
            let rank = presence.rank;
            presence
                .address
                .clone()
                .ok_or(ConnectError::Address { rank, reason })
        };
        let addresses: Vec<Address> = party
            .present
            .iter()
            .map(address)
            .collect::<Result<_, _>>()?;
        let looked = Cell::new(clock::now());
        let token = home.token_of(party.generation);
        let formation = Formation {
            me: party.me,
            group: party.number,
            token: &token,
            addresses: &addresses,
            options: self.group_options,
            chunk_bytes: self.group_options.chunk_bytes_checked()?,
            streams: self.group_options.streams_checked()?,
            deadline: Deadline::after(self.options.join_timeout),
            guard: &|_| {
                if let Some(rank) = self.lost_of(party) {
                    return Err(ConnectError::LostAgain { rank });
                }
                if clock::since(looked.get()) >= ROUND_LOOK {
                    looked.set(clock::now());
                    if round.outcome(Duration::ZERO)? == Some(Outcome::Failed) {
                        return Err(ConnectError::RoundFailed);
                    }
                }
                Ok(())
            },
        };
        formation.form(listeners)
    }

    /// A rank of the party whose process has ended since, as the old group's connections tell.
    fn lost_of(&self, party: &Party) -> Option<Rank> {
        let (_, core) = self.old?;
        let is_lost = |one: &&Presence| {
            let old = core
                .roster
                .members()
                .iter()
                .position(|rank| *rank == one.rank);
            // A newcomer is another process than the one that was lost.
            one.generation.is_some()
                && old.is_some_and(|old| core.poison.is_lost(Rank::new(old as u32)))
        };
        party.present.iter().find(is_lost).map(|one| one.rank)
    }

    fn conclude(&self, party: Party, draft: Draft) -> Result<Ended, RebuildError> {
        let chunk_bytes = self.chunk_bytes()?;
        let topology = match self.origin {
            Origin::Threads(_) => Topology::of(party.present.iter().map(|_| "this process")),
            Origin::Processes(_) => Topology::of(
                party
                    .present
                    .iter()
                    .map(|one| one.address.as_ref().map(|address| &address.host)),
            ),
        };
        let (links, sharing, control, poison) = match (draft, self.origin) {
            (Draft::Connected(formed), _) => {
                let formed = *formed;
                (
                    formed.links,
                    formed.sharing,
                    Some(formed.control),
                    formed.poison,
                )
            }
            (Draft::Seat, Origin::Threads(hub)) => match hub.take(party.number, party.me) {
                Some(seat) => (seat.links, Some(seat.sharing), None, seat.poison),
                None => return Ok(Ended::Broken(None)),
            },
            (Draft::Seat, Origin::Processes(_)) => unreachable!("processes have no seats"),
        };
        let origin = match self.origin {
            Origin::Threads(hub) => Origin::Threads(Arc::clone(hub)),
            Origin::Processes(home) => {
                Origin::Processes(Arc::new(home.of_generation(party.generation)))
            }
        };
        let roster = Roster::regrown(Regrown {
            number: party.number,
            generation: party.generation,
            job_size: self.job_size,
            me: party.me,
            members: party.present.iter().map(|one| one.rank).collect(),
            topology,
            origin,
            picked: Arc::clone(self.picked),
            options: self.group_options.clone(),
        });
        let parts = Parts {
            me: party.me,
            world_size: party.world_size(),
            roster,
            figures: None,
            links,
            sharing,
            control,
            poison,
            chunk_bytes,
        };
        Ok(Ended::Ready(Box::new(Rebuilt {
            group: ProcessGroup::new(parts, self.group_options.clone())?,
            generation: party.generation,
            newcomers: (0..)
                .map(Rank::new)
                .zip(&party.present)
                .filter(|(_, one)| one.generation.is_none())
                .map(|(rank, _)| rank)
                .collect(),
        })))
    }

    fn chunk_bytes(&self) -> Result<usize, ConnectError> {
        self.group_options.chunk_bytes_checked()
    }
}

impl Party {
    fn world_size(&self) -> WorldSize {
        let ranks = u32::try_from(self.present.len()).expect("ranks are numbered in 32 bits");
        WorldSize::new(ranks).expect("this rank is one of them")
    }
}
