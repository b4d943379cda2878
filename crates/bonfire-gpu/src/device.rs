//! What a rank has on its device: streams, events, kernels, and the words through which ranks wait for each other.

pub(crate) mod kernels;
pub(crate) mod neighbours;
pub(crate) mod sync;

use std::sync::Arc;

use bonfire_cuda::{
    Context, CudaError, DeviceRegion, Event, Nvrtc, PinnedRegion, Priority, Stream, StreamOps,
};
use bonfire_kernels::launch::flags::FlagPage;

use kernels::Kernels;
use neighbours::Neighbours;

/// Streams that run beside each other, between the work before and behind them on the main stream.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) begun: Event,
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) stream: Stream,
    pub(crate) done: Event,
}

impl Lanes {
    pub(crate) fn new(context: &Context, count: u32) -> Result<Self, CudaError> {
        let lane = |_| {
            Ok(Lane { stream: Stream::new(context, Priority::High)?, done: Event::new(context)? })
        };
        let lanes: Vec<Lane> = (0..count).map(lane).collect::<Result<_, CudaError>>()?;
        use_once(context, lanes.iter().map(|lane| &lane.stream))?;
        Ok(Self { lanes, begun: Event::new(context)? })
    }
}

/// Gives new streams their first work, and waits for it. While other streams of the context wait, the first work of a
/// stream may not begin: on an H100 (driver 580.159.04) half of the groups of four threads hung in the first operation
/// on new lanes, and none whose lanes had been used before.
fn use_once<'a>(
    context: &Context,
    streams: impl IntoIterator<Item = &'a Stream>,
) -> Result<(), CudaError> {
    let word = DeviceRegion::allocate(context, size_of::<u32>())?.span();
    for stream in streams {
        // Where streams write no words, the set-up finds it out and takes the way through the host.
        if StreamOps::new().write(&word, 1).queue(stream).is_err() {
            stream.fill(&word, 0)?;
        }
        stream.synchronize()?;
    }
    Ok(())
}

pub(crate) struct Local {
    pub(crate) stream: Stream,
    pub(crate) control: Stream,
    pub(crate) done: Event,
    pub(crate) page_copy: Arc<PinnedRegion>,
    pub(crate) copied: Event,
    pub(crate) marks: Arc<PinnedRegion>,
    pub(crate) kernels: Kernels,
}

impl Local {
    pub(crate) fn new(context: &Context, neighbours: &Neighbours) -> Result<Self, CudaError> {
        let stream = Stream::new(context, Priority::High)?;
        // It has work in a failure only, when all other streams may wait.
        let control = Stream::new(context, Priority::High)?;
        use_once(context, [&stream, &control])?;
        Ok(Self {
            stream,
            control,
            done: Event::new(context)?,
            page_copy: PinnedRegion::allocate(context, FlagPage::BYTES)?,
            copied: Event::new(context)?,
            marks: PinnedRegion::allocate(context, FlagPage::MARKS_BYTES)?,
            kernels: Kernels::new(context, Nvrtc::load()?, neighbours),
        })
    }
}
