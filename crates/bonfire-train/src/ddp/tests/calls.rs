//! What a step asks of the CUDA driver, once the first steps are over: counted in the file to which the
//! stand-in for the driver tells its calls.
//!
//! That file is named before the driver is loaded, so the test runs itself once more, with the name in the
//! environment. Where there is no device, or a driver that tells nothing, it says so and does nothing.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;

use bonfire_collective::{ProcessGroup, RankEnv};
use bonfire_launch::detect_rank;
use bonfire_testkit::{Job, processes};

use super::cuda::{on_devices, routed};
use super::*;
use crate::{DeviceKind, GradientRoute, LocalRank, Occupancy};

/// Names the file of calls.
const CALLS: &str = "CUDA_STAND_IN_CALLS";

/// Of this module's test, to run it again.
const TEST: &str = "ddp::tests::calls::cuda_a_step_launches_two_copies_for_each_bucket";

/// Buckets are dealt anew after the second step, and kernels may be tuned in some more.
const STEPS_BEFORE: usize = 8;
const STEPS_COUNTED: usize = 5;

const BEGIN: &str = "the counted steps begin";
const END: &str = "the counted steps end";

/// What must be made before, waits for the whole device, or may do so.
const NEVER: [&str; 7] = [
    "cuMemAlloc",
    "cuMemHost",
    "cuMemFree",
    "cuModuleLoadData",
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuCtxSynchronize",
];

const LAUNCH: &str = "cuLaunchKernel ";

/// What copies gradients to a bucket and back.
const COPY: &str = "cuLaunchKernel pack_";

/// What goes to the host.
const TO_HOST: &str = "cuMemcpyDtoH";

/// Of that, the marks of ranks that were freed: looked at whenever the group's stream is waited for.
const MARKS: &str = "cuMemcpyDtoHAsync_v2 64 bytes";

/// What waits for a stream, or for a point in it.
const WAITS: [&str; 2] = ["cuStreamSynchronize", "cuEventSynchronize"];

/// How the ranks are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ranks {
    /// Their buckets travel behind the backward pass.
    Threads(u32),
    /// Their buckets travel while the backward pass runs.
    Processes(u32),
}

/// Minutes, where all kernels have yet to be compiled and the machine is busy.
const LIMIT: Duration = Duration::from_secs(500);

/// What was asked of the driver, in order.
struct Calls(Vec<String>);

impl Calls {
    /// Those before the counted steps, and those in them.
    fn read(path: &Path) -> (Self, Self) {
        let text = fs::read_to_string(path).unwrap();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let at = |mark: &str| lines.iter().position(|line| line == mark).unwrap();
        let (before, counted) = (&lines[..at(BEGIN)], &lines[at(BEGIN) + 1..at(END)]);
        (Self(before.to_vec()), Self(counted.to_vec()))
    }

    /// How many begin like this.
    fn of(&self, beginning: &str) -> usize {
        let calls = self.0.iter();
        calls.filter(|call| call.starts_with(beginning)).count()
    }

    /// Whether the buckets of each step, so many copies, were left alone until all ranks waited for what they
    /// had computed.
    fn are_copies_behind(&self, ranks: usize, copies_per_step: usize) -> bool {
        let (mut waits, mut copies) = (0, 0);
        self.0.iter().all(|call| {
            waits += usize::from(WAITS.iter().any(|wait| call.starts_with(wait)));
            copies += usize::from(call.starts_with(COPY));
            copies <= waits / ranks * copies_per_step
        })
    }
}

fn write_mark(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    // In one piece: the driver writes, too, whenever Burn frees memory.
    file.write_all(format!("{text}\n").as_bytes()).unwrap();
}

/// Counts the kernels of an optimizer's steps; nothing without a driver that tells.
fn check_optimizer(path: &Path) {
    fs::write(path, "").unwrap();
    let stepped = on_devices(1, |world| {
        let device = world.device();
        let mut layer = seeded(LinearConfig::new(64, 32).init(&device.clone().autodiff()), 1);
        let mut optimizer = bonfire_optim::AdamWConfig::new().init();
        for step in 0..STEPS_BEFORE + STEPS_COUNTED {
            let mut gradients = GradientsParams::new();
            let gradient = Tensor::<2>::from_data(TensorData::ones::<f32, _>([64, 32]), &device);
            gradients.register(layer.weight.id, gradient);
            if step == STEPS_BEFORE {
                write_mark(path, BEGIN);
            }
            layer = optimizer.step(0.01, layer, gradients);
            // Burn launches what somebody waits for.
            device.sync().unwrap();
        }
        write_mark(path, END);
    });
    let (before, counted) = Calls::read(path);
    if stepped.is_none() || before.0.is_empty() {
        return;
    }
    let launches = counted.of(LAUNCH);
    println!("{launches} kernels in {STEPS_COUNTED} steps of an optimizer");
    assert_eq!(launches, STEPS_COUNTED, "{:?}", counted.0);
}

/// Some steps, of which the last are between two marks in the file; how many buckets travel in each.
fn train_marked(world: &World, config: DdpConfig, (path, meet): (&Path, &dyn Fn())) -> usize {
    let mut ddp = Ddp::with_config(Mlp::new(1, &world.device()), world, config).unwrap();
    // Before it no rank is in the counted steps, and behind it every one.
    let mark = |text: &str| {
        meet();
        if world.is_main() {
            write_mark(path, text);
        }
        meet();
    };
    for step in 0..STEPS_BEFORE + STEPS_COUNTED {
        if step <= STEPS_BEFORE {
            // What the steps before have queued is over: a lone rank waits for nothing in its steps.
            Digest::of(ddp.module()).unwrap();
        }
        if step == STEPS_BEFORE {
            mark(BEGIN);
        }
        let indices = share(world, step, 2);
        descend(&mut ddp, 0.05, |model| model.loss(&indices));
    }
    mark(END);
    ddp.buckets().len()
}

/// Counts the calls of some ranks as threads; how many buckets they have. Nothing without a driver that tells.
fn check_threads(ranks: u32, config: DdpConfig, path: &Path) -> Option<usize> {
    // Without those of the training before.
    fs::write(path, "").unwrap();
    let barrier = Barrier::new(ranks as usize);
    let meet = || {
        barrier.wait();
    };
    let train = |world| train_marked(&world, config.clone(), (path, &meet));
    let buckets = on_devices(ranks, train)?[0];
    check(Ranks::Threads(ranks), buckets, path)
}

/// What a process says of its buckets.
const BUCKETS: &str = "buckets: ";

/// Two ranks as processes.
fn check_processes(path: &Path) {
    const RANKS: u32 = 2;
    fs::write(path, "").unwrap();
    let program = env::current_exe().unwrap();
    let outputs = processes(&program, &["--exact", TEST, "--nocapture"], RANKS);
    let mut buckets = Vec::new();
    for output in outputs {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        let line = said.lines().find_map(|line| line.split_once(BUCKETS));
        buckets.push(line.unwrap().1.parse::<usize>().unwrap());
    }
    assert_eq!(buckets, vec![buckets[0]; RANKS as usize]);
    check(Ranks::Processes(RANKS), buckets[0], path).expect("the driver tells");
}

fn train_as_rank(env: &RankEnv, path: &Path) {
    let options = GroupOptions::default().with_timeout(Duration::from_secs(300));
    let group = ProcessGroup::connect(env, options).unwrap();
    let (kind, occupancy) = (DeviceKind::Cuda, Occupancy::Oversubscribed);
    let local = LocalRank { local_rank: env.local_rank, local_world_size: env.local_world_size };
    let world = World::with_occupancy(group, local, kind, occupancy).unwrap();
    let meet = || world.group().barrier().unwrap();
    let buckets = train_marked(&world, routed(GradientRoute::Device), (path, &meet));
    println!("{BUCKETS}{buckets}");
}

/// Counts the calls of some ranks; how many buckets they have. Nothing without a driver that tells.
fn check(kind: Ranks, buckets: usize, path: &Path) -> Option<usize> {
    let (before, counted) = Calls::read(path);
    if before.0.is_empty() {
        println!("skipped: this driver does not tell what is asked of it");
        return None;
    }
    let case = format!("{kind:?}, {buckets} buckets");
    let (Ranks::Threads(ranks) | Ranks::Processes(ranks)) = kind;
    let ranks = ranks as usize;
    // What is counted is told.
    for told in ["cuMemAlloc", "cuMemHostAlloc", "cuModuleLoadData"] {
        assert!(before.of(told) > 0, "{case}: {told}");
    }
    for call in NEVER {
        assert_eq!(counted.of(call), 0, "{case}: {call}");
    }
    // A lone rank leaves its gradients where they are. The others copy to each bucket and back.
    let steps = match ranks {
        1 => 0,
        _ => STEPS_COUNTED * ranks,
    };
    let copies = counted.of(COPY);
    assert_eq!(copies, 2 * buckets * steps, "{case}: copies of buckets");
    if steps > 0 {
        let are_behind = counted.are_copies_behind(ranks, 2 * buckets * ranks);
        let is_expected = kind == Ranks::Threads(ranks as u32);
        assert_eq!(are_behind, is_expected, "{case}: copies behind the computing");
    }
    // For what the rank itself has computed, when its backward pass is over.
    let waits: usize = WAITS.map(|call| counted.of(call)).iter().sum();
    assert_eq!(waits, steps, "{case}: waits");
    let to_host = [TO_HOST, MARKS].map(|call| counted.of(call));
    assert_eq!(to_host, [steps; 2], "{case}: copies to the host");
    println!("{case}: {copies} copies and {waits} waits in {STEPS_COUNTED} steps");
    Some(buckets)
}

#[test]
fn cuda_a_step_launches_two_copies_for_each_bucket() {
    if let Some(path) = env::var_os(CALLS).map(PathBuf::from) {
        if let Some(env) = detect_rank().unwrap() {
            return train_as_rank(&env, &path);
        }
        let one_bucket = DdpConfig::default();
        for config in [routed(GradientRoute::Device), one_bucket.clone()] {
            for ranks in [1, 2] {
                let Some(buckets) = check_threads(ranks, config.clone(), &path) else {
                    return;
                };
                assert_eq!(buckets == 1, config == one_bucket);
            }
        }
        check_processes(&path);
        check_optimizer(&path);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for devices in ["1", "2"] {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", TEST, "--nocapture"])
            .env("CUDA_STAND_IN_DEVICES", devices)
            .env(CALLS, folder.path().join(devices));
        let end = Job::start_for(&mut command, LIMIT).end();
        println!("{devices} devices\n{}", end.stdout.join("\n"));
        assert!(end.status.success(), "{}", end.stderr.join("\n"));
        // The name above is that of this test.
        let ran = |line: &String| line.contains("1 passed");
        assert!(end.stdout.iter().any(ran), "{TEST} is not there");
    }
}
