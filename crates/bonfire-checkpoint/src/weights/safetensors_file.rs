//! Reads safetensors files: the description first, and the bytes of a tensor when they are asked for.
//!
//! A file begins with the length of its description, in eight bytes, the lowest first. The description is JSON, the
//! rest is data: <https://huggingface.co/docs/safetensors>. A tensor of a type that Burn lacks is listed by name, and
//! the rest of the file can be used.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::{BoolStore, DType, Shape, TensorData};
use burn_store::bridge;
use burn_store::burn_pack::{Error as PackError, Tensor as StoredTensor};
use serde::Deserialize;
use serde_json::Value;

use super::adapter::{Layout, PRODUCER};

/// The maximum bytes of a description, as in the format's reference reader.
pub(super) const DESCRIPTION_BYTES_MAX: u64 = 100_000_000;

/// The entry of the description that is about the file, not about a tensor.
const METADATA: &str = "__metadata__";

pub(super) struct Contents {
    pub(super) tensors: Vec<StoredTensor>,
    pub(super) layout: Layout,
    /// Tensors whose types Burn lacks, each with its type.
    pub(super) unreadable: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Described {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

pub(super) fn read(path: &Path) -> io::Result<Contents> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    let Some(data) = bytes.checked_sub(length.saturating_add(8)) else {
        return Err(invalid(format!(
            "it is cut: of {length} bytes of description there are {}",
            bytes - 8
        )));
    };
    let mut description = Vec::new();
    (&mut file).take(length).read_to_end(&mut description)?;
    let mut description: BTreeMap<String, Value> = serde_json::from_slice(&description)?;
    let metadata = description.remove(METADATA).unwrap_or_default();
    let file = Arc::new(file);
    let mut contents = Contents {
        tensors: Vec::new(),
        layout: Layout::said(metadata[PRODUCER].as_str()),
        unreadable: Vec::new(),
    };
    let mut end = 0;
    for (name, described) in description {
        let described: Described = serde_json::from_value(described)
            .map_err(|error| invalid(format!("the description of {name} is broken: {error}")))?;
        end = end.max(described.data_offsets.1);
        let Some(dtype) = type_called(&described.dtype) else {
            contents.unreadable.push((name, described.dtype));
            continue;
        };
        let tensor = tensor(name, dtype, described, &file, 8 + length)?;
        contents.tensors.push(tensor);
    }
    if end != data {
        return Err(invalid(format!(
            "its tensors have {end} bytes and the file has {data}: it is cut, or not whole"
        )));
    }
    Ok(contents)
}

/// A tensor whose bytes begin `start` bytes into the file, or later.
fn tensor(
    name: String,
    dtype: DType,
    described: Described,
    file: &Arc<File>,
    start: u64,
) -> io::Result<StoredTensor> {
    let (first, end) = described.data_offsets;
    let count =
        described.shape.iter().try_fold(dtype.size(), |count, &side| count.checked_mul(side));
    let len = end.checked_sub(first).and_then(|len| usize::try_from(len).ok());
    let (Some(len), true) = (len, len == count) else {
        return Err(invalid(format!(
            "{name} is described as {:?} of {} in bytes {first} to {end}, which does not fit",
            described.shape, described.dtype
        )));
    };
    let file = Arc::clone(file);
    let shape = Shape::from(described.shape);
    let declared = shape.clone();
    let read = move || {
        let mut bytes = vec![0; len];
        let read = file.read_exact_at(&mut bytes, start + first);
        read.map_err(|error| PackError::IoError(error.to_string()))?;
        TensorData::try_from_bytes_vec(bytes, declared.clone(), dtype)
            .map_err(|error| PackError::TensorBytesSizeMismatch(error.to_string()))
    };
    Ok(bridge::deferred(name, dtype, shape, None, read))
}

fn type_called(name: &str) -> Option<DType> {
    Some(match name {
        "F64" => DType::F64,
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "I64" => DType::I64,
        "I32" => DType::I32,
        "I16" => DType::I16,
        "I8" => DType::I8,
        "U64" => DType::U64,
        "U32" => DType::U32,
        "U16" => DType::U16,
        "U8" => DType::U8,
        "BOOL" => DType::Bool(BoolStore::Native),
        _ => return None,
    })
}

fn invalid(cause: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, cause)
}
