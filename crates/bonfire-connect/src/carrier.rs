//! What carries the bytes of a link's stream: the thread that uses the link, or one of the stream's own.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use crate::platform::net::{Socket, SocketRef};
#[cfg(not(laboratory))]
use crate::relay::Relay;
use crate::secure::stream::Stream;

/// A stream that never blocks.
#[derive(Debug)]
pub enum Carrier {
    /// Who reads and writes calls the kernel.
    Own(Stream),
    /// A thread does. The simulation has none: what it orders are events, not how long they take.
    #[cfg(not(laboratory))]
    Relayed(Relay),
}

/// Calls on what a carrier is.
macro_rules! on {
    ($self:ident, $carrier:ident => $call:expr) => {
        match $self {
            Self::Own($carrier) => $call,
            #[cfg(not(laboratory))]
            Self::Relayed($carrier) => $call,
        }
    };
}

impl Carrier {
    pub fn own(stream: Stream) -> io::Result<Self> {
        stream.set_nonblocking()?;
        Ok(Self::Own(stream))
    }

    pub fn relayed(stream: Stream) -> io::Result<Self> {
        #[cfg(not(laboratory))]
        return Relay::start(stream).map(Self::Relayed);
        #[cfg(laboratory)]
        return Self::own(stream);
    }

    /// Whether the socket also reports room for more bytes. Otherwise ask the kernel.
    pub fn reports_room(&self) -> bool {
        !matches!(self, Self::Own(_))
    }
}

impl Socket for Carrier {
    fn socket(&self) -> SocketRef<'_> {
        on!(self, carrier => carrier.socket())
    }
}

impl Read for Carrier {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        on!(self, carrier => carrier.read(bytes))
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        on!(self, carrier => carrier.read_vectored(parts))
    }
}

impl Write for Carrier {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        on!(self, carrier => carrier.write(bytes))
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        on!(self, carrier => carrier.write_vectored(parts))
    }

    fn flush(&mut self) -> io::Result<()> {
        on!(self, carrier => carrier.flush())
    }
}
