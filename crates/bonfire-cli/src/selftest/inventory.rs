//! The part that lists what the machine has.

use anyhow::Context as _;
use bonfire_gpu::{Context, Device, Driver, Nvrtc, peer_access};

/// The driver and a device, or why there are none.
pub(super) fn require() -> anyhow::Result<Vec<Device>> {
    let driver = Driver::load()?;
    // Names the first device that there should be, if there is none.
    driver.device(0)?;
    Ok(driver.devices()?)
}

pub(super) fn is_shared() -> anyhow::Result<bool> {
    Ok(require()?.len() == 1)
}

/// A context of the device that a rank gets: in turn.
pub(super) fn context_of(rank: u32) -> anyhow::Result<Context> {
    let devices = require()?;
    let device = &devices[rank as usize % devices.len()];
    Context::retain(device).with_context(|| format!("device {}", device.ordinal()))
}

pub(super) fn print() -> anyhow::Result<()> {
    let driver = Driver::load()?;
    println!("driver for CUDA {}", driver.version());
    println!("NVRTC {}", Nvrtc::load()?.version());
    let devices = require()?;
    for device in &devices {
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
        for peer in devices.iter().filter(|peer| *peer != device) {
            println!(
                "  memory of device {}: {}",
                peer.ordinal(),
                peer_access(device, peer)?
            );
        }
    }
    Ok(())
}
