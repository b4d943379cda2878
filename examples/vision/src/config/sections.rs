//! The sections, keys and defaults.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::model::Arch;
use crate::networks::resnet::Depth;

/// A checked configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub struct Config {
    /// The network.
    pub model: ModelSection,
    /// Training and its data.
    pub train: TrainSection,
    /// Evaluation and its data.
    pub test: TestSection,
    /// The optimizer and its rates.
    pub optim: OptimSection,
    /// Read so that Distribuuuu's files can be used as they are; there is no cuDNN here.
    pub cudnn: CudnnSection,
    /// Where checkpoints, curves and this configuration are kept.
    pub out_dir: PathBuf,
    /// The name of the copy of this configuration there.
    pub cfg_dest: String,
    /// Makes a run repeatable; without one, rank 0 draws it.
    pub rng_seed: Option<u64>,
}

/// `MODEL`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub struct ModelSection {
    /// The network's name.
    pub arch: Arch,
    /// Classes to tell apart.
    pub num_classes: NonZeroUsize,
    /// Whether to begin with downloaded parameters: nothing is downloaded here, see [`Self::weights`].
    pub pretrained: bool,
    /// Whether batch normalisation goes over the batches of all ranks.
    pub syncbn: bool,
    /// A file with the parameters to begin with.
    pub weights: Option<PathBuf>,
    /// Train on random pictures instead of a data set, to measure speed.
    pub dummy_input: bool,
    /// How the network begins; without it, as it was made.
    pub stem: Option<StemName>,
    /// Whether the last normalisation of every block starts with zeros.
    pub zero_init_residual: bool,
}

/// `TRAIN`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub struct TrainSection {
    /// Pictures in a step on each rank.
    pub batch_size: NonZeroUsize,
    /// Height and width of the pictures that the network sees.
    pub im_size: NonZeroUsize,
    /// The data set: a folder, or a tar archive.
    pub dataset: PathBuf,
    /// The folder of the training pictures in it.
    pub split: String,
    /// How the data set is stored.
    pub format: Format,
    /// How pictures are changed at random.
    pub augment: Augment,
    /// Whether to go on from the last checkpoint in [`Config::out_dir`].
    pub auto_resume: bool,
    /// Whether the optimizer's state is part of that.
    pub load_opt: bool,
    /// Threads of each rank that prepare batches.
    pub workers: NonZeroUsize,
    /// Read so that Distribuuuu's files can be used as they are. It has no effect: the backend decides
    /// how a batch is copied to its device.
    pub pin_memory: bool,
    /// Steps between two lines of figures.
    pub print_freq: NonZeroUsize,
    /// The second accuracy counts a picture if its class is among so many.
    pub topk: NonZeroUsize,
}

/// `TEST`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub struct TestSection {
    /// Pictures in a batch on each rank.
    pub batch_size: NonZeroUsize,
    /// The shorter side to which pictures are resized before the middle is cut out.
    pub im_size: NonZeroUsize,
    /// The data set; without it, that of the training.
    pub dataset: Option<PathBuf>,
    /// The folder of the test pictures in it.
    pub split: String,
    /// Batches between two lines of figures.
    pub print_freq: NonZeroUsize,
}

/// `OPTIM`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub struct OptimSection {
    /// How the learning rate falls.
    pub lr_policy: LrPolicy,
    /// The highest learning rate.
    pub base_lr: f64,
    /// The last learning rate of `cos`, as a fraction of the highest.
    pub min_lr: f64,
    /// Epochs at which `steps` multiplies the rate, beginning with 0.
    pub steps: Vec<usize>,
    /// With what.
    pub lr_mult: f64,
    /// Epochs of the training.
    pub max_epoch: NonZeroUsize,
    /// The momentum of stochastic gradient descent.
    pub momentum: f64,
    /// The fraction of a gradient that does not enter the momentum.
    pub dampening: f64,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
    /// The first rate of the warm-up, as a fraction of the rate without it.
    pub warmup_factor: f64,
    /// Epochs of the warm-up.
    pub warmup_epochs: usize,
    /// Weight decay of all parameters.
    pub weight_decay: f64,
}

/// `CUDNN`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub struct CudnnSection {
    /// Without effect.
    pub benchmark: bool,
    /// Without effect.
    pub deterministic: bool,
}

/// `MODEL.STEM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StemName {
    /// 7 x 7 with stride 2, then a maximum.
    ImageNet,
    /// 3 x 3 with stride 1.
    Cifar,
}

/// `TRAIN.FORMAT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A folder or an archive with a folder for each split, and in it one for each class.
    Folder,
    /// The binary version of CIFAR-10.
    Cifar10,
}

/// `TRAIN.AUGMENT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Augment {
    /// A random part of the picture, resized, and perhaps mirrored.
    ImageNet,
    /// A random shift by up to four pixels, and perhaps mirrored.
    Cifar,
    /// Nothing at random: resized, and the middle of it.
    None,
}

/// `OPTIM.LR_POLICY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrPolicy {
    /// Down half a cosine.
    Cos,
    /// In steps.
    Steps,
}

impl Default for Config {
    /// Distribuuuu's.
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
            cudnn: CudnnSection {
                benchmark: true,
                deterministic: false,
            },
            out_dir: PathBuf::from("./vision-run"),
            cfg_dest: "config.yaml".to_owned(),
            rng_seed: None,
        }
    }
}
