//! Placeholder.

mod environment;
mod token;

pub use environment::{EnvError, RankEnv, StoreHost};
pub use token::{JobToken, TokenError};
