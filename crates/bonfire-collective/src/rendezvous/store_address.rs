//! Where rank 0 serves the store, and with which token, as it announces to the other ranks.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use bonfire_connect::secure::token::JobToken;

/// Longest text of this: an address, a space and the digits of a token.
pub(super) const TEXT_BYTES_MAX: usize = 160;

/// An address and what a connection to it must prove.
#[derive(Clone, Debug)]
pub(super) struct StoreAddress {
    pub(super) address: SocketAddr,
    pub(super) token: JobToken,
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.address, self.token.to_hex())
    }
}

impl FromStr for StoreAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, token) = text.split_once(' ').ok_or(())?;
        Ok(Self {
            address: address.parse().map_err(drop)?,
            token: JobToken::from_hex(token).map_err(drop)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_there_and_back_and_nothing_else_is_taken() {
        for address in ["127.0.0.1:4", "[fe80::1%3]:65535"] {
            let token = JobToken::random().unwrap();
            let written = StoreAddress { address: address.parse().unwrap(), token: token.clone() };
            let text = written.to_string();
            assert!(text.len() <= TEXT_BYTES_MAX);
            let read: StoreAddress = text.parse().unwrap();
            assert_eq!(read.address, written.address);
            assert_eq!(read.token.as_bytes(), token.as_bytes());
            assert!(text[..text.len() - 1].parse::<StoreAddress>().is_err());
        }
        assert!("".parse::<StoreAddress>().is_err());
        assert!("host:1 00".parse::<StoreAddress>().is_err());
    }
}
