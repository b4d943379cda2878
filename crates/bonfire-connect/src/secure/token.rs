//! The secret that every process of one job shares.
//!
//! The launcher draws it and hands it down through the environment, or an administrator puts it into a file that only
//! the user can read; it is never on a command line, where every user of the host could read it. A connection must
//! prove that it knows the token before anything else it says is read, so neither a stranger nor a second job on the
//! same host can join by accident. The token never appears in a log: its `Debug` form hides it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ring::hmac;
use thiserror::Error;

use crate::platform::random;

/// The length of a token in bytes, that of the hash it keys.
const TOKEN_BYTES: usize = 32;
/// More than a token and the white space around it; a longer file is not a token.
const FILE_BYTES_MAX: u64 = 256;

/// The shared secret of a job: 32 random bytes, or nothing.
///
/// The empty token is the one of jobs whose processes were started without a launcher of this
/// project and without the variable; it keeps different programs apart, not attackers.
#[derive(Clone)]
pub struct JobToken {
    /// All zero for the empty token: HMAC pads its key with zeros, so this is the empty key.
    bytes: [u8; TOKEN_BYTES],
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The text is not 64 hexadecimal digits. The text itself is not repeated: it is a secret.
    #[error(
        "a job token is 64 hexadecimal digits, but this one has {length} characters or others \
         among them; `openssl rand -hex 32` makes one"
    )]
    NotHex { length: usize },
    #[error("cannot read the job token from {}", .path.display())]
    File { path: PathBuf, source: io::Error },
    /// Others than the owner can read or write the file of the token.
    #[error(
        "{} has mode {mode:o}, so others can read or change the job token: chmod 600 it", .path.display()
    )]
    Exposed { path: PathBuf, mode: u32 },
    #[error("cannot draw a job token")]
    Random(#[source] io::Error),
}

impl JobToken {
    pub fn random() -> Result<Self, TokenError> {
        let mut bytes = [0; TOKEN_BYTES];
        random::fill(&mut bytes).map_err(TokenError::Random)?;
        Ok(Self { bytes })
    }

    /// The token of a job that has none.
    pub fn empty() -> Self {
        Self { bytes: [0; TOKEN_BYTES] }
    }

    pub fn from_hex(text: &str) -> Result<Self, TokenError> {
        let not_hex = || TokenError::NotHex { length: text.chars().count() };
        let digits = text.as_bytes();
        if digits.len() != 2 * TOKEN_BYTES {
            return Err(not_hex());
        }
        let mut bytes = [0; TOKEN_BYTES];
        let digit = |digit: u8| char::from(digit).to_digit(16).ok_or_else(not_hex);
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(Self { bytes })
    }

    /// Reads the token from a file that only its owner can read: the digits and nothing else but
    /// white space around them.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        let unreadable = |source| TokenError::File { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(unreadable)?;
        // Of the open file, so that it cannot be another one by the time it is read.
        let mode = file.metadata().map_err(unreadable)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            let path = path.to_owned();
            return Err(TokenError::Exposed { path, mode });
        }
        let mut text = String::new();
        Read::by_ref(&mut file)
            .take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(unreadable)?;
        Self::from_hex(text.trim())
    }

    /// The token of one job among those that share this one: what its connections prove. A job
    /// without a name has this token itself.
    ///
    /// It is `HMAC-SHA256(token, "bonfire job " | name)`, so it is a secret if this one is.
    pub fn for_job(&self, name: &str) -> Self {
        if name.is_empty() {
            return self.clone();
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.bytes);
        let proof = hmac::sign(&key, &[b"bonfire job ", name.as_bytes()].concat());
        let bytes = proof.as_ref().try_into().expect("SHA-256 has 32 bytes");
        Self { bytes }
    }

    /// The token as 64 hexadecimal digits, for the environment of a child process and nothing else.
    pub fn to_hex(&self) -> String {
        self.bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The key for the challenge of a connection.
    pub fn as_bytes(&self) -> &[u8; TOKEN_BYTES] {
        &self.bytes
    }

    /// Whether this is the token of a job that has none.
    pub fn is_empty(&self) -> bool {
        self.bytes.iter().all(|&byte| byte == 0)
    }
}

impl fmt::Debug for JobToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_empty() { "JobToken(empty)" } else { "JobToken(hidden)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_goes_there_and_back() {
        let token = JobToken::random().unwrap();
        let again = JobToken::from_hex(&token.to_hex().to_uppercase()).unwrap();
        assert_eq!(token.as_bytes(), again.as_bytes());
        assert!(!token.is_empty());
    }

    #[test]
    fn two_tokens_differ() {
        let (a, b) = (JobToken::random().unwrap(), JobToken::random().unwrap());
        assert_ne!(a.as_bytes(), b.as_bytes());
    }

    #[test]
    fn jobs_that_share_a_token_have_tokens_of_their_own() {
        for shared in [JobToken::empty(), JobToken::random().unwrap()] {
            let of = |name| *shared.for_job(name).as_bytes();
            assert_eq!(of("a"), of("a"));
            assert_ne!(of("a"), of("b"));
            assert_ne!(of("a"), *shared.as_bytes());
            assert_eq!(of(""), *shared.as_bytes());
        }
    }

    #[test]
    fn a_file_is_read_only_if_nobody_else_can_read_it() {
        use std::fs;
        use std::os::unix::fs::PermissionsExt;
        let token = JobToken::random().unwrap();
        let name = format!("bonfire-token-test-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, format!("{}\n", token.to_hex())).unwrap();
        let with_mode = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            JobToken::from_file(&path)
        };
        for mode in [0o600, 0o400] {
            assert_eq!(with_mode(mode).unwrap().as_bytes(), token.as_bytes());
        }
        for mode in [0o640, 0o604, 0o622] {
            let error = with_mode(mode).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
            assert!(!error.contains(&token.to_hex()), "{error}");
        }
        fs::remove_file(&path).unwrap();
        let error = JobToken::from_file(&path).unwrap_err();
        assert!(matches!(error, TokenError::File { .. }), "{error}");
    }

    #[test]
    fn debug_hides_the_bytes() {
        let token = JobToken::from_hex(&"ab".repeat(32)).unwrap();
        assert_eq!(format!("{token:?}"), "JobToken(hidden)");
        assert_eq!(format!("{:?}", JobToken::empty()), "JobToken(empty)");
    }

    #[test]
    fn a_bad_token_is_refused_without_repeating_it() {
        for text in ["", "abc", &"zz".repeat(32), &"ab".repeat(33), "ä"] {
            let error = JobToken::from_hex(text).unwrap_err().to_string();
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
    }
}
