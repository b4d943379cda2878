//! How ranks of a test are connected, as an argument of a program.

use std::fmt;

use bonfire_collective::GroupOptions;

/// The text names no way to connect ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWay(String);

impl fmt::Display for UnknownWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is neither auto nor TRANSPORT[:STREAMS]", self.0)
    }
}

impl std::error::Error for UnknownWay {}

/// Options that connect ranks by `way`: `auto`, or the name of a transport, with a colon and the
/// number of streams behind it if that is not one.
///
/// # Errors
/// If there is no such transport, or the number is none.
pub fn over(way: &str) -> Result<GroupOptions, UnknownWay> {
    let unknown = || UnknownWay(way.to_owned());
    let (transport, streams) = way.split_once(':').unwrap_or((way, "1"));
    let transport = match transport {
        "auto" => None,
        name => Some(name.parse().map_err(|_| unknown())?),
    };
    Ok(GroupOptions {
        transport,
        streams_per_link: streams.parse().map_err(|_| unknown())?,
        ..GroupOptions::default()
    })
}
