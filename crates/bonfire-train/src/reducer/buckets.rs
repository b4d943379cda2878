//! Buckets of gradients, by their route.

use crate::TrainError;
use crate::compression::Compressor;
use crate::reducer::bucket::Bucket;
use crate::reducer::collect::{Gradient, Site};
use crate::reducer::device_route::{Chosen, DeviceBuckets};
use crate::values::Scale;

/// The buckets of a route, once they are assigned.
#[derive(Debug)]
pub(super) enum Buckets {
    Host(Vec<Bucket>),
    Device(DeviceBuckets),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    pub(super) bucket: usize,
    pub(super) slot: usize,
}

/// The message where a gradient is in other memory than its bucket.
const ELSEWHERE: &str = "gradients come from where they are wanted";

impl Buckets {
    pub(super) fn new(way: Chosen) -> Self {
        match way {
            Chosen::Host => Self::Host(Vec::new()),
            Chosen::Device(engine) => Self::Device(DeviceBuckets::new(engine)),
        }
    }

    pub(super) fn site(&self) -> Site {
        match self {
            Self::Host(_) => Site::Host,
            Self::Device(_) => Site::Device,
        }
    }

    /// The buckets in host memory, which need work of the host while they are sent.
    pub(super) fn on_host(&mut self) -> &mut [Bucket] {
        match self {
            Self::Host(buckets) => buckets,
            Self::Device(_) => &mut [],
        }
    }

    pub(super) fn reopen(&mut self) -> Result<(), TrainError> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Device(buckets) => buckets.reopen(),
        }
    }

    pub(super) fn wait(&mut self) -> Result<(), TrainError> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Device(buckets) => buckets.wait(),
        }
    }

    pub(super) fn accumulate(&mut self, home: Home, gradient: Gradient<'_>, scale: Scale) {
        let Home { bucket, slot } = home;
        match (self, gradient) {
            (Self::Host(buckets), Gradient::Host(gradient)) => {
                buckets[bucket].accumulate(slot, gradient, scale);
            }
            (Self::Device(buckets), Gradient::Device(gradient)) => {
                buckets.accumulate(bucket, slot, gradient);
            }
            (_, gradient) => unreachable!("{ELSEWHERE}: {gradient:?}"),
        }
    }

    pub(super) fn keep(&mut self, scale: Scale) -> Result<(), TrainError> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Device(buckets) => buckets.keep(scale),
        }
    }

    /// Takes the gradient of a parameter, or marks it as missing. Returns true if there is one, from this or an
    /// earlier micro-batch.
    pub(super) fn put(&mut self, home: Home, gradient: Option<Gradient<'_>>, scale: Scale) -> bool {
        let Home { bucket, slot } = home;
        match (self, gradient) {
            (Self::Host(buckets), Some(Gradient::Host(gradient))) => {
                buckets[bucket].put(slot, gradient, scale);
                true
            }
            (Self::Host(buckets), None) => buckets[bucket].put_none(slot),
            (Self::Device(buckets), Some(Gradient::Device(gradient))) => {
                buckets.put(bucket, slot, Some(gradient))
            }
            (Self::Device(buckets), None) => buckets.put(bucket, slot, None),
            (_, gradient) => unreachable!("{ELSEWHERE}: {gradient:?}"),
        }
    }

    pub(super) fn flagged(&mut self) -> Option<&mut Bucket> {
        let last = self.on_host().last_mut();
        last.filter(|bucket| bucket.has_flags())
    }

    /// Sends a bucket whose gradients are multiplied by a factor, with flags if it has some.
    pub(super) fn send(
        &mut self,
        index: usize,
        scale: Scale,
        factor: f64,
        flags: &[bool],
        compressor: &mut Compressor,
    ) -> Result<(), TrainError> {
        match self {
            Self::Host(buckets) => {
                buckets[index].send(factor, flags, compressor);
                Ok(())
            }
            Self::Device(buckets) => buckets.send(index, scale, factor),
        }
    }

    pub(super) fn end_accumulation(&mut self) {
        match self {
            Self::Host(buckets) => buckets.iter_mut().for_each(Bucket::end_accumulation),
            Self::Device(buckets) => buckets.end_accumulation(),
        }
    }
}
