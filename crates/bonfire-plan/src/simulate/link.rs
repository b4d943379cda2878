//! What a link between two ranks costs, and which links there are.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use super::SimulateError;
use crate::{Bytes, Hosts, WorldSize};

/// The slots of a link in Bonfire's own transports.
const SLOTS: NonZeroUsize = NonZeroUsize::new(4).expect("4 is not 0");

/// What it costs to move a frame from one rank to another. All figures are in seconds.
///
/// The first two are alpha and beta of the usual formulas; with the overhead they are the L, G and o
/// of LogGP (Alexandrov, Ionescu, Schauser and Scheiman, 1995).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// From the moment a byte has passed the sender's port until it reaches the receiver's.
    pub latency_s: f64,
    /// How long one byte occupies each of the two ports: the inverse of the bandwidth.
    pub s_per_byte: f64,
    /// The time of the sender, and again of the receiver, for each frame.
    #[serde(default)]
    pub overhead_s: f64,
    /// The time of a rank for each byte that it copies into or out of a frame.
    #[serde(default)]
    pub copy_s_per_byte: f64,
    /// The time of a rank for each byte that came over this link and that it folds into others.
    #[serde(default)]
    pub fold_s_per_byte: f64,
    /// The longest payload that is sent with what announces it, in bytes.
    #[serde(default)]
    pub short_bytes: u64,
    /// What a longer frame adds to the latency: its payload is fetched only when it was announced.
    #[serde(default)]
    pub long_latency_s: f64,
}

/// Which of the two links of a [`Network`] joins two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// They are on one host.
    Intra = 0,
    /// They are on two hosts.
    Inter = 1,
}

/// Where ranks are, and what the links between them cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// The host of each rank.
    pub hosts: Hosts,
    /// Between two ranks of a host.
    pub intra: Link,
    /// Between ranks of two hosts, over their network cards.
    pub inter: Link,
    /// How many frames may be on their way between two ranks, or lie unreleased.
    pub slots: NonZeroUsize,
}

impl Link {
    /// A link that costs only these two.
    pub const fn new(latency_s: f64, s_per_byte: f64) -> Self {
        Self {
            latency_s,
            s_per_byte,
            overhead_s: 0.0,
            copy_s_per_byte: 0.0,
            fold_s_per_byte: 0.0,
            short_bytes: 0,
            long_latency_s: 0.0,
        }
    }

    /// The latency of a frame with this much payload.
    pub fn frame_latency_s(&self, payload: Bytes) -> f64 {
        if payload.get() > self.short_bytes {
            self.latency_s + self.long_latency_s
        } else {
            self.latency_s
        }
    }

    /// A link that takes `factor` times as long for everything.
    #[must_use]
    pub fn slower(self, factor: f64) -> Self {
        Self {
            latency_s: self.latency_s * factor,
            s_per_byte: self.s_per_byte * factor,
            overhead_s: self.overhead_s * factor,
            copy_s_per_byte: self.copy_s_per_byte * factor,
            fold_s_per_byte: self.fold_s_per_byte * factor,
            short_bytes: self.short_bytes,
            long_latency_s: self.long_latency_s * factor,
        }
    }

    /// Requires that every figure is a time.
    pub(super) fn validate(&self) -> Result<(), SimulateError> {
        let figures = [
            ("latency_s", self.latency_s),
            ("s_per_byte", self.s_per_byte),
            ("overhead_s", self.overhead_s),
            ("copy_s_per_byte", self.copy_s_per_byte),
            ("fold_s_per_byte", self.fold_s_per_byte),
            ("long_latency_s", self.long_latency_s),
        ];
        for (figure, value) in figures {
            if !value.is_finite() || value < 0.0 {
                return Err(SimulateError::NotATime { figure, value });
            }
        }
        Ok(())
    }
}

impl Network {
    /// All ranks on one host, with the slots of Bonfire's own transports.
    pub const fn one_host(world_size: WorldSize, link: Link) -> Self {
        Self::new(Hosts::one(world_size), link, link)
    }

    /// Ranks on these hosts, with the slots of Bonfire's own transports.
    pub const fn new(hosts: Hosts, intra: Link, inter: Link) -> Self {
        Self { hosts, intra, inter, slots: SLOTS }
    }
}
