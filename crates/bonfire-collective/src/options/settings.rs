//! What the environment says in place of the options that a program chooses.
//!
//! These variables are Bonfire's own, and the user who starts a program sets them. Those that place
//! a rank in its job are a launcher's, and nothing here reads them.

use std::error::Error;
use std::ffi::OsString;
use std::str::FromStr;

use crate::options::STREAMS_MAX;
use crate::options::builds::Builds;
use crate::options::call_sites::CallSites;
use crate::options::overrides::AlgorithmOverrides;
use crate::options::stream_threads::StreamThreads;
use bonfire_connect::connections::Connections;

const ALGORITHM: &str = "BONFIRE_ALGORITHM";
const STREAMS: &str = "BONFIRE_STREAMS";
/// Which threads move the bytes of those streams: `auto`, `on` or `off`.
const STREAM_THREADS: &str = "BONFIRE_STREAM_THREADS";
/// Which connections are encrypted: `off`, `hosts` or `all`.
const TLS: &str = "BONFIRE_TLS";
/// Which links have checksums: `off`, `hosts` or `all`.
const CHECKSUMS: &str = "BONFIRE_CHECKSUMS";
/// Whether ranks must call an operation from the same line: `named` or `compared`.
const CALL_SITES: &str = "BONFIRE_CALL_SITES";
/// Whether ranks must run the same build of their program: `same` or `any`.
const BUILDS: &str = "BONFIRE_BUILDS";

/// What `BONFIRE_ALGORITHM`, `BONFIRE_STREAMS`, `BONFIRE_STREAM_THREADS`, `BONFIRE_TLS`, `BONFIRE_CHECKSUMS`, `BONFIRE_CALL_SITES` and
/// `BONFIRE_BUILDS` say, which goes before a program's own [`GroupOptions`](crate::GroupOptions). What is not
/// set, or empty, leaves the option as it is. All ranks need the same; `stream_threads` may differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvSettings {
    /// Algorithms in place of those that Bonfire or the program chooses.
    pub overrides: AlgorithmOverrides,
    /// The number of streams of each link over TCP, 1 to 16.
    pub streams_per_link: Option<u32>,
    /// Which threads move the bytes of those streams.
    pub stream_threads: Option<StreamThreads>,
    /// Which connections are encrypted. The launchers of a job need the same, too.
    pub tls: Option<Connections>,
    /// Which links send checksums with frames.
    pub checksums: Option<Connections>,
    /// What the lines count from which ranks call their operations.
    pub call_sites: Option<CallSites>,
    /// Which builds of the program may meet.
    pub builds: Option<Builds>,
}

/// A variable does not hold what it can.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// It names nothing that can be chosen.
    #[error("{variable} is wrong")]
    Unknown {
        /// The environment variable, such as `BONFIRE_TLS`.
        variable: &'static str,
        /// The parser's error about the text of the variable.
        source: Box<dyn Error + Send + Sync>,
    },
    /// `BONFIRE_STREAMS` is not a number of connections that a link can have.
    #[error("{STREAMS} must be a whole number from 1 to {STREAMS_MAX}, not \"{value}\"")]
    Streams {
        /// The text of the variable as it was set.
        value: String,
    },
}

impl EnvSettings {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// [`SettingError`] naming the first variable that is wrong.
    pub fn from_env() -> Result<Self, SettingError> {
        Self::from_lookup(|variable| std::env::var_os(variable))
    }

    /// As [`from_env`](Self::from_env), from any key-value source.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, SettingError> {
        let text = |variable: &str| {
            let text = lookup(variable)?.to_string_lossy().into_owned();
            Some(text).filter(|text| !text.is_empty())
        };
        let streams = |value: String| match value.trim().parse() {
            Ok(streams) if (1..=STREAMS_MAX as u32).contains(&streams) => Ok(streams),
            _ => Err(SettingError::Streams { value }),
        };
        Ok(Self {
            overrides: choice(ALGORITHM, text(ALGORITHM))?.unwrap_or_default(),
            streams_per_link: text(STREAMS).map(streams).transpose()?,
            stream_threads: choice(STREAM_THREADS, text(STREAM_THREADS))?,
            tls: choice(TLS, text(TLS))?,
            checksums: choice(CHECKSUMS, text(CHECKSUMS))?,
            call_sites: choice(CALL_SITES, text(CALL_SITES))?,
            builds: choice(BUILDS, text(BUILDS))?,
        })
    }

    /// The variables that say this: what [`from_lookup`](Self::from_lookup) reads.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let overrides = (!self.overrides.is_empty()).then(|| self.overrides.to_string());
        let said = [
            (ALGORITHM, overrides),
            (STREAMS, self.streams_per_link.map(|streams| streams.to_string())),
            (STREAM_THREADS, self.stream_threads.map(|threads| threads.to_string())),
            (TLS, self.tls.map(|tls| tls.to_string())),
            (CHECKSUMS, self.checksums.map(|checksums| checksums.to_string())),
            (CALL_SITES, self.call_sites.map(|call_sites| call_sites.to_string())),
            (BUILDS, self.builds.map(|builds| builds.to_string())),
        ];
        let set = said.into_iter();
        set.filter_map(|(variable, value)| Some((variable, value?))).collect()
    }
}

fn choice<T>(variable: &'static str, text: Option<String>) -> Result<Option<T>, SettingError>
where
    T: FromStr<Err: Error + Send + Sync + 'static>,
{
    let chosen = text.map(|text| text.parse()).transpose();
    chosen.map_err(|source: T::Err| SettingError::Unknown { variable, source: source.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(variable: &str, value: &str) -> Result<EnvSettings, SettingError> {
        EnvSettings::from_lookup(|asked| (asked == variable).then(|| value.into()))
    }

    #[test]
    fn what_is_said_is_what_is_read() {
        let said = EnvSettings {
            overrides: "ring".parse().unwrap(),
            streams_per_link: Some(4),
            stream_threads: Some(StreamThreads::On),
            tls: Some(Connections::Hosts),
            checksums: Some(Connections::All),
            call_sites: Some(CallSites::Compared),
            builds: Some(Builds::Any),
        };
        let variables = said.variables();
        let read = EnvSettings::from_lookup(|asked| {
            let (_, value) = variables.iter().find(|(variable, _)| *variable == asked)?;
            Some(value.into())
        });
        assert_eq!(read.unwrap(), said);
        assert_eq!(EnvSettings::default().variables(), []);
    }

    #[test]
    fn what_is_wrong_is_named_and_what_is_empty_is_not_set() {
        for variable in [ALGORITHM, TLS, CHECKSUMS, CALL_SITES, BUILDS] {
            let error = parse(variable, "nonsense").unwrap_err();
            assert_eq!(error.to_string(), format!("{variable} is wrong"));
            assert!(error.source().is_some(), "{variable}");
            assert_eq!(parse(variable, "").unwrap(), EnvSettings::default());
        }
        for number in ["0", "17", "many"] {
            let error = parse(STREAMS, number).unwrap_err().to_string();
            assert!(error.contains("whole number from 1 to 16"), "{error}");
        }
    }
}
