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
mod connections;
mod control;
mod element;
mod error;
mod executor;
mod failure;
mod flight;
mod greeting;
mod group;
mod handshake;
mod inspection;
mod lobby;
mod local_reduce;
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
mod transport_kind;
mod work;

pub use accounts::GroupReport;
pub use blocks::Blocks;
pub use bonfire_plan::{Algorithm, DType, PlanError, Rank, ReduceOp, WorldSize, shard_range};
pub use bonfire_sys::process::{Interrupt, InterruptWatch};
pub use buffer::GroupBuffer;
pub use builds::{Build, Builds, UnknownBuilds};
pub use call_sites::{CallSites, UnknownCallSites};
pub use connections::{Checksums, Connections, Tls, UnknownConnections};
pub use element::Element;
pub use error::CollectiveError;
pub use failure::{Corruption, Mismatch, Timeout};
pub use flight::{FlightOperation, FlightRecord, read_flight_records};
pub use group::{Agreement, ProcessGroup, Proposal};
pub use inspection::{InspectError, JobMember, RunningJob, SilentProcess, running_jobs};
pub use options::{FLIGHT_DIR_VARIABLE, FoldOrder, GroupOptions, OptionError, RecordOnSignal};
pub use overrides::{AlgorithmOverrides, OverrideError};
pub use place::{HostId, RankEnv, StoreHost};
pub use recorder::{PhaseProgress, Progress, StepProgress};
pub use rendezvous::{ConnectError, RESTARTS_KEY, Reach};
pub use settings::{EnvSettings, SettingError};
pub use store::{
    KEY_BYTES_MAX, MemoryStore, Store, StoreError, TcpStore, TcpStoreServer, VALUE_BYTES_MAX,
};
pub use stragglers::{Straggler, StragglerReport};
pub use token::{JobToken, TokenError};
pub use topology::Topology;
pub use transport::Traffic;
pub use transport_kind::{TransportKind, UnknownTransport};
pub use work::Work;
