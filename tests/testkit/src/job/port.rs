//! A port for a server that a test starts.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// A port of 127.0.0.1 that nobody else is given until this is dropped.
///
/// A socket has it that does not listen. So a server may bind it as well, if it allows the reuse of addresses.
#[derive(Debug)]
pub struct OwnPort {
    number: u16,
    _socket: OwnedFd,
}

impl OwnPort {
    /// Of a number that the kernel chooses.
    #[track_caller]
    pub fn new() -> Self {
        Self::try_new().expect("a port is free")
    }

    fn try_new() -> rustix::io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        let address = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok(Self { number: address.port(), _socket: socket })
    }
}

impl Default for OwnPort {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for OwnPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)
    }
}
