//! Passing the descriptor of a shared region over a Unix-domain socket (`SCM_RIGHTS`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use bonfire_sys::Region;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::platform::net::descriptor;
use crate::secure::stream::Stream;

/// A descriptor travels beside at least one byte of data.
const MARK: u8 = b'R';

pub(super) fn send(stream: &Stream, region: &Region) -> io::Result<()> {
    let descriptors = [region
        .descriptor()
        .expect("regions for other processes are made with a descriptor")];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = control.push(SendAncillaryMessage::ScmRights(&descriptors));
    assert!(fits, "the buffer has room for one descriptor");
    sendmsg(
        descriptor(stream)?,
        &[IoSlice::new(&[MARK])],
        &mut control,
        SendFlags::empty(),
    )?;
    Ok(())
}

/// Waits for the descriptor as long as the stream's read timeout allows.
pub(super) fn receive(stream: &Stream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut mark = [0];
    let received = recvmsg(
        descriptor(stream)?,
        &mut [IoSliceMut::new(&mut mark)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let received_descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match received_descriptor {
        Some(descriptor) if received.bytes == 1 && mark[0] == MARK => Ok(descriptor),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "no region descriptor came",
        )),
    }
}
