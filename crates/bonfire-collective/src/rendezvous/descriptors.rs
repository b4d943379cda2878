//! Memory that ranks of one host hand to each other: descriptors over a Unix-domain socket (`SCM_RIGHTS`).
//!
//! This is the crate's only `unsafe` code. A descriptor gives its holder power over memory to which this process has
//! references, so it may go only to processes that keep to the protocols of `bonfire-sys`. Here it is sent on a
//! control connection ([`Early`]), and those exist only between ranks that have proved to each other that they know
//! the job's token. It is received with close-on-exec, so no other program inherits it.
//!
//! The job's token stands for the job's program: the user who gives it to another program, or lets builds of
//! different versions meet ([`Builds::Any`](crate::Builds::Any)), answers for what that does to the memory.

#![allow(unsafe_code, reason = "memory of other processes, each site with its proof")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use bonfire_plan::Rank;
use bonfire_sys::ring::{Consumer, Producer, RingLayout};
use bonfire_sys::socket::{receive_descriptor, send_descriptor};
use bonfire_sys::window::Board;
use bonfire_sys::{Arena, OpenError};

use crate::health::control::Early;
use bonfire_connect::platform::net::descriptor;
use bonfire_connect::secure::stream::Stream;

/// A descriptor of a ring is sent beside one byte of data.
const RING: u8 = b'R';
const ARENA: u8 = b'A';

/// Lets the peer fill the ring that this rank reads.
pub(super) fn send_ring(peer: &Early, ring: &Consumer) -> io::Result<()> {
    // SAFETY: the peer knows the job's token and runs this code: it calls `receive_ring`, with the
    // layout that follows from the chunk size, on which the ranks agreed.
    let file = unsafe { ring.descriptor() };
    let file = file.expect("rings for other processes are made with a descriptor");
    peer.with_stream(|stream| send(stream, RING, file))
}

/// The ring that the peer reads and this rank fills. Its descriptor has been seen to be there.
pub(super) fn receive_ring(
    peer: &Early,
    layout: RingLayout,
) -> io::Result<Result<Producer, OpenError>> {
    let file = peer.with_stream(|stream| receive(stream, RING))?;
    // SAFETY: the peer knows the job's token and runs this code: what it marks so is the descriptor of
    // a ring from `send_ring`, and it went to no other rank.
    Ok(unsafe { Producer::open(file, layout) })
}

/// Lets the peer reach the buffers of this rank.
pub(super) fn send_arena(peer: &Early, arena: &Arena) -> io::Result<()> {
    // SAFETY: the peer knows the job's token and runs this code: it calls `share`.
    let file = unsafe { arena.descriptor() };
    peer.with_stream(|stream| send(stream, ARENA, file))
}

/// The arena of a peer, from [`receive_arena`] alone.
#[derive(Debug)]
pub(super) struct PeerArena(OwnedFd);

/// Takes the arena of a peer, whose descriptor has been seen to be there.
pub(super) fn receive_arena(peer: &Early) -> io::Result<PeerArena> {
    peer.with_stream(|stream| receive(stream, ARENA)).map(PeerArena)
}

/// Opens windows between the arenas of all peers, by their ranks, and that of rank `me`.
pub(super) fn share(
    me: Rank,
    arena: &Arena,
    peers: BTreeMap<Rank, PeerArena>,
) -> Result<Board, OpenError> {
    let files = peers.into_values().map(|PeerArena(file)| file).collect();
    // SAFETY: the peers know the job's token and run this code: what they mark so are the descriptors
    // of their arenas from `send_arena`, one for each rank. Every rank makes one board of its arena.
    unsafe { Board::for_processes(arena.clone(), me.index(), files) }
}

fn send(stream: &Stream, mark: u8, file: BorrowedFd<'_>) -> io::Result<()> {
    send_descriptor(descriptor(stream)?, mark, file)
}

fn receive(stream: &Stream, mark: u8) -> io::Result<OwnedFd> {
    receive_descriptor(descriptor(stream)?, mark)
}
