//! Any of the networks, chosen by name.

use std::fmt;
use std::str::FromStr;

use crate::networks::botnet::{BotNet, BotNetConfig};
use crate::networks::densenet::{DenseNet, DenseNetConfig};
use crate::networks::resnet::{Depth, ResNet, ResNetConfig, Stem};
use bonfire::UnknownName;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

/// The networks by their names in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Arch {
    ResNet(Depth),
    BotNet50,
    DenseNet121,
}

const NAMES: [(&str, Arch); 11] = [
    ("resnet18", Arch::ResNet(Depth::ResNet18)),
    ("resnet34", Arch::ResNet(Depth::ResNet34)),
    ("resnet50", Arch::ResNet(Depth::ResNet50)),
    ("resnet101", Arch::ResNet(Depth::ResNet101)),
    ("resnet152", Arch::ResNet(Depth::ResNet152)),
    ("resnext50_32x4d", Arch::ResNet(Depth::ResNext50)),
    ("wide_resnet50_2", Arch::ResNet(Depth::WideResNet50)),
    ("densenet121", Arch::DenseNet121),
    ("botnet50", Arch::BotNet50),
    ("resnet8", Arch::ResNet(Depth::ResNet8)),
    ("resnet20", Arch::ResNet(Depth::ResNet20)),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelConfig {
    pub arch: Arch,
    pub classes: usize,
    pub image_size: usize,
    /// The first layers; `None` is the usual ones.
    pub stem: Option<Stem>,
    /// Starts the last normalisation of every block with zeros.
    pub zero_init_residual: bool,
}

#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // there is one of them
pub enum Model {
    ResNet(ResNet),
    BotNet(BotNet),
    DenseNet(DenseNet),
}

impl ModelConfig {
    /// Builds the network; the same seed gives the same parameters on every device and every rank.
    pub fn init(&self, seed: u64, device: &Device) -> Model {
        let &Self { classes, image_size, zero_init_residual, .. } = self;
        match self.arch {
            Arch::ResNet(depth) => {
                let config = ResNetConfig {
                    depth,
                    classes,
                    stem: self.stem.unwrap_or(depth.stem()),
                    zero_init_residual,
                };
                Model::ResNet(config.init(seed, device))
            }
            Arch::BotNet50 => {
                let config = BotNetConfig {
                    classes,
                    image_size,
                    stem: self.stem.unwrap_or(Stem::Large),
                    zero_init_residual,
                };
                Model::BotNet(config.init(seed, device))
            }
            Arch::DenseNet121 => {
                let stem = self.stem.unwrap_or(Stem::Large);
                Model::DenseNet(DenseNetConfig { classes, stem }.init(seed, device))
            }
        }
    }
}

impl Model {
    /// Returns the scores of all classes: `[batch, 3, height, width]` to `[batch, classes]`.
    pub fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
        match self {
            Self::ResNet(network) => network.forward(pictures),
            Self::BotNet(network) => network.forward(pictures),
            Self::DenseNet(network) => network.forward(pictures),
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, arch)| arch == self);
        f.write_str(name.expect("every network has a name").0)
    }
}

impl From<Arch> for String {
    fn from(arch: Arch) -> Self {
        arch.to_string()
    }
}

impl FromStr for Arch {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        UnknownName::find("network", text, &NAMES.map(|(_, arch)| arch))
    }
}

impl TryFrom<String> for Arch {
    type Error = UnknownName;

    fn try_from(text: String) -> Result<Self, UnknownName> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (name, arch) in NAMES {
            assert_eq!(arch.to_string(), name);
            assert_eq!(name.parse(), Ok(arch));
        }
    }

    #[test]
    fn a_wrong_name_gets_the_nearest() {
        let error = "resnet81".parse::<Arch>().unwrap_err().to_string();
        assert!(
            error.contains("`resnet81`; choose resnet18") && error.contains("did you mean resnet"),
            "{error}"
        );
        let error = "mlp".parse::<Arch>().unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{error}");
        assert!(error.contains("botnet50"), "{error}");
    }
}
