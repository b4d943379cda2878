//! Weight files byte by byte: safetensors, and the zip archive with a pickle that `torch.save` writes.

use std::collections::BTreeMap;

use half::f16;

/// A tensor in a file.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
    half: bool,
}

impl Stored {
    /// In 16 bits.
    pub(super) fn into_half(self) -> Self {
        Self { half: true, ..self }
    }

    /// Under another name.
    pub(super) fn renamed(self, name: impl Fn(&str) -> String) -> Self {
        Self { name: name(&self.name), ..self }
    }

    fn bytes(&self) -> Vec<u8> {
        let value = |&value: &f32| {
            if self.half {
                f16::from_f32(value).to_le_bytes().to_vec()
            } else {
                value.to_le_bytes().to_vec()
            }
        };
        self.values.iter().flat_map(value).collect()
    }
}

/// A tensor whose values count up from `first`.
pub(super) fn numbered(name: &str, shape: &[usize], first: usize) -> Stored {
    let count: usize = shape.iter().product();
    Stored {
        name: name.to_owned(),
        shape: shape.to_vec(),
        values: (first..first + count).map(|value| value as f32).collect(),
        half: false,
    }
}

/// The length of a JSON object, the object, the data.
pub(super) fn safetensors(tensors: &[Stored]) -> Vec<u8> {
    let mut description = BTreeMap::new();
    let mut data = Vec::new();
    for tensor in tensors {
        let start = data.len();
        data.extend(tensor.bytes());
        let dtype = if tensor.half { "F16" } else { "F32" };
        let entry = serde_json::json!({
            "dtype": dtype, "shape": tensor.shape, "data_offsets": [start, data.len()],
        });
        description.insert(tensor.name.clone(), entry);
    }
    let description = serde_json::to_vec(&description).unwrap();
    let length = (description.len() as u64).to_le_bytes();
    [&length[..], &description, &data].concat()
}

/// A zip archive with a pickle and a file of data per tensor, nothing compressed.
pub(super) fn pytorch(tensors: &[Stored]) -> Vec<u8> {
    let mut files = vec![
        ("net/data.pkl".to_owned(), pickle(tensors)),
        ("net/byteorder".to_owned(), b"little".to_vec()),
    ];
    for (key, tensor) in tensors.iter().enumerate() {
        files.push((format!("net/data/{key}"), tensor.bytes()));
    }
    files.push(("net/version".to_owned(), b"3\n".to_vec()));
    zip(&files)
}

/// `OrderedDict([(name, _rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict())), ..])`
/// in protocol 2.
fn pickle(tensors: &[Stored]) -> Vec<u8> {
    const ORDERED_DICT: &[u8] = b"ccollections\nOrderedDict\n)R";
    let mut out = b"\x80\x02".to_vec();
    out.extend(ORDERED_DICT);
    out.push(b'(');
    for (key, tensor) in tensors.iter().enumerate() {
        out.extend(text(&tensor.name));
        out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        out.extend(text("storage"));
        out.extend(b"ctorch\nFloatStorage\n");
        out.extend(text(&key.to_string()));
        out.extend(text("cpu"));
        out.extend(number(tensor.values.len()));
        out.extend(b"tQ");
        out.extend(number(0));
        out.push(b'(');
        tensor.shape.iter().for_each(|&side| out.extend(number(side)));
        out.extend(b"t(");
        for place in 0..tensor.shape.len() {
            out.extend(number(tensor.shape[place + 1..].iter().product()));
        }
        out.extend(b"t\x89");
        out.extend(ORDERED_DICT);
        out.extend(b"tR");
    }
    out.extend(b"u.");
    out
}

fn text(text: &str) -> Vec<u8> {
    let length = (text.len() as u32).to_le_bytes();
    [b"X", &length[..], text.as_bytes()].concat()
}

fn number(number: usize) -> Vec<u8> {
    [b"J", &(number as i32).to_le_bytes()[..]].concat()
}

/// Local headers with data, then the directory, then its end (APPNOTE.TXT 4.3).
fn zip(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in files {
        let offset = out.len() as u32;
        // Version 2.0, no flags, stored, no time; checksum, both sizes, name, no extra field.
        let mut fields = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for value in [crc32(bytes), bytes.len() as u32, bytes.len() as u32] {
            fields.extend(value.to_le_bytes());
        }
        fields.extend((name.len() as u16).to_le_bytes());
        fields.extend([0, 0]);
        out.extend([b"PK\x03\x04", &fields[..], name.as_bytes(), bytes].concat());
        // Made by version 2.0; no comment, disk 0, no attributes.
        directory.extend([b"PK\x01\x02\x14\x00", &fields[..], &[0; 10]].concat());
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let count = (files.len() as u16).to_le_bytes();
    let (start, size) = (out.len() as u32, directory.len() as u32);
    out.extend(directory);
    out.extend([b"PK\x05\x06", &[0; 4][..], &count, &count].concat());
    out.extend(size.to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}

/// The checksum of zip archives, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0xEDB8_8320 & 0_u32.wrapping_sub(crc & 1));
    !bytes.iter().fold(u32::MAX, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}
