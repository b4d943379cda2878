//! Groups of ranks that communicate: threads of one process, processes of one host, or hosts.
//!
//! A [`ProcessGroup`] runs the schedules of `bonfire-plan` over links of shared memory or sockets.
//! Every rank sees the same bits; every wait has a deadline; the first failure anywhere is the error
//! of every rank and names the culprit. This crate knows nothing of tensors.
//!
//! ```
//! # mod bonfire { pub mod collective { pub use bonfire_collective::*; } }
//! use bonfire::collective::{GroupOptions, ProcessGroup, ReduceOp, WorldSize};
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

#![deny(unsafe_code)]

mod exec;
mod group;
mod health;
mod options;
mod rendezvous;
mod transport;

pub use bonfire_connect::connections::{Checksums, Connections, Tls};
pub use bonfire_connect::secure::token::{JobToken, TokenError};
pub use bonfire_connect::store::{
    Clients, KEY_BYTES_MAX, LongWait, MemoryStore, Store, StoreError, TcpStore, TcpStoreServer,
    VALUE_BYTES_MAX,
};
pub use bonfire_plan::{Algorithm, DType, PlanError, Rank, ReduceOp, WorldSize, shard_range};
#[doc(hidden)]
pub use bonfire_sys::lock::Mutex;
pub use bonfire_sys::process::{Interrupt, InterruptWatch, Resident, release_freed_memory};
pub use exec::element::Element;
pub use group::blocks::Blocks;
pub use group::buffer::GroupBuffer;
pub use group::work::Work;
pub use group::{Agreement, Disagreement, Inside, ProcessGroup, Proposal};
pub use health::failure::{Corruption, Mismatch, Timeout, panic_message};
pub use health::flight::{FlightRecord, read_flight_records};
pub use health::inspection::{InspectError, JobMember, RunningJob, SilentProcess, running_jobs};
pub use health::recorder::{FlightOperation, PhaseProgress, Progress, StepProgress};
pub use health::reports::GroupReport;
pub use health::stragglers::{Straggler, StragglerReport};
pub use options::builds::{Build, Builds};
pub use options::call_sites::CallSites;
pub use options::overrides::{AlgorithmOverrides, OverrideError};
pub use options::place::{HostId, RankEnv, StoreHost};
pub use options::settings::{EnvSettings, SettingError};
pub use options::stream_threads::StreamThreads;
pub use options::transport_kind::TransportKind;
pub use options::{FLIGHT_DIR_VARIABLE, FoldOrder, GroupOptions, OptionError, RecordOnSignal};
pub use rendezvous::group_error::CollectiveError;
pub use rendezvous::{ConnectError, RESTARTS_KEY, Reach};

pub use transport::Traffic;
pub use transport::topology::Topology;
