//! The network interfaces of the host.

use std::net::IpAddr;

use serde::Serialize;

use super::files::Files;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::doctor) struct Interface {
    pub(in crate::doctor) name: String,
    /// As the kernel calls it: up, down, unknown.
    pub(in crate::doctor) state: String,
    /// What its driver says, where it says something.
    pub(in crate::doctor) megabits_per_second: Option<u32>,
    pub(in crate::doctor) mtu_bytes: Option<u32>,
    pub(in crate::doctor) addresses: Vec<IpAddr>,
}

impl Interface {
    /// Whether another host may be reached by it.
    pub(in crate::doctor) fn leads_out(&self) -> bool {
        self.state != "down" && self.addresses.iter().any(|address| !address.is_loopback())
    }
}

/// All of them, with those of `addresses` that are theirs.
pub(super) fn interfaces(files: &Files, addresses: &[(String, IpAddr)]) -> Vec<Interface> {
    let of = |name: String| {
        let text = |file: &str| files.text(&format!("sys/class/net/{name}/{file}"));
        let state = text("operstate")?;
        Some(Interface {
            state: state.trim().to_owned(),
            // -1 is "no idea".
            megabits_per_second: text("speed").and_then(|speed| speed.trim().parse().ok()),
            mtu_bytes: text("mtu").and_then(|mtu| mtu.trim().parse().ok()),
            addresses: addresses
                .iter()
                .filter(|(owner, _)| *owner == name)
                .map(|(_, address)| *address)
                .collect(),
            name,
        })
    };
    let names = files.names("sys/class/net");
    names.into_iter().filter_map(of).collect()
}
