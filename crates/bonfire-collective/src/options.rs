//! The options with which a group is set up.

pub(crate) mod builds;
pub(crate) mod call_sites;
pub(crate) mod overrides;
pub(crate) mod place;
pub(crate) mod settings;
pub(crate) mod stream_threads;
pub(crate) mod transport_kind;

use std::path::PathBuf;
use std::time::Duration;

use bonfire_plan::{Algorithm, Collective};

use crate::options::builds::Builds;
use crate::options::call_sites::CallSites;
use crate::options::overrides::AlgorithmOverrides;
use crate::options::settings::EnvSettings;
use crate::options::stream_threads::StreamThreads;
use crate::options::transport_kind::TransportKind;
use bonfire_connect::connections::{Checksums, Tls};

/// The variable that names the folder for flight records, where the program's options do not.
pub const FLIGHT_DIR_VARIABLE: &str = "BONFIRE_FLIGHT_DIR";
pub(crate) const STREAMS_MAX: usize = 16;

/// An option is out of range.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// The payload of a frame is too small or too large.
    #[error("chunk_bytes must be {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}, got {found}")]
    ChunkBytes {
        /// The value of [`GroupOptions::chunk_bytes`], in bytes.
        found: usize,
    },
    /// A link has no connection, or more than it can have.
    #[error("streams_per_link must be 1 to {STREAMS_MAX}, got {found}")]
    Streams {
        /// The number of connections that was asked for each link.
        found: u32,
    },
}

/// In which orders the ranks' values may be folded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FoldOrder {
    /// Over ranks 0 to n-1, element by element, rounded once: the bits of a result depend on nothing but the ranks'
    /// values. Sums of floats then use the algorithms that keep to that; whatever rounds nothing uses any algorithm.
    #[default]
    Canonical,
    /// In whatever fixed order is fastest by the measure of the links: the same bits on all ranks,
    /// but perhaps others with another length, chunk size or number of hosts, or in another run,
    /// whose links measure otherwise. Ask for an algorithm to have the same bits in every run.
    Any,
}

/// Options of a process group. Unless an option says otherwise, all ranks must agree on it; set-up
/// checks that they do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupOptions {
    /// How long one operation may take before it fails on every rank. Default 600 s, as in PyTorch; for
    /// single ones, [`ProcessGroup::with_timeout`](crate::ProcessGroup::with_timeout). After 60 s a warning names
    /// the ranks that are missing. It may differ between ranks: the shortest one ends the operation for all.
    pub timeout: Duration,
    /// How long ranks may take to meet, and each operation of the first steps of a training on a device
    /// whose kernels are compiled then. Default 600 s. It may differ between ranks.
    pub startup_timeout: Duration,
    /// The algorithm for the collectives that it implements; `None` lets Bonfire choose.
    pub algorithm: Option<Algorithm>,
    /// Algorithms that go before `algorithm` and every choice: what the user who starts the program
    /// asks for. [`ProcessGroup::connect`](crate::ProcessGroup::connect) and
    /// [`ProcessGroup::local`](crate::ProcessGroup::local) put what `BONFIRE_ALGORITHM` says here, if
    /// it says anything.
    pub overrides: AlgorithmOverrides,
    /// The orders of additions among which Bonfire may choose an algorithm. An algorithm that is
    /// asked for is used whatever its order.
    pub order: FoldOrder,
    /// The only transport to use between processes; `None` takes the best that connects each pair.
    pub transport: Option<TransportKind>,
    /// Payload of one frame, in bytes. Default 256 KiB: a frame and what it is reduced into stay in
    /// a second-level cache.
    pub chunk_bytes: usize,
    /// Connections of each link over TCP, 1 to 16, over which payloads of 32 KiB and more are divided. What
    /// `BONFIRE_STREAMS` says goes before it. Default 1. More help where something on the way limits each connection
    /// below what the interface can do, as clouds do and networks with several equal paths; the book has figures.
    pub streams_per_link: u32,
    /// Which threads call the kernel for those connections. What `BONFIRE_STREAM_THREADS` says, `auto`, `on` or `off`, goes
    /// before it. Default [`StreamThreads::Auto`]. It may differ between ranks.
    pub stream_threads: StreamThreads,
    /// Which connections are encrypted. What `BONFIRE_TLS` says, as `--tls` does for the launcher, goes
    /// before it. Default [`Tls::Off`].
    pub tls: Tls,
    /// Which links check that their frames arrive as they were sent. What `BONFIRE_CHECKSUMS` says, `off`,
    /// `hosts` or `all`, goes before it. Default [`Checksums::Hosts`].
    pub checksums: Checksums,
    /// Whether ranks must call an operation from the same line. What `BONFIRE_CALL_SITES` says, `named`
    /// or `compared`, goes before it. Default [`CallSites::Named`].
    pub call_sites: CallSites,
    /// Whether ranks must run the same build of their program. What `BONFIRE_BUILDS` says, `same` or `any`,
    /// goes before it. Default [`Builds::Same`].
    pub builds: Builds,
    /// The folder in which each rank leaves its flight record when the group fails, for `bonfire inspect`. Without
    /// one, `BONFIRE_FLIGHT_DIR` names it; without that, none is left. It may differ between ranks.
    pub flight_dir: Option<PathBuf>,
    /// How long a rank may send no heartbeat before it has failed for all others. Default 15 s; with
    /// `None` this rank sends none and expects none. Ranks send one every second, whatever their program does, so only a process that
    /// does not run at all misses them: it is stopped or frozen, or its host is gone. A process that a
    /// debugger holds on the same host is waited for. It may differ between ranks.
    pub heartbeat_timeout: Option<Duration>,
    /// Whether SIGUSR1 makes a process say what all ranks do. It may differ between ranks.
    pub record_on_signal: RecordOnSignal,
}

/// Methods that change one option.
macro_rules! with {
    ($($with:ident($option:ident: $type:ty);)+) => {
        impl GroupOptions {$(
            #[doc = concat!("The same with another [`", stringify!($option), "`](Self::", stringify!($option), ").")]
            #[must_use]
            pub fn $with(mut self, $option: $type) -> Self {
                self.$option = $option;
                self
            }
        )+}
    };
}

with! {
    with_timeout(timeout: Duration);
    with_startup_timeout(startup_timeout: Duration);
    with_algorithm(algorithm: Option<Algorithm>);
    with_overrides(overrides: AlgorithmOverrides);
    with_order(order: FoldOrder);
    with_transport(transport: Option<TransportKind>);
    with_chunk_bytes(chunk_bytes: usize);
    with_streams_per_link(streams_per_link: u32);
    with_stream_threads(stream_threads: StreamThreads);
    with_tls(tls: Tls);
    with_checksums(checksums: Checksums);
    with_call_sites(call_sites: CallSites);
    with_builds(builds: Builds);
    with_flight_dir(flight_dir: Option<PathBuf>);
    with_heartbeat_timeout(heartbeat_timeout: Option<Duration>);
    with_record_on_signal(record_on_signal: RecordOnSignal);
}

/// Whether SIGUSR1 makes a process say what all ranks of its groups do, and write down what its own did.
///
/// The signal belongs to the program: one that handles or ignores it before the group is formed keeps it
/// whatever is chosen here, and one that does so later takes it over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RecordOnSignal {
    /// It does where Bonfire's launcher started the process.
    #[default]
    Launched,
    /// It does in every process.
    Always,
    /// It does not: the signal is left alone.
    Never,
}

/// Longer than machines pause for a reason of their own (a move to another host, a snapshot, swapping), and what a
/// silent host is given, too; much less than an operation's timeout, whose error knows less of why.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(15);
const CHUNK_BYTES_MIN: usize = 64;
const CHUNK_BYTES_MAX: usize = 64 << 20;

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(600),
            startup_timeout: Duration::from_secs(600),
            algorithm: None,
            overrides: AlgorithmOverrides::default(),
            order: FoldOrder::default(),
            transport: None,
            chunk_bytes: 256 << 10,
            streams_per_link: 1,
            stream_threads: StreamThreads::default(),
            tls: Tls::Off,
            checksums: Checksums::Hosts,
            call_sites: CallSites::default(),
            builds: Builds::default(),
            flight_dir: None,
            heartbeat_timeout: Some(HEARTBEAT_TIMEOUT),
            record_on_signal: RecordOnSignal::default(),
        }
    }
}

impl GroupOptions {
    /// These, except for what the environment says.
    pub(crate) fn with(self, settings: &EnvSettings) -> Self {
        Self {
            overrides: if settings.overrides.is_empty() {
                self.overrides
            } else {
                settings.overrides.clone()
            },
            streams_per_link: settings.streams_per_link.unwrap_or(self.streams_per_link),
            stream_threads: settings.stream_threads.unwrap_or(self.stream_threads),
            tls: settings.tls.unwrap_or(self.tls),
            checksums: settings.checksums.unwrap_or(self.checksums),
            call_sites: settings.call_sites.unwrap_or(self.call_sites),
            builds: settings.builds.unwrap_or(self.builds),
            ..self
        }
    }

    pub(crate) fn flight_folder(&self) -> Option<PathBuf> {
        let named = || std::env::var_os(FLIGHT_DIR_VARIABLE).filter(|name| !name.is_empty());
        self.flight_dir.clone().or_else(|| named().map(PathBuf::from))
    }

    /// The algorithm that somebody asked for, if `collective` has it.
    pub(crate) fn forced(&self, collective: Collective) -> Option<Algorithm> {
        let in_code = self
            .algorithm
            .filter(|algorithm| Algorithm::candidates(collective).contains(algorithm));
        self.overrides.of(collective).or(in_code)
    }

    pub(crate) fn streams_checked(&self) -> Result<u8, OptionError> {
        let found = self.streams_per_link;
        u8::try_from(found)
            .ok()
            .filter(|streams| (1..=STREAMS_MAX).contains(&usize::from(*streams)))
            .ok_or(OptionError::Streams { found })
    }

    /// `chunk_bytes` rounded up to whole elements of every type, if it is in range.
    pub(crate) fn chunk_bytes_checked(&self) -> Result<usize, OptionError> {
        let range = CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX;
        range
            .contains(&self.chunk_bytes)
            .then(|| self.chunk_bytes.next_multiple_of(64))
            .ok_or(OptionError::ChunkBytes { found: self.chunk_bytes })
    }
}
