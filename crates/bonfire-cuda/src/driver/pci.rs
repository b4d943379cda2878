//! Where a device is plugged in.

use std::fmt;
use std::str::FromStr;

/// The address of a device on the PCI bus, without its function.
///
/// CUDA writes its domain with four digits, the management library with eight; both are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a PCI address such as 0000:0f:00.0")]
pub struct PciAddressError {
    text: String,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (domain, bus, device) = (self.domain, self.bus, self.device);
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.0")
    }
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, PciAddressError> {
        let parse = || {
            let (rest, _function) = text.split_once('.')?;
            let mut numbers = rest.split(':').map(|digits| u32::from_str_radix(digits, 16).ok());
            let address =
                Self { domain: numbers.next()??, bus: numbers.next()??, device: numbers.next()?? };
            numbers.next().is_none().then_some(address)
        };
        parse().ok_or_else(|| PciAddressError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_write_an_address_are_one() {
        let cuda: PciAddress = "0000:0F:00.0".parse().unwrap();
        let nvml: PciAddress = "00000000:0f:00.0".parse().unwrap();
        assert_eq!(cuda, nvml);
        assert_eq!(cuda.to_string(), "0000:0f:00.0");
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "0000:0f:00", "0f:00.0", "0:1:2:3.0", "0000:zz:00.0"] {
            assert!(text.parse::<PciAddress>().is_err(), "{text:?}");
        }
    }
}
