//! How ranks of a test are connected, as an argument of a program.

use std::fmt;

use bonfire_collective::{GroupOptions, StreamThreads};

/// The text names no way to connect ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWay(String);

impl fmt::Display for UnknownWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not TRANSPORT[:STREAMS[t]][+TLS]", self.0)
    }
}

impl std::error::Error for UnknownWay {}

/// Options that connect ranks by `way`: `auto` or the name of a transport, with a colon and the number
/// of streams behind it if that is not one, with a t if those have threads, and a plus and what is encrypted if that is not nothing.
///
/// # Errors
/// If there is no such transport or choice of TLS, or the number is not one.
pub fn over(way: &str) -> Result<GroupOptions, UnknownWay> {
    let given = way;
    let unknown = || UnknownWay(given.to_owned());
    let (way, tls) = way.split_once('+').unwrap_or((way, "off"));
    let (transport, streams) = way.split_once(':').unwrap_or((way, "1"));
    let (streams, threads) = match streams.strip_suffix('t') {
        Some(streams) => (streams, StreamThreads::On),
        None => (streams, StreamThreads::Off),
    };
    let transport = match transport {
        "auto" => None,
        name => Some(name.parse().map_err(|_| unknown())?),
    };
    Ok(GroupOptions::default()
        .with_transport(transport)
        .with_streams_per_link(streams.parse().map_err(|_| unknown())?)
        .with_stream_threads(threads)
        .with_tls(tls.parse().map_err(|_| unknown())?))
}
