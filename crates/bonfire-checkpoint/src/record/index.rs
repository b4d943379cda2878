//! What each rank has of a record, which ranks exchange before they gather it.

use std::collections::BTreeMap;

use bonfire_plan::Cut;
use burn::module::ParamId;
use burn::tensor::DType;
use burn_pack::Scalar;
use serde::{Deserialize, Serialize};

use super::Record;

/// Describes a tensor of a record, or this rank's shard of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShardMetadata {
    /// The row of its parameter in the table.
    pub row: usize,
    /// The optimizer's name of this state of the parameter; empty for the parameter itself.
    pub suffix: String,
    /// The data type of the values.
    pub dtype: DType,
    /// The shape of the values.
    pub shape: Vec<usize>,
    /// How ranks cut its parameter, if they do.
    pub cut: Option<Cut>,
}

/// Describes a rank's part of a record: shards without values, and all scalars and texts. Identities of parameters
/// differ between ranks, so these are known by their rows.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShardIndex {
    /// The shards that the rank has.
    pub shards: Vec<ShardMetadata>,
    scalars: Vec<(usize, String, Scalar)>,
    texts: Vec<(usize, String, String)>,
}

impl ShardIndex {
    /// Lists `shards`, and the other values of a record whose parameters have a row.
    pub fn new(
        record: &Record,
        shards: Vec<ShardMetadata>,
        row: impl Fn(ParamId) -> Option<usize>,
    ) -> Self {
        Self {
            shards,
            scalars: by_row(&record.scalars, &row),
            texts: by_row(&record.metadata, &row),
        }
    }

    /// Adds its scalars and texts to a record, under the identities that its rows have there.
    pub fn add_values(self, record: &mut Record, id: impl Fn(usize) -> ParamId) {
        for (row, suffix, value) in self.scalars {
            let name = format!("{}{suffix}", id(row).val());
            record.scalars.insert(name, value);
        }
        for (row, suffix, value) in self.texts {
            let name = format!("{}{suffix}", id(row).val());
            record.metadata.insert(name, value);
        }
    }
}

fn by_row<V: Clone>(
    values: &BTreeMap<String, V>,
    row: impl Fn(ParamId) -> Option<usize>,
) -> Vec<(usize, String, V)> {
    let values = values.iter().filter_map(|(name, value)| {
        let (id, suffix) = split_identity(name)?;
        Some((row(id)?, suffix.to_owned(), value.clone()))
    });
    values.collect()
}

/// Splits the name of an optimizer's value into the identity of its parameter and the rest.
pub fn split_identity(name: &str) -> Option<(ParamId, &str)> {
    let (id, suffix) = name.split_at(name.find('.').unwrap_or(name.len()));
    let id: u64 = id.parse().ok()?;
    Some((ParamId::from(id), suffix))
}
