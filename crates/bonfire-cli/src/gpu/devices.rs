//! The GPUs of this host, which ranks get in turn.

use anyhow::Context as _;
use bonfire_gpu::{Context, Device, Driver};

/// Returns the devices; without a driver or a device the error says what is missing.
pub(crate) fn all() -> anyhow::Result<Vec<Device>> {
    let driver = Driver::load()?;
    // Names the first device that there should be, if there is none.
    driver.device(0)?;
    Ok(driver.devices()?)
}

pub(crate) fn context_of(rank: u32) -> anyhow::Result<Context> {
    let devices = all()?;
    let number = number_of(rank, devices.len());
    Context::retain(&devices[number]).with_context(|| format!("device {number}"))
}

fn number_of(rank: u32, devices: usize) -> usize {
    rank as usize % devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_take_devices_in_turn() {
        let devices: Vec<usize> = (0..5).map(|rank| number_of(rank, 2)).collect();
        assert_eq!(devices, [0, 1, 0, 1, 0]);
    }
}
