//! All sockets of a simulation, and what is wrong between the hosts.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::endpoint::Endpoint;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Door {
    Tcp { host: usize, port: u16 },
    Name { host: usize, name: String },
}

#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) process: usize,
    pub(crate) host: usize,
    pub(crate) door: Door,
    pub(crate) address: SocketAddr,
    /// Connections that nobody has accepted.
    pub(crate) queue: VecDeque<usize>,
    pub(crate) blocks: bool,
    pub(crate) is_closed: bool,
    pub(crate) is_shut: bool,
}

#[derive(Debug)]
pub(crate) enum Entry {
    Listener(Listener),
    Endpoint(Box<Endpoint>),
}

/// Hosts of one side cannot reach the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) side: u64,
    pub(crate) until: Option<Duration>,
}

#[derive(Debug, Default)]
pub(crate) struct Wires {
    pub(crate) entries: Vec<Entry>,
    pub(crate) doors: BTreeMap<Door, usize>,
    pub(crate) cuts: Vec<Cut>,
    /// Between these hosts a bit of what arrives next is turned over.
    flips: Vec<[usize; 2]>,
    ports: u16,
}

/// The first port given to a socket that asks for any.
const FIRST_PORT: u16 = 40_000;

/// How many there are; by the time they come round again, those of connections are free.
const PORTS: u16 = 20_000;

impl Wires {
    pub(crate) fn endpoint(&self, id: usize) -> &Endpoint {
        match &self.entries[id] {
            Entry::Endpoint(endpoint) => endpoint,
            Entry::Listener(_) => unreachable!("socket {id} accepts connections, and is none"),
        }
    }

    pub(crate) fn endpoint_mut(&mut self, id: usize) -> &mut Endpoint {
        match &mut self.entries[id] {
            Entry::Endpoint(endpoint) => endpoint,
            Entry::Listener(_) => unreachable!("socket {id} accepts connections, and is none"),
        }
    }

    pub(crate) fn listener_mut(&mut self, id: usize) -> &mut Listener {
        match &mut self.entries[id] {
            Entry::Listener(listener) => listener,
            Entry::Endpoint(_) => unreachable!("socket {id} is a connection, and accepts none"),
        }
    }

    pub(crate) fn add(&mut self, entry: Entry) -> usize {
        self.entries.push(entry);
        self.entries.len() - 1
    }

    pub(crate) fn free_port(&mut self) -> u16 {
        self.ports = self.ports % PORTS + 1;
        FIRST_PORT + self.ports
    }

    /// How long nothing passes between two hosts: not at all, until a time, or for ever.
    pub(crate) fn cut_between(&self, [one, other]: [usize; 2], now: Duration) -> Option<Cut> {
        let divides = |cut: &&Cut| ((cut.side >> one) ^ (cut.side >> other)) & 1 == 1;
        let is_there = |cut: &&Cut| cut.until.is_none_or(|until| until > now);
        let cuts = self.cuts.iter().filter(divides).filter(is_there);
        cuts.copied().max_by_key(|cut| cut.until.unwrap_or(Duration::MAX))
    }

    pub(crate) fn flip_between(&mut self, hosts: [usize; 2]) {
        self.flips.push(hosts);
    }

    /// Whether what arrives now between the two is to be spoilt, which happens once.
    pub(crate) fn take_flip(&mut self, [one, other]: [usize; 2]) -> bool {
        let is_here = |hosts: &[usize; 2]| *hosts == [one, other] || *hosts == [other, one];
        let Some(index) = self.flips.iter().position(is_here) else {
            return false;
        };
        self.flips.swap_remove(index);
        true
    }
}

pub(crate) fn address_of(host: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, host as u8 + 1).into()
}

/// The host at an address, as a process of `own` sees it; nothing if there is none.
pub(crate) fn host_at(address: IpAddr, own: usize) -> Option<usize> {
    if address.is_loopback() || address.is_unspecified() {
        return Some(own);
    }
    match address {
        IpAddr::V4(address) => match address.octets() {
            [10, 0, 0, last] => Some(usize::from(last.checked_sub(1)?)),
            _ => None,
        },
        IpAddr::V6(_) => None,
    }
}
