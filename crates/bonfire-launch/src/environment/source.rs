//! Typed readings of environment variables.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::Path;

use bonfire_collective::{JobToken, StoreHost};

use super::{
    AGENT_STORE, EnvError, HOST_ID, HOST_ID_BYTES_MAX, JOB_ID_BYTES_MAX, JOB_TOKEN, JOB_TOKEN_FILE,
    MASTER_ADDR, MASTER_PORT, RUN_ID, TORCHRUN_STORE,
};

/// A key-value source with typed readings.
pub(super) struct Source<'a> {
    pub(super) lookup: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Source<'_> {
    /// Text that is not Unicode becomes text that no parser accepts, which is what it deserves.
    pub(super) fn text(&self, variable: &'static str) -> Option<String> {
        (self.lookup)(variable).map(|value| value.to_string_lossy().into_owned())
    }

    pub(super) fn has_any(&self, variables: &[&str]) -> bool {
        let mut variables = variables.iter();
        variables.any(|&variable| (self.lookup)(variable).is_some())
    }

    pub(super) fn master(&self) -> Result<(String, u16), EnvError> {
        let address = self.required(MASTER_ADDR)?;
        if address.is_empty() {
            return Err(EnvError::NoAddress);
        }
        let port = self.port()?.ok_or(EnvError::Missing { variable: MASTER_PORT })?;
        Ok((address, port))
    }

    pub(super) fn port(&self) -> Result<Option<u16>, EnvError> {
        let port = self.number(MASTER_PORT, 1..=u16::MAX.into())?;
        Ok(port.map(|port| u16::try_from(port).expect("the range was checked")))
    }

    pub(super) fn required(&self, variable: &'static str) -> Result<String, EnvError> {
        self.text(variable).ok_or(EnvError::Missing { variable })
    }

    pub(super) fn number(
        &self,
        variable: &'static str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, EnvError> {
        let Some(value) = self.text(variable) else {
            return Ok(None);
        };
        match value.trim().parse() {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(EnvError::NotANumber {
                variable,
                value,
                min: *range.start(),
                max: *range.end(),
            }),
        }
    }

    pub(super) fn required_number(
        &self,
        variable: &'static str,
        range: RangeInclusive<u32>,
    ) -> Result<u32, EnvError> {
        self.number(variable, range)?.ok_or(EnvError::Missing { variable })
    }

    pub(super) fn job_token(&self) -> Result<JobToken, EnvError> {
        let wrong = |variable| move |source| EnvError::Token { variable, source };
        if let Some(text) = self.text(JOB_TOKEN).filter(|text| !text.is_empty()) {
            return JobToken::from_hex(text.trim()).map_err(wrong(JOB_TOKEN));
        }
        match (self.lookup)(JOB_TOKEN_FILE).filter(|path| !path.is_empty()) {
            Some(path) => JobToken::from_file(Path::new(&path)).map_err(wrong(JOB_TOKEN_FILE)),
            None => Ok(JobToken::empty()),
        }
    }

    pub(super) fn job_id(&self) -> Result<String, EnvError> {
        let job_id = self.text(RUN_ID).unwrap_or_default();
        if job_id.len() > JOB_ID_BYTES_MAX {
            let bytes = job_id.len();
            return Err(EnvError::JobIdTooLong { bytes });
        }
        Ok(job_id)
    }

    pub(super) fn host_id(&self) -> Result<Option<String>, EnvError> {
        let host_id = self.text(HOST_ID).filter(|text| !text.is_empty());
        match &host_id {
            Some(text) if text.len() > HOST_ID_BYTES_MAX => {
                Err(EnvError::HostIdTooLong { bytes: text.len() })
            }
            _ => Ok(host_id),
        }
    }

    pub(super) fn store_host(&self) -> Result<StoreHost, EnvError> {
        let Some(value) = self.text(AGENT_STORE) else {
            let torchrun_serves = self.text(TORCHRUN_STORE).as_deref() == Some("True");
            return Ok(if torchrun_serves { StoreHost::Torchrun } else { StoreHost::RankZero });
        };
        match value.trim() {
            "1" | "true" => Ok(StoreHost::Agent),
            "" | "0" | "false" => Ok(StoreHost::RankZero),
            "nearby" => Ok(StoreHost::Nearby),
            "torchrun" => Ok(StoreHost::Torchrun),
            _ => Err(EnvError::NotASwitch { variable: AGENT_STORE, value }),
        }
    }
}
