//! Event files that TensorBoard reads.
//!
//! A file is a sequence of records: length (u64), CRC of the length, content, CRC of the content, all little-endian.
//! The CRC is CRC-32C, rotated and offset as TensorFlow's `TFRecord` has it. The content is a protocol-buffer message
//! `Event`, of which scalars need four fields; they are written out here.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Added to a rotated CRC, so that a CRC of data that has CRCs in it is not such data again.
const MASK: u32 = 0xa282_ead8;

/// Writes scalars for TensorBoard, from one rank: `tensorboard --logdir FOLDER` shows them.
///
/// Every run needs its own folder. A run that continues writes another file into its folder, which TensorBoard
/// reads after the first; for steps in both, it shows the second file's values, because a file begins with the step
/// from which on it holds.
#[derive(Debug)]
pub struct EventWriter {
    file: BufWriter<File>,
    path: PathBuf,
}

impl EventWriter {
    /// Starts a file in `folder`, which is made if it does not exist, for a run from its beginning.
    ///
    /// # Errors
    /// If the folder or the file cannot be made.
    pub fn create(folder: impl AsRef<Path>) -> io::Result<Self> {
        Self::resume(folder, 0)
    }

    /// Starts a file for a run that continues at `step`: later values in earlier files are not shown any more.
    ///
    /// # Errors
    /// If the folder or the file cannot be made.
    pub fn resume(folder: impl AsRef<Path>, step: u64) -> io::Result<Self> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder)?;
        let now = unix_seconds();
        // TensorBoard takes files whose name has `tfevents` in it, ordered by name.
        let name = |number: u32| {
            let (seconds, process) = (now as u64, std::process::id());
            format!("events.out.tfevents.{seconds:010}.bonfire.{process}.{number}")
        };
        let mut number = 0;
        let (file, path) = loop {
            let path = folder.join(name(number));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => break (file, path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        };
        let mut writer = Self { file: BufWriter::new(file), path };
        let mut event = header(now, 0);
        text_field(&mut event, 3, "brain.Event:2");
        writer.record(&event)?;
        // A `SessionLog` whose status is START.
        let mut event = header(now, step);
        bytes_field(&mut event, 7, &[1 << 3, 1]);
        writer.record(&event)?;
        writer.flush()?;
        Ok(writer)
    }

    /// Returns the path of the event file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds one point to the curve `tag`, such as `loss`, `accuracy` or `learning_rate`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn scalar(&mut self, tag: &str, step: u64, value: f64) -> io::Result<()> {
        let mut scalar = Vec::new();
        text_field(&mut scalar, 1, tag);
        key(&mut scalar, 2, WIRE_FIXED_32);
        scalar.extend_from_slice(&(value as f32).to_le_bytes());
        let mut summary = Vec::new();
        bytes_field(&mut summary, 1, &scalar);
        let mut event = header(unix_seconds(), step);
        bytes_field(&mut event, 5, &summary);
        self.record(&event)
    }

    /// Writes all buffered points to the file, so that TensorBoard sees them. Dropping does so, too, but ignores
    /// errors.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    fn record(&mut self, content: &[u8]) -> io::Result<()> {
        let len = (content.len() as u64).to_le_bytes();
        self.file.write_all(&len)?;
        self.file.write_all(&masked_crc(&len).to_le_bytes())?;
        self.file.write_all(content)?;
        self.file.write_all(&masked_crc(content).to_le_bytes())
    }
}

pub(crate) fn unix_seconds() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK)
}

// Of the protocol-buffer encoding.
const WIRE_VARINT: u64 = 0;
const WIRE_FIXED_64: u64 = 1;
const WIRE_BYTES: u64 = 2;
const WIRE_FIXED_32: u64 = 5;

fn header(seconds: f64, step: u64) -> Vec<u8> {
    let mut event = Vec::new();
    key(&mut event, 1, WIRE_FIXED_64);
    event.extend_from_slice(&seconds.to_le_bytes());
    key(&mut event, 2, WIRE_VARINT);
    varint(&mut event, step);
    event
}

fn key(message: &mut Vec<u8>, field: u64, wire: u64) {
    varint(message, field << 3 | wire);
}

fn text_field(message: &mut Vec<u8>, field: u64, text: &str) {
    bytes_field(message, field, text.as_bytes());
}

fn bytes_field(message: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    key(message, field, WIRE_BYTES);
    varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

/// Seven bits per byte, the lowest first; the highest bit means that more follow.
fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

#[cfg(test)]
pub(crate) mod tests {
    use bonfire_testkit::{Scalar, read_by_tensorboard};

    use super::*;

    /// Check value of CRC-32C, and its mask.
    #[test]
    fn records_have_the_masked_crc_of_tensorflow() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        let rotated = 0xe306_9283_u32.rotate_right(15);
        assert_eq!(masked_crc(b"123456789"), rotated.wrapping_add(0xa282_ead8));
    }

    #[test]
    fn a_scalar_is_the_bytes_that_the_format_says() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path().join("runs/a")).unwrap();
        let path = writer.path().to_owned();
        let before = fs::read(&path).unwrap().len();
        writer.scalar("loss", 300, 0.5).unwrap();
        writer.flush().unwrap();
        let record = &fs::read(&path).unwrap()[before..];
        let content = &record[12..record.len() - 4];
        assert_eq!(record[..8], (content.len() as u64).to_le_bytes());
        assert_eq!(record[8..12], masked_crc(&record[..8]).to_le_bytes());
        assert_eq!(record[record.len() - 4..], masked_crc(content).to_le_bytes());
        // Step 300, then a summary of 13 bytes with one value of 11: a tag of four and an f32.
        let (time, rest) = content.split_at(9);
        assert_eq!(time[0], 0x09);
        let expected = [0x10, 0xac, 0x02, 0x2a, 13, 0x0a, 11, 0x0a, 4];
        assert_eq!(rest[..9], expected);
        assert_eq!(&rest[9..13], b"loss");
        assert_eq!(rest[13..], [0x15, 0, 0, 0, 0x3f]);
    }

    #[test]
    fn a_run_that_goes_on_replaces_what_it_does_again() {
        let folder = tempfile::tempdir().unwrap();
        let write = |mut writer: EventWriter, steps: std::ops::Range<u64>, value| {
            for step in steps {
                writer.scalar("loss", step, value).unwrap();
            }
        };
        write(EventWriter::create(folder.path()).unwrap(), 0..5, 1.0);
        write(EventWriter::resume(folder.path(), 3).unwrap(), 3..6, 2.0);
        if let Some(read) = read(folder.path()) {
            let values = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0].iter().enumerate();
            let expected: Vec<_> =
                values.map(|(step, value)| format!("loss {step} {value:?}")).collect();
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn every_writer_has_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let first = EventWriter::create(folder.path()).unwrap();
        let second = EventWriter::create(folder.path()).unwrap();
        assert_ne!(first.path(), second.path());
    }

    /// The step from which on a file holds.
    pub(crate) fn begins_at(file: &[u8]) -> u64 {
        let content = |record: &[u8]| {
            let len = u64::from_le_bytes(record[..8].try_into().unwrap()) as usize;
            (record[12..12 + len].to_vec(), 12 + len + 4)
        };
        // The version comes first, then the session.
        let (_, end) = content(file);
        let (session, _) = content(&file[end..]);
        assert_eq!((session[0], session[9]), (0x09, 0x10), "wall time, step");
        assert!(session[10] < 0x80, "a small number");
        u64::from(session[10])
    }

    /// Tags, steps and values as text.
    fn read(folder: &Path) -> Option<Vec<String>> {
        let scalars = read_by_tensorboard(folder)?;
        let text = |(tag, step, value): Scalar| format!("{tag} {step} {value:?}");
        Some(scalars.into_iter().map(text).collect())
    }

    #[test]
    fn tensorboard_reads_what_was_written_even_with_a_torn_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path()).unwrap();
        for (step, loss) in [(0, 2.5), (1, 1.25), (1_000_000, -0.5)] {
            writer.scalar("loss", step, loss).unwrap();
            writer.scalar("learning_rate", step, 0.125).unwrap();
        }
        writer.flush().unwrap();
        let expected = [
            "learning_rate 0 0.125",
            "learning_rate 1 0.125",
            "learning_rate 1000000 0.125",
            "loss 0 2.5",
            "loss 1 1.25",
            "loss 1000000 -0.5",
        ];
        if let Some(read) = read(folder.path()) {
            assert_eq!(read, expected);
        }
        // The last record is that of the learning rate at the last step.
        let bytes = fs::read(writer.path()).unwrap();
        fs::write(writer.path(), &bytes[..bytes.len() - 7]).unwrap();
        if let Some(read) = read(folder.path()) {
            assert_eq!(read, [&expected[..2], &expected[3..]].concat());
        }
    }
}
