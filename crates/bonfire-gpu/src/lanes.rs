//! Streams that run beside each other, between the work before and behind them on the main stream.

use bonfire_cuda::{Context, CudaError, Event, Priority, Stream};

/// Some streams.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) lanes: Vec<Lane>,
    pub(super) begun: Event,
}

/// One stream, and the event of its end.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) stream: Stream,
    pub(super) done: Event,
}

impl Lanes {
    pub(super) fn new(context: &Context, count: u32) -> Result<Self, CudaError> {
        let lane = |_| {
            Ok(Lane {
                stream: Stream::new(context, Priority::High)?,
                done: Event::new(context)?,
            })
        };
        let lanes: Result<Vec<Lane>, CudaError> = (0..count).map(lane).collect();
        Ok(Self {
            lanes: lanes?,
            begun: Event::new(context)?,
        })
    }
}
