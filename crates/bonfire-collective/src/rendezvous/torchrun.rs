//! A note in the store that torchrun's agent serves at `MASTER_PORT`, through which ranks find rank 0's own store.
//!
//! It speaks as much of the protocol of `c10d::TCPStore` (`torch/csrc/distributed/c10d`) as one note
//! needs: numbers in the machine's order, texts behind their length in 64 bits, keys behind a slash.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::store_address::{StoreAddress, TEXT_BYTES_MAX};
use crate::options::place::RankEnv;

const MAGIC: u32 = 0x3C85_F7CE;
const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const CHECK: u8 = 5;
/// The answer to `CHECK` when all keys are there.
const READY: u8 = 0;
/// How long torchrun's store may take over anything.
const TALK_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct TorchStore {
    stream: TcpStream,
    key: String,
}

impl TorchStore {
    pub(super) fn connect(env: &RankEnv) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in (env.master_addr.as_str(), env.master_port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TALK_TIMEOUT) {
                Ok(stream) => return Self::greet(stream, env),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn greet(mut stream: TcpStream, env: &RankEnv) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TALK_TIMEOUT))?;
        stream.set_write_timeout(Some(TALK_TIMEOUT))?;
        let mut greeting = vec![VALIDATE];
        greeting.extend_from_slice(&MAGIC.to_ne_bytes());
        stream.write_all(&greeting)?;
        let (job, attempt) = (&env.job_id, env.restart_count);
        Ok(Self { stream, key: format!("/bonfire/{job}/{attempt}") })
    }

    pub(super) fn interface(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Leaves the note, as rank 0. Returns when it is there.
    pub(super) fn leave(&mut self, note: &StoreAddress) -> io::Result<()> {
        let mut request = vec![SET];
        put_text(&mut request, &self.key);
        put_text(&mut request, &note.to_string());
        self.stream.write_all(&request)?;
        // `SET` has no answer, but what is asked after it is answered after it.
        if self.has_note()? {
            return Ok(());
        }
        Err(invalid())
    }

    pub(super) fn read(&mut self) -> io::Result<Option<StoreAddress>> {
        if !self.has_note()? {
            return Ok(None);
        }
        let mut request = vec![GET];
        put_text(&mut request, &self.key);
        self.stream.write_all(&request)?;
        let mut length = [0; 8];
        self.stream.read_exact(&mut length)?;
        let length = usize::try_from(u64::from_ne_bytes(length))
            .ok()
            .filter(|&length| length <= TEXT_BYTES_MAX)
            .ok_or_else(invalid)?;
        let mut text = vec![0; length];
        self.stream.read_exact(&mut text)?;
        let text = String::from_utf8(text).map_err(|_| invalid())?;
        text.parse().map(Some).map_err(|()| invalid())
    }

    fn has_note(&mut self) -> io::Result<bool> {
        let mut request = vec![CHECK];
        request.extend_from_slice(&1_u64.to_ne_bytes());
        put_text(&mut request, &self.key);
        self.stream.write_all(&request)?;
        let mut answer = [0];
        self.stream.read_exact(&mut answer)?;
        Ok(answer[0] == READY)
    }
}

fn put_text(request: &mut Vec<u8>, text: &str) {
    request.extend_from_slice(&(text.len() as u64).to_ne_bytes());
    request.extend_from_slice(text.as_bytes());
}

fn invalid() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "torchrun's store answered something else than this version expects",
    )
}
