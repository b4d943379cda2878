//! What only the kernel knows of a connection, and what only it can hand over.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

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

/// Gives the process at the other end of a Unix-domain connection a descriptor of an open file (`SCM_RIGHTS`), beside one
/// byte that says what it is. The peer has then all power over the file that this process has.
///
/// # Errors
/// What the kernel says: the connection may have ended.
pub fn send_descriptor(socket: impl AsFd, mark: u8, file: BorrowedFd<'_>) -> io::Result<()> {
    let descriptors = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = control.push(SendAncillaryMessage::ScmRights(&descriptors));
    assert!(fits, "the buffer has room for one descriptor");
    sendmsg(
        socket,
        &[IoSlice::new(&[mark])],
        &mut control,
        SendFlags::empty(),
    )?;
    Ok(())
}

/// Waits for a descriptor with this mark, as long as the read timeout of the connection allows. No program that this one
/// starts inherits it.
///
/// # Errors
/// What the kernel says; `InvalidData` if something else came.
pub fn receive_descriptor(socket: impl AsFd, mark: u8) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut found = [0];
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut found)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match file {
        Some(file) if received.bytes == 1 && found[0] == mark => Ok(file),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "no descriptor of shared memory came",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

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
    #[test]
    fn a_descriptor_arrives_with_its_mark_and_nothing_else_passes_for_one() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"shared").unwrap();
        send_descriptor(&near, b'A', file.as_fd()).unwrap();
        let received = receive_descriptor(&far, b'A').unwrap();
        let mut text = [0; 6];
        rustix::io::pread(&received, &mut text, 0).unwrap();
        assert_eq!(&text, b"shared");
        send_descriptor(&near, b'B', file.as_fd()).unwrap();
        let error = receive_descriptor(&far, b'A').unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        near.write_all(b"A").unwrap();
        let error = receive_descriptor(&far, b'A').unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
