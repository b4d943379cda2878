//! Runs the job of a scenario.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bonfire_collective::{
    CollectiveError, EnvSettings, JobToken, ProcessGroup, Rank, RankEnv, ReduceOp, StoreHost,
    TcpStoreServer, WorldSize,
};
use bonfire_laboratory::{Chance, Fault, Report, Simulation, clock, thread};

use crate::scenario::{Call, STORE_PORT, Scenario, Trouble};

/// No run takes longer on its own clock.
const HORIZON: Duration = Duration::from_secs(3600);

const TOKEN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Done,
    /// It could not join.
    Apart(CollectiveError),
    Failed {
        call: usize,
        error: CollectiveError,
    },
    /// A call gave something else than it should.
    Wrong {
        call: usize,
    },
}

/// How a rank ended, and how long what ended it took.
#[derive(Clone, Debug)]
pub(crate) struct RankEnding {
    pub(crate) outcome: Outcome,
    /// Its last step: joining, or a call.
    pub(crate) span: Duration,
}

#[derive(Debug)]
pub(crate) struct Ending {
    /// Of each rank; nothing of one that was killed.
    pub(crate) ranks: Vec<Option<RankEnding>>,
    pub(crate) report: Report,
}

pub(crate) fn run(scenario: &Scenario) -> Ending {
    let seed = scenario.seed ^ 0x5eed;
    let mut simulation = Simulation::new(seed, scenario.conditions.clone(), HORIZON);
    let world_size = scenario.world_size();
    let ranks = Arc::new(Mutex::new(vec![None; world_size as usize]));
    let mut processes = Vec::new();
    for rank in 0..world_size {
        let (scenario, ranks) = (scenario.clone(), Arc::clone(&ranks));
        let host = scenario.hosts[rank as usize];
        processes.push(simulation.process(&format!("rank {rank}"), host, move || {
            let ending = rank_main(&scenario, rank);
            let mut ranks = ranks.lock().unwrap_or_else(PoisonError::into_inner);
            ranks[rank as usize] = Some(ending);
        }));
    }
    if scenario.store == StoreHost::Agent {
        simulation.servant("launcher", 0, || {
            let address = format!("10.0.0.1:{STORE_PORT}").parse().unwrap();
            let token = JobToken::from_hex(TOKEN).unwrap();
            let _server = TcpStoreServer::bind(address, &token).unwrap();
            thread::sleep(HORIZON);
        });
    }
    let fault = match scenario.trouble {
        Trouble::Nothing | Trouble::Breaks => None,
        Trouble::Flip { hosts } => Some(Fault::Flip(hosts)),
        Trouble::Kill { rank } => Some(Fault::Kill(processes[rank as usize])),
        Trouble::Stop { rank, span } => {
            Some(Fault::Stop { process: processes[rank as usize], span })
        }
        Trouble::Cut { side, span } => Some(Fault::Cut { side, span }),
        Trouble::Reset { hosts } => Some(Fault::Reset(hosts)),
    };
    if let Some(fault) = fault {
        simulation.fault(scenario.trouble_at, fault);
    }
    let report = simulation.run();
    let ranks = std::mem::take(&mut *ranks.lock().unwrap_or_else(PoisonError::into_inner));
    Ending { ranks, report }
}

fn env_of(scenario: &Scenario, rank: u32) -> RankEnv {
    let host = scenario.hosts[rank as usize];
    let local = |ranks: &[usize]| ranks.iter().filter(|other| **other == host).count() as u32;
    RankEnv {
        rank: Rank::new(rank),
        world_size: WorldSize::new(scenario.world_size()).unwrap(),
        local_rank: local(&scenario.hosts[..rank as usize]),
        local_world_size: local(&scenario.hosts),
        master_addr: "10.0.0.1".to_owned(),
        master_port: STORE_PORT,
        job_token: JobToken::from_hex(TOKEN).unwrap(),
        agent_store: scenario.store,
        job_id: String::new(),
        restart_count: 0,
        host_id: None,
        launcher_id: None,
        settings: EnvSettings::default(),
    }
}

fn rank_main(scenario: &Scenario, rank: u32) -> RankEnding {
    let started = clock::now();
    let ending = |outcome| RankEnding { outcome, span: clock::since(started) };
    let group = match ProcessGroup::connect(&env_of(scenario, rank), scenario.options.clone()) {
        Ok(group) => group,
        Err(error) => return ending(Outcome::Apart(error)),
    };
    let mut chance = Chance::new(scenario.seed ^ (u64::from(rank + 1) << 32));
    for (call, what) in scenario.calls.iter().enumerate() {
        thread::sleep(chance.time(Duration::ZERO..=scenario.pause_max));
        let started = clock::now();
        let outcome = match make(&group, *what, call as u64) {
            Ok(true) => continue,
            Ok(false) => Outcome::Wrong { call },
            Err(error) => Outcome::Failed { call, error },
        };
        let span = clock::since(started);
        return RankEnding { outcome, span };
    }
    ending(Outcome::Done)
}

/// What a rank brings to a call.
fn value(rank: u64, call: u64, index: usize) -> u64 {
    Chance::new((rank << 48) ^ (call << 32) ^ index as u64).number() >> 16
}

/// Makes a call; whether its result is right.
fn make(group: &ProcessGroup, call: Call, number: u64) -> Result<bool, CollectiveError> {
    let rank = u64::from(group.rank().get());
    let ranks = u64::from(group.world_size().get());
    let brought = |rank: u64, elems: usize| -> Vec<u64> {
        (0..elems).map(|index| value(rank, number, index)).collect()
    };
    let sum = |elems: usize| -> Vec<u64> {
        let at = |index| (0..ranks).map(|rank| value(rank, number, index)).sum();
        (0..elems).map(at).collect()
    };
    Ok(match call {
        Call::AllReduce { elems } => {
            let mut data = brought(rank, elems);
            group.all_reduce(&mut data, ReduceOp::Sum)?;
            data == sum(elems)
        }
        Call::AllReduceInBackground { elems } => {
            let data = brought(rank, elems);
            group.background(data, |group, data| group.all_reduce(data, ReduceOp::Sum)).wait()?
                == sum(elems)
        }
        Call::Broadcast { elems, root } => {
            let mut data = brought(rank, elems);
            group.broadcast(&mut data, Rank::new(root))?;
            data == brought(u64::from(root), elems)
        }
        Call::AllGather { elems } => {
            let all = group.all_gather(&brought(rank, elems))?;
            all == (0..ranks).flat_map(|rank| brought(rank, elems)).collect::<Vec<u64>>()
        }
        Call::Barrier => group.barrier().map(|()| true)?,
    })
}
