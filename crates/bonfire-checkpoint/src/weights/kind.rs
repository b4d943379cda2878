//! The format of a file of parameters, by its first bytes: `torch.save` and people use any ending.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::safetensors_file::DESCRIPTION_BYTES_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Safetensors,
    /// A `torch.save` file: an archive, or a pickle from before PyTorch 1.6.
    PyTorch,
    /// JSON with the safetensors file of each tensor.
    Index,
}

/// Bytes needed to tell all formats apart: an archive of tar has its mark at 257.
const LOOKED_AT: u64 = 512;

/// Files that are mistaken for parameters: how they begin, and what to do.
const OTHERS: [(&[u8], &str); 6] = [
    (
        b"version https://git-lfs",
        "it is a Git LFS pointer and not the file itself; get that with `git lfs pull`",
    ),
    (b"<", "it is a web page and not the file itself; download it again"),
    (b"GGUF", "it is a GGUF file; convert it to safetensors"),
    (b"\x89HDF", "it is an HDF5 file; convert it to safetensors"),
    (b"\x1F\x8B", "it is compressed with gzip; unpack it"),
    (b"\xFD7zXZ", "it is compressed with xz; unpack it"),
];

pub(super) fn of(path: &Path) -> io::Result<Kind> {
    // To open a pipe is to wait for it, and it cannot be read in any order.
    if !path.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut first = Vec::new();
    File::open(path)?.take(LOOKED_AT).read_to_end(&mut first)?;
    kind_of(&first).map_err(|cause| io::Error::new(ErrorKind::InvalidData, cause))
}

fn kind_of(first: &[u8]) -> Result<Kind, String> {
    if first.is_empty() {
        return Err("it is empty".to_owned());
    }
    if let Some(length) = first.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes))
        && length <= DESCRIPTION_BYTES_MAX
        && first.get(8).is_none_or(|&begin| begin == b'{')
    {
        return Ok(Kind::Safetensors);
    }
    let text = first.trim_ascii_start();
    if let Some((_, cause)) = OTHERS.iter().find(|(begin, _)| text.starts_with(begin)) {
        return Err((*cause).to_owned());
    }
    if is_of_torch(first) {
        return Ok(Kind::PyTorch);
    }
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
    if text.starts_with(b"{") {
        return Ok(Kind::Index);
    }
    match std::str::from_utf8(&text[..text.len().min(32)]) {
        Ok(words)
            if !words.contains(|character: char| character.is_control() && character != '\n') =>
        {
            Err(format!("it is text that begins with {words:?}"))
        }
        _ => Err("it is neither a safetensors file nor one of torch.save".to_owned()),
    }
}

/// Returns true if a file begins as an archive of zip or tar, or as a pickle: of protocol 2 and up, or of an older one
/// with the number that `torch.save` puts first.
fn is_of_torch(first: &[u8]) -> bool {
    first.starts_with(b"PK\x03\x04")
        || first.starts_with(b"PK\x05\x06")
        || first.get(257..262) == Some(b"ustar")
        || first.starts_with(b"\x80")
        || first.starts_with(b"L119547037146038801333356")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_it_begins_with() {
        let safetensors = [&2_u64.to_le_bytes()[..], b"{}"].concat();
        let long = [&128_u64.to_le_bytes()[..], b"{}"].concat();
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        tar[..6].copy_from_slice(b"pickle");
        for (first, kind) in [
            (&safetensors[..], Kind::Safetensors),
            // Its first byte is that of a pickle.
            (&long, Kind::Safetensors),
            (b"PK\x03\x04net/data.pkl", Kind::PyTorch),
            (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", Kind::PyTorch),
            (b"L119547037146038801333356L\n.", Kind::PyTorch),
            (&tar, Kind::PyTorch),
            (b" {\n  \"weight_map\": {}}", Kind::Index),
            ("\u{feff}{\"weight_map\": {}}".as_bytes(), Kind::Index),
        ] {
            assert_eq!(kind_of(first), Ok(kind), "{first:?}");
        }
    }

    #[test]
    fn what_is_no_file_of_parameters_is_named() {
        for (first, words) in [
            (&b""[..], "empty"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git lfs pull"),
            (b"\n<!DOCTYPE html><html>", "a web page"),
            (b"GGUF\x03\0\0\0", "GGUF"),
            (b"Not found, sorry", "text that begins with \"Not found"),
            (&[0xFF; 64], "neither"),
        ] {
            let cause = kind_of(first).unwrap_err();
            assert!(cause.contains(words), "{cause}");
        }
    }
}
