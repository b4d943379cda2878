//! The sections, keys and defaults.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::model::Arch;
use crate::networks::resnet::Depth;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub struct Config {
    pub model: ModelSection,
    pub train: TrainSection,
    pub test: TestSection,
    pub optim: OptimSection,
    /// Read so that Distribuuuu's files can be used unchanged; there is no cuDNN here.
    pub cudnn: CudnnSection,
    /// The folder of checkpoints, curves and this configuration.
    pub out_dir: PathBuf,
    /// The name of the copy of this configuration there.
    pub cfg_dest: String,
    /// Makes a run repeatable; without it, rank 0 draws one, which is in the copy.
    pub rng_seed: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub struct ModelSection {
    pub arch: Arch,
    pub num_classes: NonZeroUsize,
    /// Starts from downloaded parameters in Distribuuuu: nothing is downloaded here, see [`Self::weights`].
    pub pretrained: bool,
    /// Normalises the batches of all ranks together.
    pub syncbn: bool,
    /// A file with the parameters to begin with.
    pub weights: Option<PathBuf>,
    /// Train on random pictures instead of a data set, to measure speed.
    pub dummy_input: bool,
    /// The first layers of the network; by default its usual ones.
    pub stem: Option<StemName>,
    /// Starts the last normalisation of every block with zeros.
    pub zero_init_residual: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub struct TrainSection {
    pub batch_size: NonZeroUsize,
    /// Height and width of the pictures that the network sees.
    pub im_size: NonZeroUsize,
    /// The data set: a folder, or a tar archive.
    pub dataset: PathBuf,
    pub split: String,
    /// The storage format of the data set.
    pub format: Format,
    pub augment: Augment,
    /// Continues from the last checkpoint in [`Config::out_dir`].
    pub auto_resume: bool,
    /// Restores the optimizer's state, too.
    pub load_opt: bool,
    /// Threads of each rank that prepare batches.
    pub workers: NonZeroUsize,
    /// Read so that Distribuuuu's files can be used unchanged. It has no effect: the backend decides how a batch is
    /// copied to its device.
    pub pin_memory: bool,
    /// Steps between two lines of figures.
    pub print_freq: NonZeroUsize,
    /// A picture counts in the second accuracy if its class is among this many.
    pub topk: NonZeroUsize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub struct TestSection {
    pub batch_size: NonZeroUsize,
    /// The shorter side to which pictures are resized before the middle is cut out.
    pub im_size: NonZeroUsize,
    /// The data set; without it, that of the training.
    pub dataset: Option<PathBuf>,
    pub split: String,
    /// Batches between two lines of figures.
    pub print_freq: NonZeroUsize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub struct OptimSection {
    /// The decay of the learning rate.
    pub lr_policy: LrPolicy,
    pub base_lr: f64,
    /// The last learning rate of `cos`, as a fraction of the highest.
    pub min_lr: f64,
    /// Epochs at which `steps` multiplies the rate, beginning with 0.
    pub steps: Vec<usize>,
    pub lr_mult: f64,
    pub max_epoch: NonZeroUsize,
    /// The momentum of stochastic gradient descent.
    pub momentum: f64,
    /// The fraction of a gradient that does not enter the momentum.
    pub dampening: f64,
    pub nesterov: bool,
    /// The first rate of the warm-up, as a fraction of the rate without it.
    pub warmup_factor: f64,
    pub warmup_epochs: usize,
    /// Weight decay of all parameters.
    pub weight_decay: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub struct CudnnSection {
    /// Accepted, but without any effect.
    pub benchmark: bool,
    /// Accepted, but without any effect.
    pub deterministic: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StemName {
    /// 7 x 7 with stride 2, then a maximum.
    ImageNet,
    /// 3 x 3 with stride 1.
    Cifar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A folder or an archive with a folder for each split, and in it one for each class.
    Folder,
    /// The binary version of CIFAR-10.
    Cifar10,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Augment {
    /// A random part of the picture, resized, and perhaps mirrored.
    ImageNet,
    /// A random shift by up to four pixels, and perhaps mirrored.
    Cifar,
    /// No random change: resized, and the middle of it.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrPolicy {
    Cos,
    Steps,
}

impl Default for Config {
    fn default() -> Self {
        let some = |value| NonZeroUsize::new(value).expect("a constant above 0");
        Self {
            model: ModelSection {
                arch: Arch::ResNet(Depth::ResNet18),
                num_classes: some(1000),
                pretrained: false,
                syncbn: false,
                weights: None,
                dummy_input: false,
                stem: None,
                zero_init_residual: false,
            },
            train: TrainSection {
                batch_size: some(32),
                im_size: some(224),
                dataset: PathBuf::from("./data/ILSVRC/"),
                split: "train".to_owned(),
                format: Format::Folder,
                augment: Augment::ImageNet,
                auto_resume: true,
                load_opt: true,
                workers: some(4),
                pin_memory: true,
                print_freq: some(30),
                topk: some(5),
            },
            test: TestSection {
                batch_size: some(200),
                im_size: some(256),
                dataset: None,
                split: "val".to_owned(),
                print_freq: some(10),
            },
            optim: OptimSection {
                lr_policy: LrPolicy::Cos,
                base_lr: 0.2,
                min_lr: 0.0,
                steps: Vec::new(),
                lr_mult: 0.1,
                max_epoch: some(100),
                momentum: 0.9,
                dampening: 0.0,
                nesterov: true,
                warmup_factor: 0.1,
                warmup_epochs: 5,
                weight_decay: 5e-5,
            },
            cudnn: CudnnSection { benchmark: true, deterministic: false },
            out_dir: PathBuf::from("./vision-run"),
            cfg_dest: "config.yaml".to_owned(),
            rng_seed: None,
        }
    }
}
