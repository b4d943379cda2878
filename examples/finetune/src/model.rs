//! The network, its initial parameters, and its trained layers.

use anyhow::Result;
use bonfire::World;
use bonfire::ddp::freeze_all_but;
use bonfire::weights::{WeightsFile, load_weights};
use burn::module::Module;
use vision::networks::resnet::{ResNet, ResNetConfig};
use vision::show;

use crate::options::Options;

const HEAD: &str = "fc.*";

pub fn check_weights(options: &Options) -> Result<()> {
    if let Some(path) = &options.weights {
        WeightsFile::from(path.as_path()).names()?;
    }
    Ok(())
}

/// Makes the initial network, the same on every rank. Rank 0 logs where its parameters are from.
pub fn start(options: &Options, world: &World) -> Result<ResNet> {
    let device = world.device().autodiff();
    let classes = options.num_classes.get();
    let model = ResNetConfig::new(options.arch.depth(), classes).init(options.seed, &device);
    let model = match &options.weights {
        Some(path) => {
            let (model, report) = load_weights(model, path.as_path(), world)?;
            if world.is_main() {
                show(&report.to_string());
            }
            model
        }
        None => model,
    };
    if !options.freeze_layers {
        return Ok(model);
    }
    let (model, frozen) = freeze_all_but(model, &[HEAD])?;
    if world.is_main() {
        let (frozen, all) = (frozen.len(), model.num_params());
        show(&format!("{frozen} parameters are frozen; all have {all} numbers together"));
    }
    Ok(model)
}
