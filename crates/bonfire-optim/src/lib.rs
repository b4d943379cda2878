//! Optimizers that read and write memory once, and learning rates.
//!
//! They are Burn's own in arithmetic, state and use: a configuration makes a
//! [`ModuleOptimizer`](burn::optim::ModuleOptimizer), or the optimizer of a parameter group.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "flex"),
    allow(
        dead_code,
        unused_variables,
        reason = "no backend of this build has its tensors in host memory"
    )
)]

/// Writes a configuration: fields with their defaults, and the methods that set one field each.
#[doc(hidden)]
#[macro_export]
macro_rules! config {
    ($(#[$doc:meta])+ $Config:ident {$(
        $(#[$field_doc:meta])+
        $field:ident: $type:ty = $default:expr $(=> $with:ident)?,
    )+}) => {
        $(#[$doc])+
        #[non_exhaustive]
        pub struct $Config {$(
            $(#[$field_doc])+
            pub $field: $type,
        )+}

        impl Default for $Config {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $Config {$($(
            #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            #[must_use]
            pub fn $with(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )?)+}
    };
}

mod compute;
mod deferred;
mod fused;
mod global_batch;
mod gradient;
mod offload;
mod scaler;
mod schedule;

pub use bonfire_plan::rate::{Decay, Schedule};
pub use bonfire_sys::FileMemoryError;
#[doc(hidden)]
pub use compute::{cast, wide};
pub use deferred::DeferredScale;
pub use fused::Fused;
pub use fused::rules::*;
pub use global_batch::{GlobalBatch, RateRule};
#[doc(hidden)]
pub use gradient::{Factor, Factors};
pub use offload::Offload;
pub use scaler::ScalerConfig;
pub use schedule::ScheduledRate;
