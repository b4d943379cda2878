//! Where a rank accepts its peers.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::rendezvous::ConnectError;
use bonfire_connect::platform::net::{
    Handle, TcpListener, UnixListener, await_news, listen, listen_abstract,
};
use bonfire_connect::platform::random;
use bonfire_connect::secure::stream::Stream;

#[derive(Debug)]
pub(crate) struct Listeners {
    unix: UnixListener,
    unix_name: String,
    tcp: TcpListener,
    handles: [Handle; 2],
}

impl Listeners {
    /// Listens on the interface of this address, on any port, and on an abstract socket.
    pub(in crate::rendezvous) fn open(
        mut interface: SocketAddr,
    ) -> Result<(Self, SocketAddr), ConnectError> {
        let system = |call| move |source| ConnectError::System { call, source };
        let mut name = [0; 16];
        random::fill(&mut name).map_err(system("getrandom"))?;
        let unix_name = format!("bonfire-{}", name.map(|byte| format!("{byte:02x}")).concat());
        let unix = listen_abstract(&unix_name).map_err(system("bind"))?;
        interface.set_port(0);
        let tcp = listen(interface).map_err(system("bind"))?;
        unix.set_nonblocking(true).map_err(system("fcntl"))?;
        tcp.set_nonblocking(true).map_err(system("fcntl"))?;
        let handles =
            [Handle::of(&unix).map_err(system("dup"))?, Handle::of(&tcp).map_err(system("dup"))?];
        let tcp_address = tcp.local_addr().map_err(system("getsockname"))?;
        Ok((Self { unix, unix_name, tcp, handles }, tcp_address))
    }

    pub(in crate::rendezvous) fn unix_name(&self) -> &str {
        &self.unix_name
    }

    /// The next connection, or `None` after `timeout` without one.
    pub(in crate::rendezvous) fn accept(&self, timeout: Duration) -> io::Result<Option<Stream>> {
        let [unix, tcp] = &self.handles;
        let _ = await_news(&[unix, tcp], timeout);
        match self.unix.accept() {
            Ok((stream, _)) => return Ok(Some(Stream::Unix(stream))),
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(error),
        }
        match self.tcp.accept() {
            Ok((stream, _)) => Ok(Some(Stream::Tcp(stream))),
            Err(error) if is_transient(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
    )
}
