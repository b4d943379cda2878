//! Several hosts on one machine: Linux network namespaces, joined by a switch.
//!
//! Each host has its own interfaces, addresses and routes, and sockets reach another host only
//! through the switch, a bridge in a namespace of its own. Nothing touches the network of the machine
//! itself, and everything goes when the [`Network`] is dropped, also by a panic. Needs root, `ip` and
//! `tc` (iproute2).

use std::fmt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use bonfire_collective::{EnvSettings, JobToken, Rank, RankEnv, StoreHost, WorldSize};
use bonfire_launch::rank_variables;
use rustix::process::{Pid, Signal, kill_process};

use crate::Job;

/// The store of rank 0 listens here; every network has all ports for itself.
const STORE_PORT: u16 = 29_500;

/// Paths of [`Shape::Paths`]: enough that a few connections rarely share one.
const PATHS: usize = 64;

/// Why no network can be made on this machine.
#[derive(Debug)]
pub struct Unavailable(String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// As fast as the machine moves packets.
    Plain,
    /// 1 Gbit/s per host, with a delay of a millisecond where the kernel can make one.
    Slow,
    /// As over many equal paths of 200 Mbit/s each: every connection takes one at random, and stays
    /// on it.
    Paths,
}

#[derive(Debug)]
pub struct Network {
    /// Begins the names of all its namespaces.
    name: String,
    hosts: usize,
}

impl Network {
    /// Hosts 0 to `hosts - 1`, all connected.
    ///
    /// # Errors
    /// If this machine or this user cannot make them; the reason is for a test that skips.
    pub fn new(hosts: usize, shape: Shape) -> Result<Self, Unavailable> {
        static NETWORKS: AtomicU32 = AtomicU32::new(0);
        assert!((1..=200).contains(&hosts), "1 to 200 hosts, got {hosts}");
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        // Dropped on every way out, so that a half-made network leaves nothing behind.
        let network = Self { name: format!("bonfire-{}-{number}n", std::process::id()), hosts };
        let switch = network.switch();
        run(&format!("ip netns add {switch}"))?;
        run(&format!("ip -n {switch} link add bridge type bridge"))?;
        run(&format!("ip -n {switch} link set bridge up"))?;
        for host in 0..hosts {
            network.add_host(host, shape)?;
        }
        Ok(network)
    }

    fn add_host(&self, host: usize, shape: Shape) -> Result<(), Unavailable> {
        let (switch, name) = (self.switch(), self.host(host));
        run(&format!("ip netns add {name}"))?;
        run(&format!(
            "ip link add eth0 netns {name} numtxqueues {PATHS} type veth peer name port{host} netns {switch}"
        ))?;
        run(&format!("ip -n {switch} link set port{host} master bridge up"))?;
        let address = self.address(host);
        run(&format!("ip -n {name} addr add {address}/24 dev eth0"))?;
        run(&format!("ip -n {name} link set lo up"))?;
        run(&format!("ip -n {name} link set eth0 up"))?;
        let add = format!("tc -n {name} qdisc add dev eth0");
        match shape {
            Shape::Plain => Ok(()),
            // Kernels without netem can still limit the rate.
            Shape::Slow => run(&format!("{add} root netem delay 1ms rate 1gbit"))
                .or_else(|_| run(&format!("{add} root tbf rate 1gbit burst 256kb latency 50ms"))),
            // The kernel sends each connection through one of the interface's queues.
            Shape::Paths => {
                run(&format!("{add} root handle 1: mq"))?;
                (1..=PATHS).try_for_each(|path| {
                    let limit = "tbf rate 200mbit burst 64kb latency 50ms";
                    run(&format!("{add} parent 1:{path:x} {limit}"))
                })
            }
        }
    }

    /// Starts `program args` once per rank; `hosts` says on which host each is.
    ///
    /// # Panics
    /// If there is no such host or program.
    pub fn start(&self, program: &Path, args: &[&str], hosts: &[usize]) -> Vec<Job> {
        let token = JobToken::random().expect("the operating system has random bytes");
        let world_size = u32::try_from(hosts.len()).expect("tests use few ranks");
        let start = |(rank, host): (usize, &usize)| {
            let neighbours = hosts.iter().filter(|other| *other == host);
            let env = RankEnv {
                rank: Rank::new(rank as u32),
                world_size: WorldSize::new(world_size).expect("tests use one rank and more"),
                local_rank: hosts[..rank].iter().filter(|other| *other == host).count() as u32,
                local_world_size: neighbours.count() as u32,
                master_addr: self.address(hosts[0]),
                master_port: STORE_PORT,
                job_token: token.clone(),
                agent_store: StoreHost::RankZero,
                job_id: String::new(),
                restart_count: 0,
                host_id: None,
                launcher_id: None,
                settings: EnvSettings::default(),
            };
            let mut command = self.command(*host, program);
            Job::start(command.args(args).envs(rank_variables(&env)))
        };
        hosts.iter().enumerate().map(start).collect()
    }

    /// The link of a host goes down: what it sends and what is sent to it is lost without notice.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn cut(&self, host: usize) {
        let switch = self.switch();
        run(&format!("ip -n {switch} link set port{host} down")).expect("the host has a port");
    }

    /// Host `source` has no way to host `target` any more, in either direction, and the kernel
    /// reports that to processes on `source` that try.
    ///
    /// # Panics
    /// If there are no such hosts.
    pub fn part(&self, source: usize, target: usize) {
        let (source, target) = (self.host(source), self.address(target));
        run(&format!("ip -n {source} route add prohibit {target}")).expect("the host has routes");
    }

    /// A command that runs on a host.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn command(&self, host: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host(host)]).arg(program);
        command
    }

    /// The bytes that a host has sent to others, with the headers of all packets.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn bytes_sent(&self, host: usize) -> u64 {
        let mut counter = self.command(host, Path::new("/bin/cat"));
        counter.arg("/sys/class/net/eth0/statistics/tx_bytes");
        let output = counter.output().expect("the host has a command");
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim().parse().expect("the kernel counts in digits")
    }

    /// Kills every process on a host with SIGKILL.
    pub fn kill(&self, host: usize) {
        for pid in self.processes(host) {
            // A process that has ended meanwhile is not an error.
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// What the names of its namespaces begin with.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.name)
    }

    fn host(&self, host: usize) -> String {
        assert!(host < self.hosts, "host {host} of {}", self.hosts);
        format!("{}-host{host}", self.name)
    }

    /// The address of a host. The same in every network, because they do not see each other.
    pub fn address(&self, host: usize) -> String {
        format!("10.77.0.{}", host + 1)
    }

    fn processes(&self, host: usize) -> Vec<i32> {
        let output = ip(&format!("ip netns pids {}", self.host(host)));
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let words = text.unwrap_or_default();
        words.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // A namespace lives on while a process is in it, so the processes go first. A half-made
        // network does not have all namespaces: errors say nothing.
        for host in 0..self.hosts {
            self.kill(host);
            let _ = ip(&format!("ip netns del {}", self.host(host)));
        }
        let _ = ip(&format!("ip netns del {}", self.switch()));
    }
}

/// Runs a command line without quotes in it.
fn ip(line: &str) -> std::io::Result<Output> {
    let mut words = line.split(' ');
    let program = words.next().expect("a command line has words");
    Command::new(program).args(words).output()
}

fn run(line: &str) -> Result<(), Unavailable> {
    match ip(line) {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let error = String::from_utf8_lossy(&output.stderr);
            Err(Unavailable(format!("`{line}` failed: {}", error.trim())))
        }
        Err(error) => Err(Unavailable(format!("`{line}` cannot run: {error}"))),
    }
}
