//! One split on one rank.
//!
//! A split is two all-gathers of the group that is split, with the connecting in between:
//! 1. every rank proposes: its color and key, its settings, and where it listens;
//! 2. the ranks of one color connect: processes to one another, while threads take the links that
//!    the lowest of them made;
//! 3. every rank says how that went, so either all ranks of a color have their group or none has.
//!
//! Both all-gathers are one turn of the old group: no other operation of this rank comes between.

use std::sync::Arc;
use std::time::Duration;

use bonfire_plan::{LinkFigures, Partition, Rank, WorldSize};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::roster::{Origin, Part};
use super::super::{Core, Parts};
use super::Wish;
use crate::CollectiveError;
use crate::exec::executor::Caller;
use crate::health::failure::Failure;
use crate::health::recorder::Name;
use crate::rendezvous::group_error::Result;
use crate::rendezvous::{
    Address, ConnectError, Deadline, Formation, Formed, Home, Listeners, Settings,
};

/// What a rank says in an all-gather of a split, padded to one length for all. Several times what a
/// proposal can take: a host's name, the socket's, and the settings. Odd, so that it is unlikely to
/// be the length of an all-gather that a rank calls by mistake; if it is, the content gives it away.
const RECORD_BYTES: usize = 4093;
/// The reason of a failure is cut to this, so that it fits a record also when every byte is escaped.
const REASON_BYTES_MAX: usize = 300;

/// What a rank wants, and how it can be reached.
#[derive(Debug, Serialize, Deserialize)]
struct Proposal {
    /// The call, which must be the same on all ranks.
    call: String,
    color: Option<u32>,
    key: i64,
    /// The number that this rank picked for its group, in case it is the lowest there.
    picked: u32,
    settings: Settings,
    /// Where a process listens; nothing for a thread; the reason if it cannot.
    place: Result<Option<Address>, String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Verdict {
    failed: Option<String>,
}

struct Party {
    number: u32,
    me: Rank,
    /// Their ranks in the old group, in their new order.
    ranks: Vec<Rank>,
    chunk_bytes: usize,
    streams: u8,
}

pub(super) struct Attempt<'a> {
    pub(super) core: &'a Core,
    pub(super) wish: Wish,
}

/// What this rank has of its new group before all agree that it is complete.
enum Draft {
    Nothing,
    /// It will take its links from the pool.
    Pooled(Party),
    Connected(Party, Box<Formed>),
}

impl Attempt<'_> {
    pub(super) fn run(&self) -> Result<Option<Parts>> {
        let (listeners, proposal) = self.propose();
        let proposals: Vec<Proposal> = self.gather(&proposal)?;
        let draft = self.draft(&proposals, listeners);
        let failed = draft.as_ref().err().map(|error| {
            let reason = describe(error);
            reason[..reason.floor_char_boundary(REASON_BYTES_MAX)].to_owned()
        });
        match (draft, self.gather(&Verdict { failed })) {
            (Ok(draft), Ok(verdicts)) => self.conclude(draft, &verdicts),
            (Ok(draft), Err(error)) => {
                self.forsake(draft, &error.to_string());
                Err(error)
            }
            (Err(error), Ok(_)) => Err(error.into()),
            // The old group's failure is why the new one did not form.
            (Err(_), Err(error)) => Err(error),
        }
    }

    fn propose(&self) -> (Option<Listeners>, Proposal) {
        let roster = &self.core.roster;
        let (listeners, place) = match (&roster.origin, self.wish.color) {
            (Origin::Processes(home), Some(_)) => match home.listen() {
                Ok((listeners, address)) => (Some(listeners), Ok(Some(address))),
                Err(error) => {
                    let reason = describe(&error);
                    let end = reason.floor_char_boundary(REASON_BYTES_MAX);
                    (None, Err(reason[..end].to_owned()))
                }
            },
            _ => (None, Ok(None)),
        };
        let proposal = Proposal {
            call: self.wish.call.clone(),
            color: self.wish.color,
            key: self.wish.key,
            picked: roster.pick(),
            settings: Settings::new(&self.wish.options),
            place,
        };
        (listeners, proposal)
    }

    fn gather<R: Serialize + DeserializeOwned>(&self, record: &R) -> Result<Vec<R>> {
        let core = self.core;
        let text = serde_json::to_vec(record).expect("a record is plain data");
        assert!(
            text.len() <= RECORD_BYTES,
            "a record of {} bytes where {RECORD_BYTES} have room",
            text.len()
        );
        let mut data = vec![0_u8; RECORD_BYTES * core.world_size.len()];
        data[RECORD_BYTES * core.me.index()..][..text.len()].copy_from_slice(&text);
        let caller = Caller {
            call_site: self.wish.call_site,
            name: Name::default(),
            agreed: 0,
            step: None,
            eagerness: core.eagerness,
            timeout: core.roster.options.timeout,
        };
        core.all_gather(caller, &mut data, Partition::Balanced)?;
        let records = core.world_size.ranks().zip(data.chunks_exact(RECORD_BYTES));
        let decode = |(peer, bytes): (Rank, &[u8])| {
            let end = bytes.iter().position(|byte| *byte == 0);
            let text = &bytes[..end.unwrap_or(bytes.len())];
            serde_json::from_slice(text).map_err(|_| self.stray(peer))
        };
        records.map(decode).collect()
    }

    /// `peer` gathered something else that happens to have the length of a record.
    fn stray(&self, peer: Rank) -> CollectiveError {
        let cause = format!(
            "it was in another operation while the others split the group at {}; every rank must \
             call the same operations in the same order",
            self.wish.call_site
        );
        self.core.end(Failure::Peer { rank: peer, cause })
    }

    fn draft(
        &self,
        proposals: &[Proposal],
        listeners: Option<Listeners>,
    ) -> Result<Draft, ConnectError> {
        let me = self.core.me;
        let mine = &proposals[me.index()];
        for (peer, theirs) in self.core.world_size.ranks().zip(proposals) {
            if mine.call != theirs.call {
                return Err(ConnectError::Disagree {
                    mine: me,
                    what: "called",
                    my_value: mine.call.clone(),
                    theirs: peer,
                    their_value: theirs.call.clone(),
                });
            }
        }
        let Some(party) = self.party(proposals)? else {
            return Ok(Draft::Nothing);
        };
        match &self.core.roster.origin {
            Origin::Threads(pool) => {
                if party.me == Rank::new(0) {
                    pool.add(party.number, party.world_size(), party.chunk_bytes)?;
                }
                Ok(Draft::Pooled(party))
            }
            Origin::Processes(home) => {
                let formed = self.connect(&party, home, proposals, listeners)?;
                Ok(Draft::Connected(party, Box::new(formed)))
            }
        }
    }

    /// The ranks of this rank's color, once their settings are known to agree.
    fn party(&self, proposals: &[Proposal]) -> Result<Option<Party>, ConnectError> {
        let roster = &self.core.roster;
        let mine = &proposals[self.core.me.index()];
        if mine.color.is_none() {
            return Ok(None);
        }
        let mut ranks: Vec<Rank> = self
            .core
            .world_size
            .ranks()
            .filter(|rank| proposals[rank.index()].color == mine.color)
            .collect();
        // Stable, so equal keys leave the order of the ranks.
        ranks.sort_by_key(|rank| proposals[rank.index()].key);
        let place = ranks.iter().position(|rank| *rank == self.core.me);
        let me = Rank::new(place.expect("this rank has its own color") as u32);
        for (peer, rank) in (0..).map(Rank::new).zip(&ranks) {
            mine.settings.agree(me, peer, &proposals[rank.index()].settings)?;
        }
        let lowest = ranks[0];
        Ok(Some(Party {
            number: roster.number_of(lowest, proposals[lowest.index()].picked),
            me,
            chunk_bytes: self.wish.options.chunk_bytes_checked()?,
            streams: self.wish.options.streams_checked()?,
            ranks,
        }))
    }

    fn connect(
        &self,
        party: &Party,
        home: &Home,
        proposals: &[Proposal],
        listeners: Option<Listeners>,
    ) -> Result<Formed, ConnectError> {
        let mut addresses = Vec::with_capacity(party.ranks.len());
        for (rank, old) in (0..).map(Rank::new).zip(&party.ranks) {
            let unable =
                |reason: &str| ConnectError::PeerUnable { rank, reason: reason.to_owned() };
            let place = &proposals[old.index()].place;
            let address = place.as_ref().map_err(|reason| unable(reason))?;
            addresses.push(address.clone().ok_or_else(|| unable("it has no address"))?);
        }
        let listeners = listeners.expect("this rank's own place is among those that were good");
        let formation = Formation {
            me: party.me,
            group: party.number,
            token: &home.token,
            addresses: &addresses,
            options: &self.wish.options,
            chunk_bytes: party.chunk_bytes,
            streams: party.streams,
            has_stream_threads: home.has_stream_threads(&self.wish.options, party.streams),
            deadline: Deadline::after(self.timeout()),
            guard: &|_| match self.core.poison.failure() {
                Some(failure) => Err(ConnectError::ParentFailed {
                    cause: self.core.roster.explain(failure).to_string(),
                }),
                None => Ok(()),
            },
        };
        formation.form(listeners)
    }

    /// All ranks are there, so they do not need the time of a start-up; and a rank that cannot
    /// connect must say so while the others still wait for the news.
    fn timeout(&self) -> Duration {
        let options = &self.core.roster.options;
        options.startup_timeout.min(options.timeout / 4 * 3)
    }

    fn conclude(&self, draft: Draft, verdicts: &[Verdict]) -> Result<Option<Parts>> {
        let Some(party) = draft.party() else {
            return Ok(None);
        };
        let unable = (0..).map(Rank::new).zip(&party.ranks).find_map(|(rank, old)| {
            let reason = verdicts[old.index()].failed.clone()?;
            Some(ConnectError::PeerUnable { rank, reason })
        });
        if let Some(error) = unable {
            self.forsake(draft, &error.to_string());
            return Err(error.into());
        }
        let mut domain = Arc::clone(&self.core.domain);
        let (party, links, sharing, control, poison) = match draft {
            Draft::Nothing => return Ok(None),
            Draft::Connected(party, formed) => {
                if self.wish.is_detached {
                    domain = Arc::default();
                }
                let control = Some(formed.control);
                (party, formed.links, formed.sharing, control, formed.poison)
            }
            Draft::Pooled(party) => {
                let seat = match &self.core.roster.origin {
                    Origin::Threads(pool) => pool.take(party.number, party.me),
                    Origin::Processes(_) => None,
                };
                let seat = seat.ok_or(ConnectError::ParentFailed {
                    cause: "another rank gave the split up".to_owned(),
                })?;
                if self.wish.is_detached {
                    domain = seat.domain;
                }
                (party, seat.links, Some(seat.sharing), None, seat.poison)
            }
        };
        let (me, world_size, chunk_bytes) = (party.me, party.world_size(), party.chunk_bytes);
        Ok(Some(Parts {
            me,
            world_size,
            roster: self.core.roster.part(Part {
                number: party.number,
                ranks: party.ranks,
                options: self.wish.options.clone(),
            }),
            figures: self.inherited(),
            links,
            sharing,
            control,
            poison,
            domain,
            chunk_bytes,
        }))
    }

    /// What is known of the old group's links, if those of the new one are of the same kind. All
    /// ranks of the old group know the same, for they measured together.
    fn inherited(&self) -> Option<LinkFigures> {
        let (old, new) = (&self.core.roster.options, &self.wish.options);
        let alike = old.transport == new.transport
            && old.chunk_bytes == new.chunk_bytes
            && old.streams_per_link == new.streams_per_link;
        let executor = self.core.executor.lock();
        executor.figures().filter(|_| alike)
    }

    /// Ends a group that is not to be, for those who hold it to be complete.
    fn forsake(&self, draft: Draft, reason: &str) {
        let Some(party) = draft.party() else { return };
        let end = reason.floor_char_boundary(REASON_BYTES_MAX);
        let failure = Failure::Peer {
            rank: party.me,
            cause: format!("it gave up the split: {}", &reason[..end]),
        };
        match (&draft, &self.core.roster.origin) {
            (Draft::Connected(_, formed), _) => {
                formed.control.broadcast(&failure, formed.poison.reports())
            }
            (_, Origin::Threads(pool)) => pool.abandon(party.number, failure),
            (_, Origin::Processes(_)) => {}
        }
    }
}

impl Draft {
    fn party(&self) -> Option<&Party> {
        match self {
            Self::Nothing => None,
            Self::Pooled(party) | Self::Connected(party, _) => Some(party),
        }
    }
}

impl Party {
    fn world_size(&self) -> WorldSize {
        let ranks = u32::try_from(self.ranks.len()).expect("ranks are numbered in 32 bits");
        WorldSize::new(ranks).expect("this rank is one of them")
    }
}

fn describe(error: &ConnectError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
