//! Groups of ranks that communicate: threads of one process, processes of one host, or hosts.
//!
//! A [`ProcessGroup`] runs the schedules of `bonfire-plan` over links of shared memory or sockets.
//! Every rank sees the same bits; every wait has a deadline; the first failure anywhere is the error
//! of every rank and names the culprit. This crate knows nothing of tensors.
//!
//! ```
//! use bonfire_collective::{GroupOptions, ProcessGroup, ReduceOp, WorldSize};
//!
//! let groups = ProcessGroup::local(WorldSize::new(2)?, GroupOptions::default())?;
//! std::thread::scope(|scope| {
//!     for group in groups {
//!         scope.spawn(move || {
//!             let mut data = [group.rank().get() as f32; 3];
//!             group.all_reduce(&mut data, ReduceOp::Mean).unwrap();
//!             assert_eq!(data, [0.5; 3]);
//!         });
//!     }
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod accounts;
mod blocks;
mod buffer;
mod builds;
mod call_sites;
mod checksums;
mod connections;
mod control;
mod element;
mod error;
mod executor;
mod flight;
mod greeting;
mod group;
mod handshake;
mod inspection;
mod lobby;
mod local_reduce;
#[doc(hidden)]
pub mod measure;
mod options;
mod overrides;
mod patience;
mod place;
mod platform;
mod poison;
mod recorder;
mod rendezvous;
mod select;
mod settings;
mod store;
mod stragglers;
mod stream;
mod tls;
mod token;
mod topology;
mod transport;
mod work;

pub use accounts::GroupReport;
pub use blocks::Blocks;
pub use bonfire_plan::{Algorithm, DType, PlanError, Rank, ReduceOp, WorldSize, shard_range};
pub use bonfire_sys::process::{Interrupt, InterruptWatch};
pub use buffer::GroupBuffer;
pub use builds::{Build, Builds, UnknownBuilds};
pub use call_sites::{CallSites, UnknownCallSites};
pub use checksums::Checksums;
pub use connections::{Connections, UnknownConnections};
pub use element::Element;
pub use error::{CollectiveError, Corruption, Mismatch, Timeout};
pub use flight::{FLIGHT_DIR_VARIABLE, FlightOperation, FlightRecord, read_flight_records};
pub use group::{Agreement, ProcessGroup, Proposal};
pub use inspection::{
    InspectError, JobMember, RecordOnSignal, RunningJob, SilentProcess, running_jobs,
};
pub use options::{FoldOrder, GroupOptions};
pub use overrides::{AlgorithmOverrides, OverrideError};
pub use place::{RankEnv, StoreHost};
pub use recorder::{PhaseProgress, Progress, StepProgress};
pub use rendezvous::{ConnectError, RESTARTS_KEY, Reach};
pub use settings::{EnvSettings, SettingError};
pub use store::{
    KEY_BYTES_MAX, MemoryStore, Store, StoreError, TcpStore, TcpStoreServer, VALUE_BYTES_MAX,
};
pub use stragglers::{Straggler, StragglerReport};
pub use tls::Tls;
pub use token::{JobToken, TokenError};
pub use topology::Topology;
pub use transport::{HostId, Traffic, TransportKind, UnknownTransport};
pub use work::Work;
