//! A network's parameters in a file, without a training around them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use burn::module::Module;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;

use crate::config::write_whole;
use crate::model::Model;

/// Reads what [`save`] has written into a network of the same kind.
///
/// # Errors
/// If the file cannot be read, or is another network's.
pub fn load(model: Model, path: &Path) -> Result<Model> {
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

/// Writes a network's parameters: the whole file or none.
///
/// # Errors
/// If the file cannot be written.
pub fn save(model: &Model, path: &Path) -> Result<()> {
    let bytes = model.clone().into_record().into_bytes();
    let bytes = bytes.map_err(|error| anyhow!("the parameters cannot be saved: {error}"))?;
    Ok(write_whole(path, &bytes)?)
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
