//! Files and archives made here, and the real data where a variable says where it is.

use super::*;
use crate::images::fixtures::{tar_of, write};

/// A batch file of `count` records; each byte of a picture tells its record, channel and place.
fn batch_file(first: usize, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in first..first + count {
        bytes.push((record % 10) as u8);
        for channel in 0..CHANNELS {
            bytes.extend((0..PIXELS).map(|place| byte_at(record, channel, place)));
        }
    }
    bytes
}

fn byte_at(record: usize, channel: usize, place: usize) -> u8 {
    (record * 7 + channel * 50 + place * 3) as u8
}

fn assert_is_records(cifar: &Cifar10, expected: std::ops::Range<usize>) {
    assert_eq!(cifar.count(), expected.len());
    for (index, record) in expected.enumerate() {
        assert_eq!(cifar.labels()[index], record % 10);
        let picture = cifar.picture(index).unwrap();
        for (x, y) in [(0, 0), (31, 0), (5, 17), (31, 31)] {
            let place = y * SIDE + x;
            assert_eq!(
                picture.pixel(x, y),
                [0, 1, 2].map(|channel| byte_at(record, channel, place)),
                "record {record} at ({x}, {y})"
            );
        }
    }
}

#[test]
fn parts_are_read_from_folders_and_archives_in_the_order_of_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let files = [
        ("cifar-10-batches-bin/data_batch_2.bin", batch_file(3, 2)),
        ("cifar-10-batches-bin/test_batch.bin", batch_file(40, 4)),
        ("cifar-10-batches-bin/data_batch_1.bin", batch_file(0, 3)),
        ("cifar-10-batches-bin/batches.meta.txt", b"airplane".to_vec()),
    ];
    for (path, bytes) in &files {
        write(folder.path().join("unpacked").join(path), bytes);
    }
    let archive = folder.path().join("cifar.tar");
    write(&archive, &tar_of(&files));
    let places = [
        folder.path().join("unpacked"),
        folder.path().join("unpacked").join(INNER_FOLDER),
        archive,
    ];
    for place in places {
        let train = Cifar10::open(&place, CifarPart::Train).unwrap();
        assert_is_records(&train, 0..5);
        let test = Cifar10::open(&place, CifarPart::Test).unwrap();
        assert_is_records(&test, 40..44);
        assert_eq!(test.classes()[3], "cat");
        train.expect_classes(10).unwrap();
        let error = train.expect_classes(5).unwrap_err().to_string();
        assert!(
            error.contains("10 classes (airplane, ") && error.contains("5 are expected"),
            "{error}"
        );
    }
}

/// The error of a folder with one training file.
fn error_of(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path().join("data_batch_1.bin"), bytes);
    let error = Cifar10::open(folder.path(), CifarPart::Train).unwrap_err();
    error.to_string()
}

#[test]
fn damaged_files_are_named_and_described() {
    let whole = batch_file(0, 2);
    for bytes in [&whole[..whole.len() - 1], b""] {
        let error = error_of(bytes);
        let expected = format!("it has {} bytes, which is not a multiple of 3073", bytes.len());
        assert!(error.contains("data_batch_1.bin") && error.contains(&expected), "{error}");
    }
    let mut mislabelled = whole;
    mislabelled[RECORD_BYTES] = 10;
    let error = error_of(&mislabelled);
    assert!(error.contains("record 1 has the label 10"), "{error}");
}

#[test]
fn places_without_the_files_say_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let error = |path: &Path| Cifar10::open(path, CifarPart::Test).unwrap_err();
    let empty = error(folder.path()).to_string();
    assert!(empty.contains("has no test_batch.bin"), "{empty}");

    let missing = error(&folder.path().join("no/such/place"));
    assert!(matches!(missing, PictureError::Unreadable { .. }), "{missing}");

    let other = folder.path().join("other.tar");
    write(&other, &tar_of(&[("readme", b"nothing here".to_vec())]));
    let other = error(&other);
    assert!(matches!(other, PictureError::NoCifar { .. }), "{other}");

    let gzip = folder.path().join("cifar-10-binary.tar.gz");
    write(&gzip, &[0x1F, 0x8B, 8, 0, 0, 0]);
    let gzip = error(&gzip);
    assert!(matches!(gzip, PictureError::Compressed { .. }), "{gzip}");
    assert!(gzip.to_string().contains("gunzip"), "{gzip}");
}

#[test]
fn a_cut_archive_is_found_out_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("cut.tar");
    let whole = tar_of(&[("test_batch.bin", batch_file(0, 3))]);
    write(&archive, &whole[..5000]);
    let error = Cifar10::open(&archive, CifarPart::Test).unwrap_err();
    assert!(matches!(error, PictureError::Unreadable { .. }), "{error}");
}
