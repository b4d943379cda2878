//! Reads and writes a network's parameters without its training.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use bonfire::weights::{Export, load_weights, save_weights};
use bonfire::{Ddp, World, all_or_none};
use burn::module::Module;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;

use crate::config::write_whole;
use crate::model::Model;
use crate::show;

const OWN: &str = "bpk";

/// Reads a network's parameters: a file of [`save`], or a safetensors or PyTorch file of the same network, such as
/// torchvision's. Every rank must call it.
///
/// # Errors
/// On all ranks, if rank 0 cannot read the file, or if it lacks parameters of the network other than its last layer's,
/// which may be for other classes.
pub fn load(model: Model, path: &Path, world: &World) -> Result<Model> {
    if path.extension().is_some_and(|extension| extension == OWN) {
        return load_own(model, path);
    }
    let (model, report) = load_weights(model, path, world)?;
    let skipped = report.skipped.iter().map(|skipped| &skipped.parameter);
    let absent = report.missing.iter().chain(skipped);
    let mut absent = absent.filter(|parameter| !is_last_layer(parameter));
    let first = absent.next();
    ensure!(
        first.is_none(),
        "{} does not have the parameters of this network: {} of them, beginning with {}",
        path.display(),
        1 + absent.count(),
        first.map_or("none", String::as_str),
    );
    if world.is_main() {
        show(&report.summary().to_string());
    }
    Ok(model)
}

fn load_own(model: Model, path: &Path) -> Result<Model> {
    let bytes = fs::read(path)
        .with_context(|| format!("cannot read the parameters in {}", path.display()))?;
    ModuleRecord::from_bytes(Bytes::from_bytes_vec(bytes))
        .and_then(|record| model.try_load_record(record))
        .map_err(|error| {
            let cause = first_line(&error.to_string());
            let path = path.display();
            anyhow!("{path} does not have the parameters of this network: {cause}")
        })
}

/// Writes a network's parameters: the complete file or none.
///
/// # Errors
/// If the file cannot be written.
pub fn save(model: &Model, path: &Path) -> Result<()> {
    let bytes = model.clone().into_record().into_bytes();
    let bytes = bytes.map_err(|error| anyhow!("the parameters cannot be saved: {error}"))?;
    Ok(write_whole(path, &bytes)?)
}

/// Writes the parameters after an epoch into the folder `weights` of `out_dir`, in PyTorch's layout. Every rank must call
/// it.
///
/// # Errors
/// If the file cannot be written, or if a rank fails.
pub fn save_epoch<M: Module>(
    world: &World,
    ddp: &mut Ddp<M>,
    out_dir: &Path,
    epoch: u64,
) -> Result<()> {
    let folder = out_dir.join("weights");
    let made = if world.is_main() { fs::create_dir_all(&folder) } else { Ok(()) };
    let made = made.with_context(|| format!("cannot make the folder {}", folder.display()));
    all_or_none(world, made)?;
    let file = folder.join(format!("model-{epoch}.safetensors"));
    // As an error of Bonfire's it says which rank reports it.
    Ok(save_weights(ddp, Export::new(file).for_pytorch()).map_err(bonfire::Error::from)?)
}

fn is_last_layer(parameter: &str) -> bool {
    // Of residual networks, and of densely connected ones.
    parameter.split('.').any(|part| part == "fc" || part == "classifier")
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
