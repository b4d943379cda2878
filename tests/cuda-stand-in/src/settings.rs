//! Settings from variables of the environment, read once.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `no-peer`: no device reaches the memory of another.
    NoPeer,
    /// `no-ipc`: no memory is given to other processes.
    NoIpc,
    /// `no-ipc-open`: memory of other processes is not opened.
    NoIpcOpen,
    /// `no-descriptors`: memory is given to other processes by handles of CUDA IPC only.
    NoDescriptors,
    /// `corrupt-peer`: one bit of each copy between devices or processes arrives wrong.
    CorruptPeer,
    /// `far-peers-slow`: copies between devices whose numbers are not next to each other, counted round, take
    /// a millisecond for each 64 KiB.
    FarPeersSlow,
    /// `no-host-lock`: no pages of the host are locked.
    NoHostLock,
    /// `load-waits`: code is loaded when the device is idle and not before, as drivers may do.
    LoadWaits,
    /// `no-stream-ops`: streams neither write words nor wait for them.
    NoStreamOps,
    /// `lost-words`: words that streams write to memory of other devices or processes never arrive.
    LostWords,
    /// `lost-kernel-words`: words that kernels write for others never arrive.
    LostKernelWords,
    /// `nccl-link-breaks`: a fifth of a second into its first operation NCCL loses the other ranks.
    NcclLinkBreaks,
    /// `kernel-time-limit`: the driver ends kernels of the first device that take long. It says so; none is
    /// ended.
    KernelTimeLimit,
    /// `no-headers`: what NVRTC compiles finds no headers of CUDA.
    NoHeaders,
}

impl Fault {
    const NAMES: [(&str, Self); 14] = [
        ("no-peer", Self::NoPeer),
        ("no-ipc", Self::NoIpc),
        ("no-ipc-open", Self::NoIpcOpen),
        ("no-descriptors", Self::NoDescriptors),
        ("corrupt-peer", Self::CorruptPeer),
        ("far-peers-slow", Self::FarPeersSlow),
        ("no-host-lock", Self::NoHostLock),
        ("load-waits", Self::LoadWaits),
        ("no-stream-ops", Self::NoStreamOps),
        ("lost-words", Self::LostWords),
        ("lost-kernel-words", Self::LostKernelWords),
        ("nccl-link-breaks", Self::NcclLinkBreaks),
        ("kernel-time-limit", Self::KernelTimeLimit),
        ("no-headers", Self::NoHeaders),
    ];

    fn parse(name: &str) -> Self {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        let known = Self::NAMES.map(|(known, _)| known).join(", ");
        found.unwrap_or_else(|| panic!("CUDA_STAND_IN_FAULTS: no fault {name}, only {known}")).1
    }
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) memory_bytes: usize,
    /// The major and the minor number.
    pub(crate) capability: (i32, i32),
    faults: Vec<Fault>,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) calls: Option<PathBuf>,
    pub(crate) compiler: OsString,
}

impl Settings {
    pub(crate) fn get() -> &'static Self {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(Self::read)
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    fn read() -> Self {
        let faults = text("CUDA_STAND_IN_FAULTS").unwrap_or_default();
        let capability = text("CUDA_STAND_IN_CAPABILITY").unwrap_or_else(|| "9.0".to_owned());
        let capability = capability
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        Self {
            devices: number("CUDA_STAND_IN_DEVICES", 1),
            memory_bytes: number("CUDA_STAND_IN_MEMORY_MIB", 8192) << 20,
            capability: capability.expect("CUDA_STAND_IN_CAPABILITY is two numbers, as 9.0"),
            faults: faults.split(',').filter(|name| !name.is_empty()).map(Fault::parse).collect(),
            cache: env::var_os("CUDA_STAND_IN_CACHE").map(PathBuf::from),
            calls: env::var_os("CUDA_STAND_IN_CALLS").map(PathBuf::from),
            compiler: env::var_os("CXX").unwrap_or_else(|| "c++".into()),
        }
    }
}

fn text(name: &str) -> Option<String> {
    env::var(name).ok()
}

fn number(name: &str, default: usize) -> usize {
    let Some(text) = text(name) else {
        return default;
    };
    let number = text.parse().ok();
    number.unwrap_or_else(|| panic!("{name} is a number, not {text}"))
}
