//! How much memory a model takes whose parameters are sharded as they are initialised: the most that a program ever
//! had, which it asks the system for in the end. So the measurement is a program of its own, this one started again,
//! with its ranks as threads.

#![cfg(all(feature = "flex", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

use bonfire_collective::GroupOptions;
use bonfire_testkit::local;
use bonfire_train::{Ddp, DdpConfig, DeviceKind, LocalRank, Placement, World};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};

const RANKS: u32 = 8;
const LAYERS: usize = 24;

/// Of a layer's weight, 16 MiB.
const WIDTH: usize = 2048;

/// Set where this program is the one that is measured.
const TASK: &str = "SHARDED_MEMORY_TASK";

/// 100 million parameters, which Burn initialises when they are first used.
#[derive(Module, Debug)]
struct Layers {
    layers: Vec<Linear>,
}

fn shard(world: &World) {
    let device = world.device().autodiff();
    let layer = |_| {
        let config = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
        config.init(&device)
    };
    let model = Layers {
        layers: (0..LAYERS).map(layer).collect(),
    };
    let config = DdpConfig::default().with_placement(Placement::zero3());
    let ddp = Ddp::with_config(model, world, config).unwrap();
    // Nobody is done before all have their rows.
    world.group().barrier().unwrap();
    drop(ddp);
}

/// The peak of resident memory of this program, in MiB.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.unwrap().trim().strip_suffix(" kB").unwrap();
    kib.parse::<f64>().unwrap() / 1024.0
}

#[test]
fn a_model_is_never_whole_on_any_rank() {
    if std::env::var_os(TASK).is_some() {
        local(RANKS, GroupOptions::default(), |group| {
            let local = LocalRank {
                local_rank: group.rank().get(),
                local_world_size: RANKS,
            };
            shard(&World::new(group, local, DeviceKind::Cpu).unwrap());
        });
        println!("\npeak {}", peak_mib());
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_model_is_never_whole_on_any_rank",
            "--nocapture",
        ])
        .env(TASK, "")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let peak = printed.lines().find_map(|line| line.split("peak ").nth(1));
    let peak: f64 = peak.unwrap().parse().unwrap();
    // The shards of all ranks are one model. Besides, each has one parameter, and that in the making.
    let parameter = (WIDTH * WIDTH * 4) as f64 / f64::from(1 << 20);
    let besides = (peak - LAYERS as f64 * parameter) / parameter / f64::from(RANKS);
    println!("{peak} MiB: {besides} parameters on each rank besides its rows");
    assert!(besides < 6.0, "{besides} parameters on each rank");
}
