//! Options of gradient synchronisation.

pub(crate) mod device;
pub(crate) mod precision;

use std::fmt;
use std::str::FromStr;

use bonfire_optim::Offload;
use bonfire_plan::buckets::Caps;
use bonfire_plan::{Placement, ShardUnit, Sharding, UnknownName};
use serde::{Deserialize, Serialize};

use crate::compression::GradientCompression;
use precision::Precision;

/// The agreement of ranks on buffers: tensors that a forward pass changes without a gradient, such as the running
/// statistics of a batch norm, `burn::nn::BatchNorm` included.
///
/// They do so at the end of each [`Ddp::backward`](crate::Ddp::backward), as one message, so that all
/// of them start the next forward pass, and an evaluation, with the same. A rank whose losses had no
/// samples takes part, but its buffers do not count. With one rank, and in models without buffers,
/// nothing is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum BufferSync {
    /// All ranks get those of the first rank that had samples, bit for bit: those of rank 0, as with PyTorch's
    /// `broadcast_buffers`, unless it has run out of data.
    #[default]
    Broadcast,
    /// All ranks get their mean over the ranks, computed in f64.
    Mean,
    /// Every rank keeps its own buffers.
    Local,
}

/// The route of gradients between the ranks.
///
/// A route has a name, by which a command line can select it.
///
/// ```
/// # mod bonfire { pub mod ddp { pub use bonfire_train::*; } }
/// use bonfire::ddp::GradientRoute;
///
/// assert_eq!("nccl".parse(), Ok(GradientRoute::Nccl));
/// assert_eq!(GradientRoute::Auto.to_string(), "auto");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GradientRoute {
    /// From device to device where that is possible: the models of all ranks are on CUDA devices of one host that
    /// reach each other's memory, and gradients are not compressed. The bits are those of the route
    /// through the host. Where CUDA devices are on several hosts, as [`Nccl`](Self::Nccl) if NCCL is found on all of
    /// them, in the order of additions that it has. Through host memory otherwise. Rank 0 logs which, and why; it
    /// warns where gradients of several hosts are staged.
    #[default]
    Auto,
    /// Through host memory, on all devices.
    Host,
    /// From device to device, or not at all: [`Ddp::new`](crate::Ddp::new) fails where that is impossible.
    Device,
    /// From device to device over NVIDIA's NCCL, or not at all. For clusters whose links NCCL knows and Bonfire does
    /// not, such as InfiniBand: ranks may be on several hosts, each on its own CUDA device. It needs NCCL on every
    /// host, and gradients that are not compressed.
    ///
    /// NCCL adds in its own order. All ranks have the same bits, but with three ranks or more not those of the other
    /// routes, and perhaps others with another version or other links: on one host [`Auto`](Self::Auto) never takes
    /// it. Sums of 16-bit gradients may be rounded to 16 bits after each addition, elsewhere once.
    Nccl,
}

impl fmt::Display for GradientRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Host => "host",
            Self::Device => "device",
            Self::Nccl => "nccl",
        })
    }
}

impl FromStr for GradientRoute {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        UnknownName::find(
            "gradient route",
            text,
            &[Self::Auto, Self::Host, Self::Device, Self::Nccl],
        )
    }
}

/// Options of [`Ddp`](crate::Ddp). All ranks must agree on them; [`Ddp::new`](crate::Ddp::new) checks that they do.
/// Start from the default and set single options:
///
/// ```
/// # mod bonfire { pub use bonfire_train::DdpConfig; pub mod ddp { pub use bonfire_train::*; } }
/// use bonfire::DdpConfig;
/// use bonfire::ddp::Precision;
///
/// let config = DdpConfig::default().with_precision(Precision::Bf16);
/// // A text with some of the options has the defaults of the others.
/// let read: DdpConfig = serde_json::from_str(r#"{ "precision": "Bf16" }"#)?;
/// assert_eq!(read, config);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct DdpConfig {
    /// A bucket takes no further gradient once it would hold more than this. Default 25 MiB: large enough to use the
    /// bandwidth of a link, small enough that several fit into a backward pass. A larger parameter has its own bucket.
    pub bucket_bytes_max: usize,
    /// The maximum size of the bucket that is ready first. Default 1 MiB, so that the links are busy early.
    pub first_bucket_bytes_max: usize,
    /// The route of gradients between the ranks.
    pub route: GradientRoute,
    /// The compression of gradients. Default: none, they are sent as they are.
    pub compression: GradientCompression,
    /// The data type of forward and backward passes. Default: that of the parameters.
    pub precision: Precision,
    /// The agreement of ranks on running statistics and other buffers.
    pub buffers: BufferSync,
    /// The distribution of parameters, gradients and the optimizer's state. Default: every rank has all of it.
    pub placement: Placement,
    /// The place of parameters outside of the device's memory, if [it has them](Offload::with_parameters). Default:
    /// none. It is a setting of each rank: ranks do not compare it, and a file does not hold it.
    #[serde(skip)]
    pub offload: Option<Offload>,
}

impl DdpConfig {
    /// Sets [`bucket_bytes_max`](Self::bucket_bytes_max), a size in bytes.
    #[must_use]
    pub fn with_bucket_bytes_max(self, bucket_bytes_max: usize) -> Self {
        Self {
            bucket_bytes_max,
            ..self
        }
    }

    /// Sets [`first_bucket_bytes_max`](Self::first_bucket_bytes_max), a size in bytes.
    #[must_use]
    pub fn with_first_bucket_bytes_max(self, first_bucket_bytes_max: usize) -> Self {
        Self {
            first_bucket_bytes_max,
            ..self
        }
    }

    /// Sets the [`route`](Self::route) of gradients.
    #[must_use]
    pub fn with_route(self, route: GradientRoute) -> Self {
        Self { route, ..self }
    }

    /// Sets the [`compression`](Self::compression) of gradients.
    #[must_use]
    pub fn with_compression(self, compression: GradientCompression) -> Self {
        Self {
            compression,
            ..self
        }
    }

    /// Sets the [`precision`](Self::precision) of passes.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Sets the agreement on [`buffers`](Self::buffers).
    #[must_use]
    pub fn with_buffers(self, buffers: BufferSync) -> Self {
        Self { buffers, ..self }
    }

    /// Sets the [`placement`](Self::placement) of parameters and state.
    #[must_use]
    pub fn with_placement(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    /// Sets the [`offload`](Self::offload) of parameters. The optimizer has to have the same: without it, it leaves
    /// parameters that it steps in memory. Parameters that Burn has not initialised yet are initialised one after the
    /// other. The bits are those without an offload.
    ///
    /// On the CPU they are in files, frozen ones too: the kernel writes out pages when memory is short. Those of fewer
    /// than 64 KiB stay in memory, and so do gradients and other results of a step. The placement is `replicated` or
    /// `zero3`.
    ///
    /// A GPU keeps, with [`Placement::zero3`], all uncut parameters: those of less than 1024 elements, and frozen ones.
    /// This rank's rows of the others are in host memory or files, where they are stepped, and a complete parameter is
    /// copied to the GPU whenever the model uses it, forwards and backwards. This works on a single GPU, too.
    /// `Module::devices` of such a model names the CPU, too: batches belong on
    /// [`World::device`](crate::World::device).
    ///
    /// ```no_run
    /// # use bonfire_optim::{AdamWConfig, Offload};
    /// # use bonfire_train::{Ddp, DdpConfig, Placement, TrainError, World};
    /// # use burn::{nn::Linear, optim::ModuleOptimizer};
    /// # fn train(model: Linear, world: World) -> Result<(), TrainError> {
    /// let offload = Offload::to_files(std::env::temp_dir())?.with_parameters();
    /// let config = DdpConfig::default()
    ///     .with_placement(Placement::zero3())
    ///     .with_offload(offload.clone());
    /// let ddp = Ddp::with_config(model, &world, config)?;
    /// let optimizer = ModuleOptimizer::from(AdamWConfig::new().build().with_offload(offload));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_offload(self, offload: impl Into<Option<Offload>>) -> Self {
        let offload = offload.into();
        Self { offload, ..self }
    }

    /// Returns the maximum sizes of buckets, in bytes.
    pub fn caps(&self) -> Caps {
        Caps {
            first_bytes_max: self.first_bucket_bytes_max.min(self.bucket_bytes_max),
            bytes_max: self.bucket_bytes_max,
        }
    }

    /// The reason why parameters cannot be sharded, if these options forbid it.
    pub(crate) fn forbids_shards(&self) -> Option<&'static str> {
        if !self.placement.is_sharded() {
            None
        } else if self.compression != GradientCompression::None {
            Some("gradients of rows are not compressed; choose GradientCompression::None")
        } else if self.placement.parameters == Sharding::Sharded
            && self.placement.unit == ShardUnit::Parameters
        {
            Some(
                "parameters are sharded by rows only; choose Placement::zero2().of_whole_parameters()",
            )
        } else {
            None
        }
    }
}

impl Default for DdpConfig {
    fn default() -> Self {
        let Caps {
            first_bytes_max,
            bytes_max,
        } = Caps::default();
        Self {
            bucket_bytes_max: bytes_max,
            first_bucket_bytes_max: first_bytes_max,
            route: GradientRoute::Auto,
            compression: GradientCompression::None,
            precision: Precision::F32,
            buffers: BufferSync::Broadcast,
            placement: Placement::replicated(),
            offload: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_read_by_the_name_that_it_shows() {
        for name in ["auto", "host", "device", "nccl"] {
            let route: GradientRoute = name.parse().unwrap();
            assert_eq!(route.to_string(), name);
        }
        assert_eq!("auto".parse(), Ok(GradientRoute::default()));
        let error = "NCCL".parse::<GradientRoute>().unwrap_err().to_string();
        assert!(
            error.contains("`NCCL`") && error.contains("nccl"),
            "{error}"
        );
    }
}
