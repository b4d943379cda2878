//! Folders and archives made here, and real ones where a variable says where they are.

use std::path::Path;

use image::ImageFormat;

use super::*;
use crate::images::fixtures::{encoded, plain, tar_of, write};

const RED: [u8; 3] = [250, 0, 0];
const BLUE: [u8; 3] = [0, 0, 250];

fn jpeg(colour: [u8; 3]) -> Vec<u8> {
    encoded(&plain(8, colour), ImageFormat::Jpeg)
}

/// Two classes, and much that is no picture.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("roses/b.JPG", jpeg(RED)),
        ("roses/a.jpeg", jpeg(RED)),
        ("roses/deep/er/c.Png", encoded(&plain(8, RED), ImageFormat::Png)),
        ("roses/notes.txt", b"no picture".to_vec()),
        ("roses/.hidden.jpg", b"not even one".to_vec()),
        ("daisies/z.jpg", jpeg(BLUE)),
        (".trash/old.jpg", jpeg(BLUE)),
        ("LICENSE.txt", b"a file beside the classes".to_vec()),
    ]
}

fn assert_has_the_pictures(folder: &ImageFolder) {
    assert_eq!(folder.classes(), ["daisies", "roses"]);
    assert_eq!(folder.labels(), [0, 1, 1, 1]);
    let name = |index| file_name(folder.path(index)).to_str().unwrap();
    let names: Vec<&str> = (0..4).map(name).collect();
    assert_eq!(names, ["z.jpg", "a.jpeg", "b.JPG", "c.Png"]);
    for index in 0..4 {
        let [red, _, blue] = folder.picture(index).unwrap().pixel(4, 4);
        assert_eq!(blue > red, folder.labels()[index] == 0, "picture {index}");
    }
}

#[test]
fn classes_and_pictures_come_in_the_order_of_their_names() {
    let root = tempfile::tempdir().unwrap();
    for (path, bytes) in files() {
        write(root.path().join(path), &bytes);
    }
    let folder = ImageFolder::open(root.path()).unwrap();
    assert_has_the_pictures(&folder);
    folder.expect_classes(2).unwrap();
    let error = folder.expect_classes(5).unwrap_err().to_string();
    assert!(error.contains("2 classes (daisies, roses), but 5 are expected"), "{error}");
}

#[test]
fn an_archive_is_read_without_unpacking_it() {
    let root = tempfile::tempdir().unwrap();
    let archive = root.path().join("flowers.tar");
    let all = files();
    let below = |folder: &str| -> Vec<(String, Vec<u8>)> {
        let path = |path: &str| format!("{folder}{path}");
        all.iter().map(|(name, bytes)| (path(name), bytes.clone())).collect()
    };
    for (prefix, folder) in [("", ""), ("flowers/train/", "flowers/train"), ("./x/", "x/")] {
        let files = below(prefix);
        let mut borrowed: Vec<(&str, Vec<u8>)> =
            files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
        if !folder.is_empty() {
            borrowed.push(("elsewhere/tulips/t.jpg", jpeg(RED)));
        }
        write(&archive, &tar_of(&borrowed));
        assert_has_the_pictures(&ImageFolder::in_tar(&archive, folder).unwrap());
        let error = ImageFolder::in_tar(&archive, "no/such").unwrap_err();
        assert!(matches!(error, PictureError::NoClasses { .. }), "{error}");
    }
}

#[test]
fn roots_that_cannot_be_used_are_named() {
    let root = tempfile::tempdir().unwrap();
    let open = |path: &Path| ImageFolder::open(path).unwrap_err();

    let missing = open(&root.path().join("flowers"));
    assert!(matches!(missing, PictureError::Unreadable { .. }), "{missing}");
    assert!(missing.to_string().contains("flowers"), "{missing}");

    write(root.path().join("loose.jpg"), &jpeg(RED));
    let no_classes = open(root.path());
    assert!(matches!(no_classes, PictureError::NoClasses { .. }), "{no_classes}");

    write(root.path().join("roses/1.jpg"), &jpeg(RED));
    write(root.path().join("tulips/readme.txt"), b"soon");
    let empty = open(root.path());
    assert!(matches!(empty, PictureError::EmptyClass { .. }), "{empty}");
    assert!(empty.to_string().contains("/tulips has no"), "{empty}");
}

/// An archive of a picture and of links: how they are kept, where they are, what they name.
fn with_links(links: &[(tar::EntryType, &str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    let picture = jpeg(RED);
    header.set_size(picture.len() as u64);
    builder.append_data(&mut header, "t/roses/0.jpg", picture.as_slice()).unwrap();
    for &(kind, path, target) in links {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        builder.append_link(&mut header, path, target).unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn pictures_that_are_links_in_an_archive_are_not_left_out() {
    use tar::EntryType::{Link, Symlink};
    let root = tempfile::tempdir().unwrap();
    let archive = root.path().join("links.tar");
    let links = [
        (Link, "t/roses/1.jpg", "t/roses/0.jpg"),
        (Symlink, "t/roses/2.jpg", "0.jpg"),
        (Symlink, "t/tulips/3.jpg", "../roses/2.jpg"),
        // As on disk, left aside.
        (Symlink, "t/tulips/more", "../roses"),
    ];
    write(&archive, &with_links(&links));
    let folder = ImageFolder::in_tar(&archive, "t").unwrap();
    assert_eq!(folder.labels(), [0, 0, 0, 1]);
    for index in 0..folder.count() {
        assert!(folder.picture(index).unwrap().pixel(4, 4)[0] > 200);
    }
    for link in [
        (Symlink, "t/roses/1.jpg", "../../elsewhere.jpg"),
        (Link, "t/roses/1.jpg", "t/roses/9.jpg"),
        (Symlink, "t/roses/1.jpg", "1.jpg"),
        (Symlink, "t/tulips", "roses"),
    ] {
        write(&archive, &with_links(&[link]));
        let error = ImageFolder::in_tar(&archive, "t").unwrap_err().to_string();
        assert!(error.contains(link.1) && error.contains("--dereference"), "{error}");
    }
}

#[test]
fn an_archive_that_was_cut_between_two_files_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let archive = root.path().join("cut.tar");
    let whole = with_links(&[]);
    // Without the blocks of zeros at its end.
    write(&archive, &whole[..whole.len() - 1024]);
    let error = ImageFolder::in_tar(&archive, "t").unwrap_err();
    let PictureError::Unreadable { source, .. } = &error else { panic!("{error}") };
    assert!(source.to_string().contains("it was cut"), "{source}");
}

#[test]
fn classes_whose_names_look_alike_as_text_are_two() {
    let root = tempfile::tempdir().unwrap();
    let mut builder = tar::Builder::new(Vec::new());
    for class in [&b"caf\xe8"[..], b"caf\xe9", b"dog"] {
        let name = Path::new(OsStr::from_bytes(class)).join("1.jpg");
        write(root.path().join("t").join(&name), &jpeg(RED));
        builder.append_path_with_name(root.path().join("t").join(&name), &name).unwrap();
    }
    let archive = root.path().join("t.tar");
    write(&archive, &builder.into_inner().unwrap());
    for folder in [
        ImageFolder::open(root.path().join("t")).unwrap(),
        ImageFolder::in_tar(&archive, "").unwrap(),
    ] {
        assert_eq!(folder.labels(), [0, 1, 2]);
        assert_eq!(folder.classes(), ["caf\u{fffd}", "caf\u{fffd}", "dog"]);
    }
}

#[test]
fn a_pipe_is_an_error_and_not_a_wait() {
    let error = ImageFolder::in_tar("/dev/null", "t").unwrap_err();
    assert!(matches!(error, PictureError::Unreadable { .. }), "{error}");
}

#[test]
fn a_damaged_picture_is_named_when_it_is_read() {
    let root = tempfile::tempdir().unwrap();
    let whole = jpeg(RED);
    write(root.path().join("roses/1.jpg"), &whole[..whole.len() - 2]);
    write(root.path().join("roses/2.jpg"), b"text");
    let folder = ImageFolder::open(root.path()).unwrap();
    let cut = folder.picture(0).unwrap_err();
    assert!(matches!(cut, PictureError::Truncated { .. }), "{cut}");
    assert!(cut.to_string().contains("roses/1.jpg"), "{cut}");
    let text = folder.picture(1).unwrap_err();
    assert!(matches!(text, PictureError::Undecodable { .. }), "{text}");
}

/// Reads the pictures of `BONFIRE_TEST_PICTURES`, a tar archive of CIFAR-10 as JPEG files.
#[test]
fn real_pictures_are_read() {
    let Some(archive) = std::env::var_os("BONFIRE_TEST_PICTURES") else {
        println!("skipped: BONFIRE_TEST_PICTURES names no archive");
        return;
    };
    for (part, of_each) in [("train", 500), ("test", 100)] {
        let folder = ImageFolder::in_tar(&archive, Path::new("cifar10-5k").join(part)).unwrap();
        folder.expect_classes(10).unwrap();
        assert_eq!(folder.count(), 10 * of_each);
        for index in 0..folder.count() {
            let picture = folder.picture(index).unwrap();
            assert_eq!((picture.size().width, picture.size().height), (32, 32));
        }
    }
}
