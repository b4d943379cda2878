//! What only the kernel knows of a connection, and what only it can hand over.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Bytes that were written to a connection and that the other host has not acknowledged.
///
/// # Errors
/// If the socket does not count them.
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

/// Who is at the other end of a Unix-domain connection, on the kernel's word (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// The process; `None` if this process cannot see it, because it is in another PID namespace.
    pub process: Option<NonZeroU32>,
    pub user: u32,
}

/// Asks the kernel who made the other end of a connection.
///
/// # Errors
/// If it is not a Unix-domain connection.
pub fn peer_credentials(socket: impl AsFd) -> io::Result<PeerCredentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let descriptor = socket.as_fd().as_raw_fd();
    let (level, name, place) = (libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut found).cast());
    // SAFETY: SO_PEERCRED (unix(7)) writes at most `len` bytes of a ucred to `found` and their number to
    // `len`; both are valid for that and owned by this function. Any bytes are a ucred: a process that
    // this one cannot see has the number 0. The descriptor is open, because it is borrowed.
    let result = unsafe { libc::getsockopt(descriptor, level, name, place, &raw mut len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials {
        process: u32::try_from(found.pid).ok().and_then(NonZeroU32::new),
        user: found.uid,
    })
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
    let socket = socket.as_fd();
    let data = [IoSlice::new(std::slice::from_ref(&mark))];
    retry_on_intr(|| sendmsg(socket, &data, &mut control, SendFlags::empty()))?;
    Ok(())
}

/// Takes a descriptor with this mark. Where it is not there yet, waits as long as the read timeout of the
/// connection allows, which begins again after a signal. No program that this one starts inherits it.
///
/// # Errors
/// What the kernel says: `EMFILE` if this process may open no more files. `UnexpectedEof` if the
/// connection has ended, `InvalidData` if something else came.
pub fn receive_descriptor(socket: impl AsFd, mark: u8) -> io::Result<OwnedFd> {
    let socket = socket.as_fd();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut found = [0];
    // A signal, and SIGSTOP with SIGCONT, end a wait with a time limit (signal(7)).
    let received = retry_on_intr(|| {
        let mut data = [IoSliceMut::new(&mut found)];
        recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match file {
        Some(file) if received.bytes == 1 && found[0] == mark => Ok(file),
        // The kernel drops a descriptor for which there is no room.
        None if received.flags.contains(ReturnFlags::CTRUNC) => Err(Errno::MFILE.into()),
        None if received.bytes == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => {
            let text = "no descriptor of shared memory came";
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
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
    fn the_kernel_says_who_is_at_the_other_end() {
        let (near, _far) = UnixStream::pair().unwrap();
        let peer = peer_credentials(&near).unwrap();
        assert_eq!(peer.process, NonZeroU32::new(std::process::id()));
        assert_eq!(peer.user, rustix::process::geteuid().as_raw());
        assert!(peer_credentials(std::fs::File::open("/dev/null").unwrap()).is_err());
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

    #[test]
    fn a_connection_that_ended_is_distinguished_from_one_that_sent_something_else() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(near);
        let error = receive_descriptor(&far, b'A').unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
