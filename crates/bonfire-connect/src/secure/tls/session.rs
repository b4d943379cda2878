//! A TCP connection with TLS on it, as a byte stream that may or may not block.
//!
//! What is written may wait here for room in the kernel until the next write or flush; what was
//! read and not asked for waits here, too, and goes before any look at the socket. So a caller that
//! reads until nothing comes may then sleep until the kernel has news, as on a plain socket.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::time::Duration;

use rustls::Connection;

use super::Identity;
use crate::platform::net::TcpStream;
use crate::secure::handshake::Role;
use crate::secure::lobby::Hurried;

pub(crate) const BINDING_BYTES: usize = 32;
/// The exporter label of RFC 9266.
const BINDING_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

#[derive(Debug)]
pub struct TlsStream {
    socket: TcpStream,
    connection: Connection,
}

impl TlsStream {
    /// Sets TLS up, for `timeout` at most. Nothing is known of the other end after this.
    pub fn open(
        mut socket: TcpStream,
        role: Role,
        identity: &Identity,
        timeout: Duration,
    ) -> io::Result<Self> {
        let mut connection = identity.connection(role)?;
        let mut hurried = Hurried::new(&mut socket, timeout);
        while connection.is_handshaking() || connection.wants_write() {
            connection.complete_io(&mut hurried)?;
        }
        Ok(Self { socket, connection })
    }

    /// A value that both ends of this connection have, and nobody else.
    pub fn binding(&self) -> io::Result<[u8; BINDING_BYTES]> {
        let binding = [0; BINDING_BYTES];
        self.connection
            .export_keying_material(binding, BINDING_LABEL, None)
            .map_err(io::Error::other)
    }

    /// The socket under it, for its options and for its news.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Moves what is already decrypted; nothing if the socket must be asked.
    fn take(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let mut taken = 0;
        for part in parts.iter_mut().filter(|part| !part.is_empty()) {
            match self.connection.reader().read(part) {
                // The other end has closed the connection.
                Ok(0) => return Ok(Some(taken)),
                Ok(len) => {
                    taken += len;
                    if len < part.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok((taken > 0).then_some(taken))
    }
}

impl Read for TlsStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(bytes)])
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        loop {
            if let Some(taken) = self.take(parts)? {
                return Ok(taken);
            }
            // The end of the stream without a word is an end as on a plain socket: what must
            // arrive before an end, as a farewell, is sent encrypted.
            if self.connection.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            if let Err(error) = self.connection.process_new_packets() {
                // Sends the other end the reason, if that is possible at once.
                let _ = self.connection.write_tls(&mut self.socket);
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        // First what was taken before: only so much is ever under way here.
        self.flush()?;
        let taken = self.connection.writer().write_vectored(parts)?;
        match self.flush() {
            Ok(()) => Ok(taken),
            Err(error) if is_busy(&error) => Ok(taken),
            Err(error) => Err(error),
        }
    }

    /// Has the kernel take everything; the error says if it has no room.
    fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            if self.connection.write_tls(&mut self.socket)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

fn is_busy(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
