//! Processes that train on GPUs. Where there is none, the tests say so.

#![cfg(any(feature = "cuda", feature = "wgpu"))]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;
use std::time::Duration;

use bonfire_testkit::{Job, JobEnd};

/// Of one training: minutes, where all kernels have yet to be compiled and the machine is busy.
const LIMIT: Duration = Duration::from_secs(500);

/// Ranks that train for ten steps; `None` where one says that something of this is missing.
fn trained(ranks: usize, device: &[&str], missing: &[&str]) -> Option<JobEnd> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_resuming"));
    command.arg(folder.path()).arg("10");
    command.args(["--nproc", &ranks.to_string(), "--device"]);
    command.args(device);
    command.env("BONFIRE_LOG", "info");
    // Else ranks over NCCL that share a device are refused.
    command.env("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    let end = Job::start_for(&mut command, LIMIT).end();
    let is_missing = |line: &&String| missing.iter().any(|missing| line.contains(missing));
    if let Some(line) = end.stderr.iter().find(is_missing) {
        println!("skipped: {line}");
        return None;
    }
    assert!(end.status.success(), "{:?}", end.stderr);
    Some(end)
}

/// What all ranks said of their parameters, which is the same.
fn digest(ranks: usize, end: &JobEnd) -> String {
    let digest = |line: &String| Some(line.split("parameters ").nth(1)?.to_owned());
    let mut digests: Vec<String> = end.stdout.iter().filter_map(digest).collect();
    assert_eq!(digests.len(), ranks, "{:?}", end.stdout);
    assert!(digests.iter().all(|one| *one == digests[0]), "{digests:?}");
    digests.remove(0)
}

#[cfg(feature = "wgpu")]
#[test]
fn wgpu_processes_end_with_the_same_parameters() {
    let missing = "but 0 of that kind answered";
    let Some(end) = trained(2, &["wgpu"], &[missing]) else {
        return;
    };
    digest(2, &end);
}

/// On as many devices as there are, which they share, with gradients that stay there.
#[cfg(feature = "cuda")]
fn trained_on_cuda(ranks: usize, route: &str, missing: &[&str]) -> Option<String> {
    let device = ["cuda", "--oversubscribe", "--", "--route", route];
    let missing = [&["cannot train on cuda: "][..], missing].concat();
    let end = trained(ranks, &device, &missing)?;
    let said = |line: &String| line.contains("gradients are sent from device to device");
    assert!(end.stderr.iter().any(said), "{:?}", end.stderr);
    Some(digest(ranks, &end))
}

/// The memory of each device is open to the others, so no gradient goes through the host.
#[cfg(feature = "cuda")]
#[test]
fn cuda_processes_end_with_the_same_parameters() {
    trained_on_cuda(3, "auto", &[]);
}

/// Where each rank has its own device, the optimizer waits for gradients there, and not on the host.
#[cfg(feature = "cuda")]
#[test]
fn cuda_processes_with_their_own_devices_do_not_wait_on_the_host() {
    let train = |route| {
        let device = ["cuda", "--oversubscribe", "--", "--route", route];
        trained(2, &device, &["cannot train on cuda: "])
    };
    // What runs while Burn measures which kernels are the fastest may round otherwise than those.
    let Some(_) = train("host") else { return };
    let [device, host] = ["device", "host"].map(|route| train(route).unwrap());
    let said = |text: &str| device.stderr.iter().any(|line| line.contains(text));
    if said("ranks wait in Stream") {
        println!("skipped: it takes two devices");
        return;
    }
    assert!(said("timing=Ordered"), "{:?}", device.stderr);
    assert_eq!(digest(2, &device), digest(2, &host));
}

/// Those of two processes are the ones that they end with without NCCL; with three, it adds in an order of its own.
#[cfg(feature = "cuda")]
#[test]
fn cuda_processes_end_with_the_same_parameters_over_nccl() {
    // Before 2.30.3 NCCL takes no ranks that share a device, however it is set.
    let missing = ["no NCCL (", "is on the device of rank"];
    // What runs while Burn measures which kernels are the fastest may round otherwise than those.
    if trained_on_cuda(2, "nccl", &missing).is_none() {
        return;
    }
    let [over_nccl, without] = ["nccl", "device"].map(|route| trained_on_cuda(2, route, &[]));
    assert_eq!(over_nccl, without);
    trained_on_cuda(3, "nccl", &missing);
}

/// Two processes that take themselves to be on two hosts, each on the first device of its own; `None` where one
/// says that it has none.
#[cfg(feature = "cuda")]
fn trained_on_two_hosts(may_nccl_share: bool) -> Option<Vec<JobEnd>> {
    let folder = tempfile::tempdir().unwrap();
    let own_port = bonfire_testkit::OwnPort::new();
    let port = own_port.to_string();
    let start = |rank: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_resuming"));
        command.arg(folder.path()).args(["10", "--", "--route", "auto"]);
        command.env("BONFIRE_LOG", "info").envs([
            ("RANK", rank),
            ("BONFIRE_HOST_ID", rank),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "1"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
            ("BONFIRE_DEVICE", "cuda"),
            // Both are on one device, which NCCL refuses unless it is set otherwise.
            ("NCCL_MULTI_RANK_GPU_ENABLE", if may_nccl_share { "1" } else { "0" }),
        ]);
        Job::start_for(&mut command, LIMIT)
    };
    let jobs = ["0", "1"].map(start);
    let ends: Vec<JobEnd> = jobs.into_iter().map(Job::end).collect();
    let is_missing = |line: &&String| line.contains("cannot train on cuda: ");
    if let Some(line) = ends[0].stderr.iter().find(is_missing) {
        println!("skipped: {line}");
        return None;
    }
    for end in &ends {
        assert!(end.status.success(), "{:?}", end.stderr);
    }
    let digest = |end: &JobEnd| digest(1, end);
    assert_eq!(digest(&ends[0]), digest(&ends[1]));
    Some(ends)
}

/// Nothing is asked for. Real NCCL before 2.30.3 takes no ranks that share a device, however it is set.
#[cfg(feature = "cuda")]
#[test]
fn cuda_processes_of_two_hosts_take_nccl_by_themselves() {
    let Some(ends) = trained_on_two_hosts(true) else {
        return;
    };
    let said = |text: &str| ends[0].stderr.iter().any(|line| line.contains(text));
    if said("no NCCL (") || said("is on the device of rank") {
        println!("skipped: {:?}", ends[0].stderr);
        return;
    }
    assert!(said("2 ranks over NCCL"), "{:?}", ends[0].stderr);
    assert!(said("gradients are sent from device to device"));
    assert!(!said("staged through host memory"));
}

#[cfg(feature = "cuda")]
#[test]
fn cuda_processes_of_two_hosts_say_what_it_costs_to_go_without_nccl() {
    let Some(ends) = trained_on_two_hosts(false) else {
        return;
    };
    let [speaks, other] = [0, 1].map(|rank| {
        let mut lines = ends[rank].stderr.iter();
        lines.find(|line| line.contains("staged through host memory"))
    });
    let warning = speaks.unwrap_or_else(|| panic!("{:?}", ends[0].stderr));
    assert!(warning.contains("WARN"), "{warning}");
    // The cost, and what is missing.
    for text in ["every GPU copies all of its gradients", "NCCL", "rank"] {
        assert!(warning.contains(text), "{text}: {warning}");
    }
    assert!(other.is_none(), "{other:?}");
}

/// A device map over a graphics adapter, the CPU, host memory and a file.
#[cfg(feature = "wgpu")]
mod device_map {
    use std::fs;
    use std::path::Path;

    use bonfire::collective::WorldSize;
    use bonfire::weights::device_map::DeviceMap;
    use bonfire::weights::{Dispatch, WeightsFile, device_of};
    use bonfire::world::DeviceKind;
    use bonfire::{SpawnOptions, World, spawn_with};
    use burn::module::Module;
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::{Device, Tensor, activation};

    const WIDTH: usize = 4;

    #[derive(Module, Debug)]
    struct Net {
        layers: Vec<Linear>,
    }

    impl Net {
        fn new(device: &Device) -> Self {
            let layer = |_| {
                let config = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
                config.init(device)
            };
            Self { layers: (0..5).map(layer).collect() }
        }

        fn loss(&self, x: Tensor<2>) -> Tensor<1> {
            let forward = |x: Tensor<2>, layer: &Linear| {
                let x = x.to_device(&device_of(&layer.weight));
                activation::relu(layer.forward(x))
            };
            self.layers.iter().fold(x, forward).sum()
        }
    }

    /// Small whole numbers: sums of them are exact in whatever order.
    fn write(path: &Path) {
        let mut values = Vec::new();
        let mut entries = Vec::new();
        for layer in 0..5 {
            let start = values.len();
            for place in 0..WIDTH * WIDTH {
                let value = ((place * 7 + layer * 3) % 5) as f32 - 1.0;
                values.extend(value.to_le_bytes());
            }
            let end = values.len();
            entries.push(format!(
                r#""layers.{layer}.weight":{{"dtype":"F32","shape":[{WIDTH},{WIDTH}],"data_offsets":[{start},{end}]}}"#
            ));
        }
        let description = format!("{{{}}}", entries.join(","));
        let length = (description.len() as u64).to_le_bytes();
        let file = [&length[..], description.as_bytes(), &values].concat();
        fs::write(path, file).unwrap();
    }

    /// The loss and the gradients of the layers that are trained.
    fn answer(dispatch: &Dispatch, file: &WeightsFile) -> Vec<Vec<f32>> {
        let device = Device::flex().autodiff();
        let mut net = Net::new(&device);
        net.layers[3] = net.layers[3].clone().freeze();
        let (net, _) = dispatch.load(net, file).unwrap();
        let x = Tensor::<2>::ones([3, WIDTH], &device);
        let loss = net.loss(x);
        let mut found = vec![loss.clone().into_data().try_to_vec().unwrap()];
        let gradients = loss.backward();
        for layer in [0, 1, 2, 4] {
            let gradient = net.layers[layer].weight.grad(&gradients).unwrap();
            found.push(gradient.into_data().try_to_vec().unwrap());
        }
        found
    }

    #[test]
    fn wgpu_and_the_cpu_answer_together_from_memory_and_disk() {
        let options = SpawnOptions::new(WorldSize::new(1).unwrap()).with_device(DeviceKind::Wgpu);
        let device = |world: World| Ok::<_, bonfire::Error>(world.device());
        let adapter = match spawn_with(&options, device) {
            Ok(mut devices) => devices.remove(0),
            Err(error) => {
                println!("skipped: {error}");
                return;
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        write(&path);
        let file = WeightsFile::new(path);
        let alone = DeviceMap::new([("", "0")]).unwrap();
        let expected = answer(&Dispatch::new(alone, [Device::flex()]).unwrap(), &file);
        assert!(expected[0][0] > 0.0);
        let places = [
            ("layers.0", "1"),
            ("layers.1", "0"),
            ("layers.2", "cpu"),
            ("layers.3", "disk"),
            ("layers.4", "1"),
        ];
        let map = DeviceMap::new(places).unwrap();
        let both = Dispatch::new(map, [adapter, Device::flex()]).unwrap();
        for _ in 0..2 {
            assert_eq!(answer(&both, &file), expected);
        }
    }
}
