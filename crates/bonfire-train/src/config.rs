//! Options of gradient synchronisation, and the kinds of devices.

use bonfire_optim::Offload;
use bonfire_plan::buckets::Caps;
use bonfire_plan::{Placement, ShardUnit, Sharding};
use serde::{Deserialize, Serialize};

use crate::compression::GradientCompression;

/// Writes `Display` and `FromStr` of an enum whose variants have names.
macro_rules! names {
    ($Type:ident, $what:literal, { $($Variant:ident => $name:literal),+ }) => {
        impl std::fmt::Display for $Type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $(Self::$Variant => $name),+
                })
            }
        }

        impl std::str::FromStr for $Type {
            type Err = bonfire_plan::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                bonfire_plan::UnknownName::find($what, text, &[$(Self::$Variant),+])
            }
        }
    };
}

/// The agreement of ranks on buffers: tensors that a forward pass changes without a gradient, such as the running
/// statistics of a batch norm, `burn::nn::BatchNorm` included.
///
/// They do so at the end of each [`Ddp::backward`](crate::Ddp::backward), as one message, so that all of them start
/// the next forward pass, and an evaluation, with the same. A rank whose losses had no samples takes part, but its
/// buffers do not count. With one rank, and in models without buffers, nothing is sent.
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
    /// reach each other's memory, gradients are not compressed, and shards are not copied. The bits are those of the route
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

names!(GradientRoute, "gradient route", { Auto => "auto", Host => "host", Device => "device", Nccl => "nccl" });

/// A kind of device to train on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// The first of CUDA, WebGPU and the CPU that this program was built with and that answers on
    /// every rank of this host.
    #[default]
    Auto,
    /// The CPU, shared by all ranks of a host.
    Cpu,
    /// An NVIDIA GPU: the one with the index of the rank on its host.
    Cuda,
    /// A GPU of any maker, through Vulkan.
    Wgpu,
}

impl DeviceKind {
    /// The Cargo feature of `bonfire` that enables it.
    pub(crate) fn feature(self) -> &'static str {
        match self {
            Self::Auto | Self::Cpu => "flex",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
        }
    }
}

names!(DeviceKind, "device kind", { Auto => "auto", Cpu => "cpu", Cuda => "cuda", Wgpu => "wgpu" });

/// The number of ranks that may share one CUDA device. Ranks always may share the CPU, and graphics adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Occupancy {
    /// One rank on each device.
    #[default]
    Exclusive,
    /// As many as needed, where there are fewer devices than ranks on a host: for tests, since they share its speed
    /// and its memory.
    Oversubscribed,
}

/// The data type of forward and backward passes. Parameters stay as they are stored.
///
/// Burn computes in the type of its inputs and converts nothing by itself: a forward pass casts its inputs with
/// [`cast`](Self::cast), and its output is cast back to f32 before the loss, for which 16 bits are too coarse. Batch
/// normalisation stays in f32: give it inputs in f32. With [`F16`](Self::F16), use a
/// [`LossScaler`](crate::LossScaler).
///
/// ```no_run
/// # use bonfire_train::{Ddp, LossScaler, TrainError};
/// # use burn::{Tensor, nn::Linear, optim::ModuleOptimizer, tensor::FloatDType};
/// # fn step(ddp: &mut Ddp<Linear>, x: Tensor<2>, y: Tensor<2>, optimizer: &mut ModuleOptimizer,
/// #     scaler: &mut LossScaler) -> Result<(), TrainError> {
/// let precision = ddp.precision();
/// let step = ddp.backward(|model| {
///     let out = model.forward(precision.cast(x)).cast(FloatDType::F32);
///     scaler.scale((out - y).powi_scalar(2).mean())
/// })?;
/// if let Some(gradients) = scaler.unscale(step.gradients)? {
///     ddp.step(optimizer, 1e-3, gradients)?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Precision {
    /// The type in which parameters are stored.
    #[default]
    F32,
    /// The range of f32, 8 significant bits. Needs no scaled loss.
    Bf16,
    /// 11 significant bits, numbers from 2^-24 to 65504.
    F16,
}

bonfire_optim::config! {
    /// Options of [`Ddp`](crate::Ddp). All ranks must agree on them; [`Ddp::new`](crate::Ddp::new) checks that they
    /// do. Start from the default and set single options:
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
    DdpConfig {
        /// A bucket takes no further gradient once it would hold more than this. Default 25 MiB: large enough to use
        /// the bandwidth of a link, small enough that several fit into a backward pass. A larger parameter has its
        /// own bucket.
        bucket_bytes_max: usize = Caps::default().bytes_max => with_bucket_bytes_max,
        /// The maximum size of the bucket that is ready first. Default 1 MiB, so that the links are busy early.
        first_bucket_bytes_max: usize = Caps::default().first_bytes_max => with_first_bucket_bytes_max,
        /// The route of gradients between the ranks.
        route: GradientRoute = GradientRoute::Auto => with_route,
        /// The compression of gradients. Default: none, they are sent as they are.
        compression: GradientCompression = GradientCompression::None => with_compression,
        /// The data type of forward and backward passes. Default: that of the parameters.
        precision: Precision = Precision::F32 => with_precision,
        /// The agreement of ranks on running statistics and other buffers.
        buffers: BufferSync = BufferSync::Broadcast => with_buffers,
        /// The distribution of parameters, gradients and the optimizer's state. Default: every rank has all of it.
        placement: Placement = Placement::replicated() => with_placement,
        /// The place of parameters outside of the device's memory, if [it has them](Offload::with_parameters).
        /// Default: none. It is a setting of each rank: ranks do not compare it, and a file does not hold it.
        #[serde(skip)]
        offload: Option<Offload> = None,
    }
}

impl DdpConfig {
    /// Sets the [`offload`](Self::offload) of parameters. The optimizer has to have the same: without it, it leaves
    /// parameters that it steps in memory. Parameters that Burn has not initialised yet are initialised one after the
    /// other. The bits are those without an offload.
    ///
    /// On the CPU they are in files, frozen ones too: the kernel writes out pages when memory is short. Those of
    /// fewer than 64 KiB stay in memory, and so do gradients and other results of a step. The placement is
    /// `replicated` or `zero3`.
    ///
    /// A GPU keeps, with [`Placement::zero3`], all uncut parameters: those of less than 1024 elements, and frozen
    /// ones. This rank's rows of the others are in host memory or files, where they are stepped, and a complete
    /// parameter is copied to the GPU whenever the model uses it, forwards and backwards. This works on a single GPU,
    /// too. `Module::devices` of such a model names the CPU, too: batches belong on
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
        assert!(error.contains("`NCCL`") && error.contains("nccl"), "{error}");
    }
}
