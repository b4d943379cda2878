//! The part that lists what the machine has.

use bonfire_gpu::{Context, Driver, Nvrtc, peer_access};

use crate::gpu::devices;

pub(super) fn is_shared() -> anyhow::Result<bool> {
    Ok(devices::all()?.len() == 1)
}

pub(super) fn print() -> anyhow::Result<()> {
    let driver = Driver::load()?;
    println!("driver for CUDA {}", driver.version());
    println!("NVRTC {}", Nvrtc::load()?.version());
    let all = devices::all()?;
    for device in &all {
        let memory = Context::retain(device)?.memory_info()?;
        println!(
            "device {}: {}, {}, PCI {}, compute capability {}, {} multiprocessors, {:.1} of {:.1} GB \
             free",
            device.ordinal(),
            device.name(),
            device.uuid_text(),
            device.pci(),
            device.capability(),
            device.multiprocessors(),
            memory.free as f64 / 1e9,
            memory.total as f64 / 1e9,
        );
        for peer in all.iter().filter(|peer| *peer != device) {
            let access = peer_access(device, peer)?;
            println!("  memory of device {}: {access}", peer.ordinal());
        }
    }
    Ok(())
}
