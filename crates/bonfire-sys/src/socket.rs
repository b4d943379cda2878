//! What only the kernel knows of a connection.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes that were written to a connection and that the other host has not acknowledged.
///
/// # Errors
/// If it is no connection that counts them.
pub fn unacknowledged_bytes(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: TIOCOUTQ, which is SIOCOUTQ for sockets (tcp(7), unix(7)), writes one int to its argument,
    // which is valid for that and owned by this function; the descriptor is open, because it is borrowed.
    let result = unsafe { libc::ioctl(descriptor, libc::TIOCOUTQ, &mut bytes) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_a_stopped_reader_was_sent_is_acknowledged_all_the_same() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        assert_eq!(unacknowledged_bytes(&sender).unwrap(), 0);
        sender.write_all(&[1; 100]).unwrap();
        // Nobody reads, and the kernel acknowledges nevertheless.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while unacknowledged_bytes(&sender).unwrap() > 0 {
            assert!(std::time::Instant::now() < deadline, "never acknowledged");
            std::thread::yield_now();
        }
        receiver.read_exact(&mut [0; 100]).unwrap();
        assert!(unacknowledged_bytes(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
