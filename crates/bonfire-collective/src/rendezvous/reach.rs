//! Which hosts of the job reach which, tried before anything waits for a connection.
//!
//! A host that has several interfaces, or a firewall, can reach the store and yet not its peers. Then connecting
//! would try until the deadline of set-up, and name one pair. Instead the first rank of every host connects to the
//! first rank of every other host once, rank 0 gathers who could, and all ranks get the same matrix.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bonfire_plan::Rank;
use serde::{Deserialize, Serialize};

use super::error::Result;
use super::{Address, ConnectError, Deadline, Listeners, key};
use crate::options::place::RankEnv;
use bonfire_connect::platform::net::connect;
use bonfire_connect::platform::thread;
use bonfire_connect::store::{Store, StoreError, TcpStore};

/// How long a connection may take; the kernel asks three times in this time.
const TRY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long rank 0 waits for what the others have found, beyond that.
const ROW_WAIT: Duration = Duration::from_secs(10);
/// Longest sleep of who accepts those that try, and so what it adds to set-up.
const PORTER_SLICE: Duration = Duration::from_millis(5);
const TRIES_MAX: usize = 64;

/// Which hosts of a job reach each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// The first rank of each host and its address.
    hosts: Vec<(u32, IpAddr)>,
    /// By the host that tried; nothing from one that did not say.
    rows: Vec<Option<Row>>,
}

/// What one host found, by the host that was tried: nothing, or what went wrong.
type Row = Vec<Option<String>>;

impl Reach {
    /// The first ranks of the hosts that are to blame, as far as the pairs show: those that did not say
    /// whom they reach; else those that have part in the most failures, and of these the ones that most
    /// others cannot reach. Where a single pair fails both ways the cause is unknown, so both are named.
    pub fn culprits(&self) -> Vec<Rank> {
        let rank = |host: usize| Rank::new(self.hosts[host].0);
        let hosts = || 0..self.hosts.len();
        let silent: Vec<Rank> =
            hosts().filter(|host| self.rows[*host].is_none()).map(rank).collect();
        if !silent.is_empty() {
            return silent;
        }
        let failures = || self.failures();
        let score = |host: usize| {
            let as_target = failures().filter(|(_, target, _)| *target == host).count();
            let as_source = failures().filter(|(source, ..)| *source == host).count();
            (as_target + as_source, as_target)
        };
        let highest = hosts().map(score).max().unwrap_or_default();
        let is_worst = |host: &usize| highest.0 > 0 && score(*host) == highest;
        hosts().filter(is_worst).map(rank).collect()
    }

    fn failures(&self) -> impl Iterator<Item = (usize, usize, &str)> {
        let rows = self.rows.iter().enumerate();
        rows.flat_map(|(source, row)| {
            let row = row.iter().flatten().enumerate();
            row.filter_map(move |(target, failure)| Some((source, target, failure.as_deref()?)))
        })
    }

    /// The first pair that cannot connect, and why.
    fn first_failure(&self) -> Option<(usize, usize, &str)> {
        self.failures().next()
    }

    fn is_complete(&self) -> bool {
        self.first_failure().is_none() && self.rows.iter().all(Option::is_some)
    }

    fn cell(&self, source: usize, target: usize) -> &str {
        match self.rows[source].as_ref().map(|row| row.get(target)) {
            _ if source == target => "-",
            None | Some(None) => "?",
            Some(Some(None)) => "ok",
            Some(Some(Some(failure))) => failure,
        }
    }
}

impl fmt::Display for Reach {
    /// What is wrong in one line, and below it the matrix.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |host: usize| {
            let (rank, address) = self.hosts[host];
            format!("{address} (rank {rank})")
        };
        match self.first_failure() {
            Some((source, target, failure)) => write!(
                formatter,
                "host {} cannot reach host {}: {failure}",
                name(source),
                name(target)
            )?,
            None => {
                let culprits = crate::health::reports::list(&self.culprits());
                write!(
                    formatter,
                    "the host of rank {culprits} did not say which others it reaches"
                )?;
            }
        }
        formatter.write_str(
            "; let the hosts open TCP connections to each other on all ports, or choose a \
             MASTER_ADDR in a network that joins them. From each row to each column:",
        )?;
        let names: Vec<String> = (0..self.hosts.len()).map(name).collect();
        let hosts = || 0..self.hosts.len();
        let width = |target: usize| {
            let cells = hosts().map(|source| self.cell(source, target).len());
            cells.max().unwrap_or(0).max(names[target].len())
        };
        let first = names.iter().map(String::len).max().unwrap_or(0);
        write!(formatter, "\n  {:first$}", "")?;
        for target in hosts() {
            write!(formatter, "  {:width$}", names[target], width = width(target))?;
        }
        for source in hosts() {
            write!(formatter, "\n  {:first$}", names[source])?;
            for target in hosts() {
                let (cell, width) = (self.cell(source, target), width(target));
                write!(formatter, "  {cell:width$}")?;
            }
        }
        Ok(())
    }
}

/// Finds out, together with all ranks, whether the hosts reach each other; nothing to do on one host.
///
/// Meanwhile this rank accepts every rank that tries it, and lets go at once: what nobody accepts
/// fills the listener's queue, and the next one would seem to be unreachable. A rank that is
/// through already and wants to stay tries again.
pub(super) fn check(
    env: &RankEnv,
    store: &TcpStore,
    addresses: &[Address],
    listeners: &Listeners,
    deadline: Deadline,
) -> Result<()> {
    let leaders = leaders(addresses);
    if leaders.len() == 1 {
        return Ok(());
    }
    let is_known = AtomicBool::new(false);
    thread::scope(|scope| {
        let porter = scope.spawn(|| {
            // Relaxed: nothing is read because of it but the flag itself.
            while !is_known.load(Ordering::Relaxed) {
                if listeners.accept(PORTER_SLICE).is_err() {
                    // Without a descriptor for it, the connection stays news.
                    thread::sleep(PORTER_SLICE);
                }
            }
        });
        porter.map_err(ConnectError::Thread)?;
        let found = compare(env, store, addresses, &leaders, deadline);
        is_known.store(true, Ordering::Relaxed);
        found
    })
}

/// Tries the others if this rank is the first of its host, and learns what all have found.
fn compare(
    env: &RankEnv,
    store: &TcpStore,
    addresses: &[Address],
    leaders: &[Rank],
    deadline: Deadline,
) -> Result<()> {
    let row_key = |host: usize| key(env, &format!("reach/{host}"));
    if let Some(host) = leaders.iter().position(|leader| *leader == env.rank) {
        let row = try_all(host, leaders, addresses);
        store.set(&row_key(host), &encode(&row))?;
    }
    let matrix_key = key(env, "reach");
    if env.rank == Rank::new(0) {
        let rounds = leaders.len().div_ceil(TRIES_MAX);
        let tries = TRY_TIMEOUT * u32::try_from(rounds).unwrap_or(u32::MAX);
        let wait = Deadline::after(tries + ROW_WAIT);
        let mut rows = Vec::with_capacity(leaders.len());
        for host in 0..leaders.len() {
            rows.push(match store.get(&row_key(host), wait.left()) {
                Ok(bytes) => serde_json::from_slice(&bytes).ok(),
                Err(StoreError::Timeout { .. }) => None,
                Err(error) => return Err(error.into()),
            });
        }
        let of = |leader: &Rank| (leader.get(), addresses[leader.index()].tcp.ip());
        let hosts = leaders.iter().map(of).collect();
        store.set(&matrix_key, &encode(&Reach { hosts, rows }))?;
    }
    let matrix = match store.get(&matrix_key, deadline.left()) {
        Err(StoreError::Timeout { .. }) => {
            return Err(deadline.missed(vec![Rank::new(0)], env.world_size));
        }
        other => other?,
    };
    match serde_json::from_slice::<Reach>(&matrix) {
        Ok(reach) if reach.is_complete() => Ok(()),
        Ok(reach) => Err(ConnectError::HostsApart(Box::new(reach))),
        Err(error) => Err(ConnectError::Address { rank: Rank::new(0), reason: error.to_string() }),
    }
}

fn leaders(addresses: &[Address]) -> Vec<Rank> {
    let mut leaders: Vec<Rank> = Vec::new();
    for (rank, address) in (0..).map(Rank::new).zip(addresses) {
        let known = |leader: &Rank| addresses[leader.index()].host == address.host;
        if !leaders.iter().any(known) {
            leaders.push(rank);
        }
    }
    leaders
}

/// Connects to the first rank of every other host. The listener there drops a connection that says
/// nothing; that it came to be is all that matters.
fn try_all(own: usize, leaders: &[Rank], addresses: &[Address]) -> Row {
    let hosts: Vec<usize> = (0..leaders.len()).collect();
    let mut row = Vec::with_capacity(leaders.len());
    for some in hosts.chunks(TRIES_MAX) {
        thread::scope(|scope| {
            let tries: Vec<_> = some
                .iter()
                .map(|&host| {
                    let mine = &addresses[leaders[own].index()];
                    let address = addresses[leaders[host].index()].seen_from(mine);
                    (host != own).then(|| scope.spawn(move || try_one(address)))
                })
                .collect();
            row.extend(tries.into_iter().map(|tried| {
                let untried = || Some("not tried".to_owned());
                match tried? {
                    Ok(thread) => thread.join().unwrap_or_else(|_| untried()),
                    Err(_) => untried(),
                }
            }));
        });
    }
    row
}

fn try_one(address: SocketAddr) -> Option<String> {
    let error = connect(&address, TRY_TIMEOUT).err()?;
    // The kernel's own words, without the number behind them.
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    Some(format!("port {}: {words}", address.port()))
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("addresses and words are plain data")
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::options::place::HostId;
    use bonfire_connect::secure::token::JobToken;
    use bonfire_connect::store::TcpStoreServer;

    /// Far more than two ranks of one machine take.
    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn the_matrix_says_who_cannot_reach_whom() {
        let ok = || None;
        let reach = Reach {
            hosts: vec![(0, "10.0.0.1".parse().unwrap()), (4, "10.0.0.2".parse().unwrap())],
            rows: vec![Some(vec![None, ok()]), Some(vec![Some("refused".to_owned()), None])],
        };
        let text = reach.to_string();
        assert!(
            text.starts_with(
                "host 10.0.0.2 (rank 4) cannot reach host 10.0.0.1 (rank 0): refused;"
            ),
            "{text}"
        );
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "                     10.0.0.1 (rank 0)  10.0.0.2 (rank 4)",
                "  10.0.0.1 (rank 0)  -                  ok               ",
                "  10.0.0.2 (rank 4)  refused            -                ",
            ]
        );
        assert_eq!(reach.culprits(), [Rank::new(0)]);
        let silent = Reach { rows: vec![Some(vec![None, ok()]), None], ..reach };
        assert!(!silent.is_complete());
        assert!(silent.to_string().contains("the host of rank 4 did not say"), "{silent}");
    }

    /// What nobody accepts fills the queue of a listener, and then its host seems to be out of reach.
    #[test]
    fn whoever_tries_a_rank_that_compares_is_taken_and_let_go() {
        let token = JobToken::random().unwrap();
        let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
        let store = TcpStore::connect("127.0.0.1", server.local_addr().port(), &token, TIMEOUT);
        let store = store.unwrap();
        let opened = || Listeners::open("127.0.0.1:0".parse().unwrap()).unwrap();
        let [(other, theirs), (listeners, mine)] = [opened(), opened()];
        let address = |rank: u32, tcp| Address {
            host: HostId::of_this_process(Some(&format!("host {rank}"))),
            unix: String::new(),
            tcp,
            shares: true,
        };
        let addresses = [address(0, theirs), address(1, mine)];
        let env =
            RankEnv { rank: Rank::new(1), ..crate::rendezvous::tests::env_of(1, &server, &token) };
        let deadline = Deadline::after(TIMEOUT);
        std::thread::scope(|scope| {
            let comparing = scope.spawn(|| check(&env, &store, &addresses, &listeners, deadline));
            for _ in 0..20 {
                let mut caller = std::net::TcpStream::connect(mine).unwrap();
                caller.set_read_timeout(Some(TIMEOUT)).unwrap();
                let end = caller.read(&mut [0]);
                assert!(matches!(end, Ok(0)), "{end:?}");
            }
            assert!(!comparing.is_finished(), "rank 0 has not said what all found");
            let reach = Reach {
                hosts: vec![(0, theirs.ip()), (1, mine.ip())],
                rows: vec![Some(vec![None, None]), Some(vec![None, None])],
            };
            server.store().set(&key(&env, "reach"), &encode(&reach)).unwrap();
            comparing.join().unwrap().unwrap();
        });
        drop(other);
    }

    /// A matrix of hosts with these ranks, in which these pairs fail.
    fn matrix(hosts: u32, failures: &[(u32, u32)]) -> Reach {
        let row = |source| {
            let failed = |target| failures.contains(&(source, target));
            let cell = |target| failed(target).then(|| "refused".to_owned());
            Some((0..hosts).map(cell).collect())
        };
        Reach {
            hosts: (0..hosts).map(|host| (host, "10.0.0.1".parse().unwrap())).collect(),
            rows: (0..hosts).map(row).collect(),
        }
    }

    #[test]
    fn the_host_that_several_cannot_reach_is_to_blame() {
        let culprits = |hosts, failures: &[(u32, u32)]| -> Vec<u32> {
            let culprits = matrix(hosts, failures).culprits();
            culprits.into_iter().map(Rank::get).collect()
        };
        assert!(culprits(3, &[]).is_empty());
        // Nobody reaches host 2, though host 0 is the first to say so.
        assert_eq!(culprits(3, &[(0, 2), (1, 2)]), [2]);
        // Cut off both ways.
        assert_eq!(culprits(4, &[(0, 3), (3, 0), (1, 3), (3, 1), (2, 3), (3, 2)]), [3]);
        // It reaches nobody, though all reach it.
        assert_eq!(culprits(3, &[(1, 0), (1, 2)]), [1]);
        assert_eq!(culprits(2, &[(1, 0)]), [0]);
        assert_eq!(culprits(2, &[(1, 0), (0, 1)]), [0, 1]);
    }
}
